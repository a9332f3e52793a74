#include <cfloat>

#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rope_table(const __grid_constant__ RopeTableParams p) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.rows * p.pairs) return;
  const int64_t row = i / p.pairs, pair = i % p.pairs;
  const double angle = p.positions[row] * p.inv_freq[pair];
  p.cos[row * p.cos_strides[0] + pair * p.cos_strides[1]] = static_cast<float>(p.factor * cos(angle));
  p.sin[row * p.sin_strides[0] + pair * p.sin_strides[1]] = static_cast<float>(p.factor * sin(angle));
}

/// Turns the first `rotary` elements of each head of a row and copies the rest. A thread reads a pair before it writes it.
template <typename T>
__device__ void rotate_heads(const T* in, int64_t in_head, T* out, int64_t out_head, int heads, int dim, const float* cos,
                             const float* sin, const RopeAppendParams& p) {
  const int half = p.rotary / 2, step = p.interleaved ? 2 : 1, apart = p.interleaved ? 1 : half;
  for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const int head = i / half, pair = i % half;
    const T* from = in + head * in_head + pair * step;
    T* to = out + head * out_head + pair * step;
    const float x = to_float(from[0]), y = to_float(from[apart]);
    to[0] = T(x * cos[pair] - y * sin[pair]);
    to[apart] = T(y * cos[pair] + x * sin[pair]);
  }
  if (in == out) return;
  const int rest = dim - p.rotary;
  for (int i = threadIdx.x; i < heads * rest; i += blockDim.x) {
    const int head = i / rest, at = p.rotary + i % rest;
    out[head * out_head + at] = in[head * in_head + at];
  }
}

/// Heads of a row to adjacent elements of the cache, from element `at` on.
template <typename T>
__device__ void store_heads(const T* in, int64_t head_stride, int heads, int dim, void* plane, DType dtype, int64_t at,
                            float scale) {
  for (int i = threadIdx.x; i < heads * dim; i += blockDim.x) {
    const float value = to_float(in[i / dim * head_stride + i % dim]);
    store_any(dtype == DType::f8_e4m3 ? value / scale : value, plane, dtype, at + i);
  }
}

/// One row of [e4m3 latents | a float32 scale for every 128 | rope part bfloat16], a group of latents for each warp.
template <typename T>
__device__ void store_latent_row(const T* latent, const T* rope, int latent_dim, int rope_dim, uint8_t* row) {
  constexpr int kEach = kLatentScaleGroup / kWarp;
  auto* scales = reinterpret_cast<float*>(row + latent_dim);
  const int lane = threadIdx.x % kWarp, groups = latent_dim / kLatentScaleGroup;
  for (int group = threadIdx.x / kWarp; group < groups; group += blockDim.x / kWarp) {
    const int first = group * kLatentScaleGroup + lane * kEach;
    float largest = 0;
    for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(to_float(latent[first + i])));  // NaN does not count
    largest = fminf(warp_max(largest), FLT_MAX);
    const float scale = fmaxf(largest / 448.0f, FLT_MIN);
    for (int i = 0; i < kEach; ++i) row[first + i] = f8_e4m3(to_float(latent[first + i]) / scale).bits;
    if (lane == 0) scales[group] = scale;
  }
  auto* rope_out = reinterpret_cast<bf16*>(scales + groups);
  for (int i = threadIdx.x; i < rope_dim; i += blockDim.x) rope_out[i] = bf16(to_float(rope[i]));
}

/// One row of the step for each block.
template <typename T>
__global__ void rope_append(const __grid_constant__ RopeAppendParams p) {
  const int64_t row = blockIdx.x;
  const float *cos = p.cos + row * p.cos_stride, *sin = p.sin + row * p.sin_stride;
  const auto at = [&](const auto& heads) { return row * heads.row_stride; };
  rotate_heads(static_cast<const T*>(p.q.data) + at(p.q), p.q.head_stride, static_cast<T*>(p.q_out.data) + at(p.q_out),
               p.q_out.head_stride, p.heads, p.dim, cos, sin, p);
  T* k_out = static_cast<T*>(p.k_out.data) + at(p.k_out);
  rotate_heads(static_cast<const T*>(p.k.data) + at(p.k), p.k.head_stride, k_out, p.k_out.head_stride, p.kv.kv_heads, p.k_dim,
               cos, sin, p);
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  __syncthreads();  // k_out is there

  const KvView& kv = p.kv;
  const T* v = static_cast<const T*>(p.v.data) + at(p.v);
  if (kv.format == KvFormat::fp8_ds_mla) {
    store_latent_row(v, k_out, kv.v_dim, p.k_dim, static_cast<uint8_t*>(kv.k) + slot * kv.k_stride);
  } else if (kv.is_latent()) {
    store_heads(v, 0, 1, kv.v_dim, kv.k, kv.dtype, slot * kv.k_stride, kv.scales.v);
    store_heads(k_out, 0, 1, p.k_dim, kv.k, kv.dtype, slot * kv.k_stride + kv.v_dim, kv.scales.k);
  } else {
    store_heads(k_out, p.k_out.head_stride, kv.kv_heads, kv.k_dim, kv.k, kv.dtype, slot * kv.k_stride, kv.scales.k);
    store_heads(v, p.v.head_stride, kv.kv_heads, kv.v_dim, kv.v, kv.dtype, slot * kv.v_stride, kv.scales.v);
  }
}

}  // namespace

cudaError_t launch_rope_table(const RopeTableParams& p, cudaStream_t stream) {
  if (p.rows * p.pairs == 0) return cudaSuccess;
  rope_table<<<blocks_for(p.rows * p.pairs, kThreads), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_rope_append(const RopeAppendParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.rows);
  return with_compute_type(p.dtype, [&](auto type) { rope_append<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

}  // namespace weft::cuda
