#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

// --- routing: a warp for each row, scores in float64 so that experts rank as their logits do -----------------------------

/// Larger first, NaN last, equal ones by index.
__device__ bool precedes(double a, int i, double b, int j) {
  if (isnan(a) != isnan(b)) return isnan(b);
  if (a > b || a < b) return a > b;
  return i < j;
}

/// A set of up to 1024 numbers, in shared memory.
struct Chosen {
  uint32_t* words;
  __device__ bool has(int i) const { return (words[i / 32] >> (i % 32) & 1) != 0; }
};

/// Makes `chosen` the best `count` of ranks[0, n).
__device__ void choose_best(const double* ranks, int n, int count, Chosen chosen) {
  const int lane = threadIdx.x;
  for (int i = lane; i < (n + 31) / 32; i += kWarp) chosen.words[i] = 0;
  __syncwarp();
  for (int round = 0; round < count; ++round) {
    int best = -1;
    for (int i = lane; i < n; i += kWarp)
      if (!chosen.has(i) && (best < 0 || precedes(ranks[i], i, ranks[best], best))) best = i;
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const int other = __shfl_xor_sync(~0u, best, apart);
      if (other >= 0 && (best < 0 || precedes(ranks[other], other, ranks[best], best))) best = other;
    }
    if (lane == 0) chosen.words[best / 32] |= uint32_t{1} << (best % 32);
    __syncwarp();
  }
}

__device__ double warp_largest(double value) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const double other = __shfl_xor_sync(~0u, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

/// The largest counts as 1 even where it is infinite; NaN stays NaN and spoils no other.
__device__ void softmax(double* scores, int n) {
  double largest = -kInfinity, sum = 0;
  for (int e = threadIdx.x; e < n; e += kWarp) largest = scores[e] > largest ? scores[e] : largest;
  largest = warp_largest(largest);
  for (int e = threadIdx.x; e < n; e += kWarp) {
    scores[e] = scores[e] == largest ? 1 : exp(scores[e] - largest);
    if (!isnan(scores[e])) sum += scores[e];
  }
  sum = warp_sum(sum);
  for (int e = threadIdx.x; e < n; e += kWarp) scores[e] /= sum;
}

/// The best of a group, or the sum of its two best, NaN left out.
__device__ double rank_of_group(const double* ranks, int n, bool top2_sum) {
  double first = -kInfinity, second = -kInfinity;
  for (int i = 0; i < n; ++i) {
    if (ranks[i] > first) {
      second = first;
      first = ranks[i];
    } else if (ranks[i] > second) {
      second = ranks[i];
    }
  }
  return top2_sum && n >= 2 ? first + second : first;
}

__global__ void route(RouteParams p) {
  extern __shared__ double shared[];
  double *scores = shared, *ranks = scores + p.experts, *group_ranks = ranks + p.experts;
  const Chosen chosen{reinterpret_cast<uint32_t*>(group_ranks + p.n_group)};
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x;

  for (int e = lane; e < p.experts; e += kWarp) {
    const double logit = p.logits[row * p.logits_stride + e];
    scores[e] = p.sigmoid ? 1 / (1 + exp(-logit)) : logit;
  }
  if (!p.sigmoid) softmax(scores, p.experts);
  for (int e = lane; e < p.experts; e += kWarp) ranks[e] = scores[e] + (p.bias != nullptr ? p.bias[e] : 0.0f);
  __syncwarp();

  if (p.topk_group < p.n_group) {  // experts outside the best groups lose their rank
    const int size = p.experts / p.n_group;
    for (int g = lane; g < p.n_group; g += kWarp) group_ranks[g] = rank_of_group(ranks + g * size, size, p.top2_sum);
    __syncwarp();
    choose_best(group_ranks, p.n_group, p.topk_group, chosen);
    for (int e = lane; e < p.experts; e += kWarp)
      if (!chosen.has(e / size) && !isnan(ranks[e])) ranks[e] = -kInfinity;
    __syncwarp();
  }
  choose_best(ranks, p.experts, p.top_k, chosen);

  if (lane != 0) return;
  double sum = 0;
  for (int e = 0; e < p.experts; ++e)
    if (chosen.has(e)) sum += scores[e];
  // Sigmoids can all underflow; their weights are then zero rather than NaN.
  const double factor = p.scale / (p.normalize ? sum + 1e-20 : 1.0);
  int32_t* ids = p.chosen + row * p.chosen_stride;
  float* weights = p.weights + row * p.weights_stride;
  for (int e = 0; e < p.experts; ++e) {
    if (!chosen.has(e)) continue;
    *ids++ = e;
    *weights++ = static_cast<float>(scores[e] * factor);
  }
}

// --- grouping ---------------------------------------------------------------------------------------------------------

/// A block for each expert counts the choices of lower experts, which come before its own, and then places its own in order.
__global__ void group_by_expert(GroupParams p) {
  __shared__ int sums[kThreads / kWarp];
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t choices = p.rows * p.top_k;
  const auto choice = [&](int64_t i) { return p.experts[i / p.top_k * p.row_stride + i % p.top_k * p.choice_stride]; };

  int before = 0, own = 0;
  for (int64_t i = threadIdx.x; i < choices; i += kThreads) {
    const int e = choice(i);
    before += e < expert;
    own += e == expert;
  }
  before = block_sum(before, sums);
  own = block_sum(own, sums);
  if (threadIdx.x == 0) {
    p.offsets[expert] = before;
    if (expert == p.num_experts - 1) p.offsets[p.num_experts] = before + own;
  }
  int next = before;
  for (int64_t first = 0; first < choices; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool mine = i < choices && choice(i) == expert;
    const unsigned in_warp = __ballot_sync(~0u, mine);
    __syncthreads();  // the sums of the round before have been read
    if (lane == 0) sums[warp] = __popc(in_warp);
    __syncthreads();
    int place = next;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) place += sums[w];
      next += sums[w];
    }
    if (!mine) continue;
    place += __popc(in_warp & ((1u << lane) - 1));
    p.source[place] = static_cast<int32_t>(i / p.top_k);
    p.place[i] = place;
  }
}

template <typename T>
__global__ void combine_experts(CombineParams p) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.rows * p.width; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / p.width, column = i % p.width;
    float sum = 0;
    for (int64_t j = 0; j < p.top_k; ++j) {
      const int64_t at = p.place[row * p.top_k + j] * p.y_stride + column;
      sum = fmaf(p.weights[row * p.weights_stride + j], to_float(static_cast<const T*>(p.y)[at]), sum);
    }
    if (p.shared != nullptr) sum += to_float(static_cast<const T*>(p.shared)[row * p.shared_stride + column]);
    static_cast<T*>(p.out)[row * p.out_stride + column] = T(sum);
  }
}

}  // namespace

cudaError_t launch_route(const RouteParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>(2 * p.experts + p.n_group) * sizeof(double) +
                       static_cast<size_t>((p.experts + 31) / 32) * sizeof(uint32_t);
  route<<<static_cast<unsigned>(p.rows), kWarp, bytes, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_group_by_expert(const GroupParams& p, cudaStream_t stream) {
  group_by_expert<<<static_cast<unsigned>(p.num_experts), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_combine_experts(const CombineParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) return cudaSuccess;
  constexpr unsigned kMostBlocks = 65536;
  const unsigned wanted = blocks_for(p.rows * p.width, kThreads), blocks = wanted < kMostBlocks ? wanted : kMostBlocks;
  return with_compute_type(p.dtype, [&](auto type) { combine_experts<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

}  // namespace weft::cuda
