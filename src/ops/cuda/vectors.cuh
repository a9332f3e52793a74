#pragma once

#include "ops/cuda/elements.cuh"

namespace weft::cuda {

// Four neighbours at once, from an address that is a multiple of their size. As they are stored they take few registers, so
// many can be on their way; all bits 0 are zeros.

__device__ inline float4 load_four(const float* x) { return *reinterpret_cast<const float4*>(x); }
__device__ inline uint2 load_four(const bf16* x) { return *reinterpret_cast<const uint2*>(x); }
__device__ inline uchar4 load_four(const f8_e4m3* x) { return *reinterpret_cast<const uchar4*>(x); }

/// What load_four gives.
template <typename T>
using Four = decltype(load_four(static_cast<const T*>(nullptr)));

__device__ inline float4 widen(float4 x) { return x; }
__device__ inline float4 widen(uint2 pairs) {
  return {__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u), __uint_as_float(pairs.y << 16),
          __uint_as_float(pairs.y & 0xffff0000u)};
}
__device__ inline float4 widen(uchar4 codes) {
  const auto number = [](unsigned char code) {
    f8_e4m3 element;
    element.bits = code;
    return to_float(element);
  };
  return {number(codes.x), number(codes.y), number(codes.z), number(codes.w)};
}

__device__ inline float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

}  // namespace weft::cuda
