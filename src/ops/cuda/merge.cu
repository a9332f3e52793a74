#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"

namespace weft::cuda {
namespace {

constexpr int kWarps = 4;

/// One head of one row for each warp. The weights are made in float64, as on a CPU; a thread reads its element of every part
/// before it writes it, so the result may replace a part.
template <typename T>
__global__ void merge_heads(const __grid_constant__ MergeParams p) {
  __shared__ float all_weights[kWarps][MergeParams::kMost];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp;
  if (index >= p.rows * p.heads) return;
  const int64_t row = index / p.heads, head = index % p.heads;
  float* weights = all_weights[warp];

  float largest = -kInfinity;
  for (int i = lane; i < p.count; i += kWarp) {
    const float lse = p.parts[i].lse[row * p.parts[i].lse_row + head * p.parts[i].lse_head];
    weights[i] = lse < kInfinity ? lse : -kInfinity;  // NaN compares false
    largest = fmaxf(largest, weights[i]);
  }
  largest = warp_max(largest);
  double total = largest;
  if (largest > -kInfinity) {
    double sum = 0;
    for (int i = lane; i < p.count; i += kWarp) sum += exp(static_cast<double>(weights[i]) - largest);
    total += log(warp_sum(sum));
    for (int i = lane; i < p.count; i += kWarp) weights[i] = static_cast<float>(exp(weights[i] - total));
  } else {
    for (int i = lane; i < p.count; i += kWarp) weights[i] = 0;
  }
  // A part without keys is never read. Its weight is 0; one that vanishes beside the others' may be left out as well.
  __syncwarp();
  T* out = static_cast<T*>(p.out.data) + row * p.out.row_stride + head * p.out.head_stride;
  for (int64_t d = lane; d < p.dim; d += kWarp) {
    float sum = 0;
    for (int i = 0; i < p.count; ++i) {
      if (weights[i] == 0) continue;
      const MergeParams::Part& part = p.parts[i];
      sum += weights[i] * to_float(static_cast<const T*>(part.out)[row * part.out_row + head * part.out_head + d]);
    }
    out[d] = T(sum);
  }
  if (p.lse != nullptr && lane == 0) p.lse[row * p.lse_row + head * p.lse_head] = static_cast<float>(total);
}

}  // namespace

cudaError_t launch_merge(const MergeParams& p, cudaStream_t stream) {
  if (p.rows * p.heads == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(p.rows * p.heads, kWarps);
  return with_compute_type(p.dtype, [&](auto type) { merge_heads<decltype(type)><<<blocks, kWarps * kWarp, 0, stream>>>(p); });
}

}  // namespace weft::cuda
