#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"

namespace weft::cuda {

// Numbers as kernels compute with them, and sums over the threads of a warp or block. Every sum has one order, whatever the
// timing.

constexpr int kWarp = 32;
constexpr float kInfinity = __builtin_huge_valf();

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline float to_float(f8_e4m3 x) {
  // Without its sign a code is the upper part of a float whose exponent is 120 too small, subnormal or not.
  const uint32_t magnitude = x.bits & 0x7fu;
  const float value = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : __uint_as_float(magnitude << 20) * 0x1p120f;
  return __uint_as_float(__float_as_uint(value) | (x.bits & 0x80u) << 24);
}

/// Element `i`, of a type known at run time only.
__device__ inline float load_any(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  if (dtype == DType::bf16) return to_float(static_cast<const bf16*>(data)[i]);
  return to_float(static_cast<const f8_e4m3*>(data)[i]);
}
__device__ inline void store_any(float value, void* data, DType dtype, int64_t i) {
  if (dtype == DType::f32)
    static_cast<float*>(data)[i] = value;
  else if (dtype == DType::bf16)
    static_cast<bf16*>(data)[i] = bf16(value);
  else
    static_cast<f8_e4m3*>(data)[i] = f8_e4m3(value);
}

template <typename T>
__device__ inline T warp_sum(T value) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, apart));
  return value;
}

/// The sum over all threads of the block, the same in each. `shared` holds a number for every warp and one more; blockDim.x is
/// a multiple of the warp's size.
template <typename T>
__device__ inline T block_sum(T value, T* shared) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warps == 1) return value;
  __syncthreads();  // what the sum before left has been read
  if (threadIdx.x % kWarp == 0) shared[warp] = value;
  __syncthreads();
  T sum = shared[0];
  for (int w = 1; w < warps; ++w) sum += shared[w];
  return sum;
}

/// Calls body with a value of the element type, float32 or bfloat16, and says how its launch went.
template <typename Body>
cudaError_t with_compute_type(DType dtype, Body body) {
  if (dtype == DType::f32)
    body(float());
  else
    body(bf16());
  return cudaGetLastError();
}

inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

}  // namespace weft::cuda
