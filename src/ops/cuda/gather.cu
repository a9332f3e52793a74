#include <type_traits>

#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 128;

/// Number d of a fp8_ds_mla row.
__device__ float latent_number(const uint8_t* row, int latent_dim, int d) {
  const auto* scales = reinterpret_cast<const float*>(row + latent_dim);
  if (d < latent_dim) return to_float(reinterpret_cast<const f8_e4m3*>(row)[d]) * scales[d / kLatentScaleGroup];
  return to_float(reinterpret_cast<const bf16*>(scales + latent_dim / kLatentScaleGroup)[d - latent_dim]);
}

/// One row of a plane: `dim` numbers of each head, scaled where they are fp8; zeros for slot -1.
template <typename T>
__device__ void gather_numbers(const KvView& kv, const void* plane, int64_t stride, float scale, int dim, int64_t slot, T* out,
                               int64_t out_head) {
  for (int i = threadIdx.x; i < kv.kv_heads * dim; i += blockDim.x) {
    float value = 0;
    if (slot >= 0 && kv.format == KvFormat::fp8_ds_mla)
      value = latent_number(static_cast<const uint8_t*>(plane) + slot * stride, kv.v_dim, i);
    else if (slot >= 0)
      value = load_any(plane, kv.dtype, slot * stride + i) * (kv.dtype == DType::f8_e4m3 ? scale : 1.0f);
    out[i / dim * out_head + i % dim] = T(value);
  }
}

__device__ void gather_bytes(const void* plane, int64_t stride_bytes, int64_t bytes, int64_t slot, uint8_t* out) {
  const uint8_t* row = static_cast<const uint8_t*>(plane) + slot * stride_bytes;
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = slot < 0 ? 0 : row[i];
}

template <typename T>
__global__ void gather_rows(GatherParams p) {
  const int64_t row = blockIdx.x, slot = p.slots != nullptr ? p.slots[row] : row;
  const KvView& kv = p.kv;
  const auto gather = [&](const Heads& out, const void* plane, int64_t stride, int dim, int64_t bytes, float scale) {
    if constexpr (std::is_same_v<T, uint8_t>)
      gather_bytes(plane, stride * static_cast<int64_t>(size_of(kv.dtype)), bytes, slot,
                   static_cast<uint8_t*>(out.data) + row * out.row_stride);
    else
      gather_numbers(kv, plane, stride, scale, dim, slot, static_cast<T*>(out.data) + row * out.row_stride, out.head_stride);
  };
  gather(p.k, kv.k, kv.k_stride, kv.k_dim, kv.k_row_bytes(), kv.scales.k);
  if (p.v.data != nullptr) gather(p.v, kv.v, kv.v_stride, kv.v_dim, kv.v_row_bytes(), kv.scales.v);
}

}  // namespace

cudaError_t launch_gather_rows(const GatherParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.rows);
  if (p.dtype == DType::u8) {
    gather_rows<uint8_t><<<blocks, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  return with_compute_type(p.dtype, [&](auto type) { gather_rows<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

}  // namespace weft::cuda
