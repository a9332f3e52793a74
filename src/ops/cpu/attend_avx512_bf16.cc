#include "base/check.h"
#include "ops/cpu/attend_pairs.h"

// Highway 1.0.3 has no vdpbf16ps. This file is compiled on every x86 whatever its flags, and used where the CPU has the
// instruction.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/dtype.h"

#define WEFT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define WEFT_TARGET_BYTES __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")))
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::cpu {
namespace {

// Rows that are summed together. With two vectors of queries each, or two sums for a row's pairs in turn, 16 sums hide the
// latency of the instruction.
constexpr int kBlock = 8;

WEFT_TARGET WEFT_INLINE __m512bh load_pairs(const float* at) { return reinterpret_cast<__m512bh>(_mm512_load_si512(at)); }

WEFT_TARGET WEFT_INLINE __m512bh broadcast_pair(const void* pairs, int64_t index) {
  int32_t bits;
  std::memcpy(&bits, static_cast<const char*>(pairs) + index * 4, 4);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// Lane i holds bfloat16 i of `low` in its lower half and of `high` in its upper half. With masks, since GCC 12 warns of the
// undefined vectors that its own headers use without.
WEFT_TARGET WEFT_INLINE __m512i interleave(__m256i low, __m256i high) {
  constexpr __mmask16 kAll = 0xffff;
  return _mm512_or_si512(_mm512_maskz_cvtepu16_epi32(kAll, low),
                         _mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, high), 16));
}

/// Adds kSteps pairs from `pair` on of each row to sums number 0 to kSteps - 1.
template <int kVectors, int kSteps, int kSums>
WEFT_TARGET WEFT_INLINE void score_pairs(const float* queries, const void* const (&rows)[kBlock], int64_t pair,
                                         __m512 (&sums)[kBlock][kSums]) {
  __m512bh query[kSteps * kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kSteps * kVectors; ++v) query[v] = load_pairs(queries + pair * kVectors * 16 + v * 16);
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; ++i) {
#pragma GCC unroll 2
    for (int step = 0; step < kSteps; ++step) {
      const __m512bh key = broadcast_pair(rows[i], pair + step);
#pragma GCC unroll 2
      for (int v = step * kVectors; v < (step + 1) * kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], key, query[v]);
    }
  }
}

template <int kVectors>
WEFT_TARGET void score(const float* queries, const void* const* keys, int64_t count, int64_t pairs, float* scores) {
  constexpr int kSteps = 2 / kVectors;
  for (int64_t first = 0; first < count; first += kBlock) {
    const void* rows[kBlock];
    __m512 sums[kBlock][2];
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) {
      rows[i] = keys[first + i];
      sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    }
    int64_t pair = 0;
    for (; pair + kSteps <= pairs; pair += kSteps) score_pairs<kVectors, kSteps>(queries, rows, pair, sums);
    if (pair < pairs) score_pairs<kVectors, 1>(queries, rows, pair, sums);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) {
      float* out = scores + (first + i) * kVectors * 16;
      if constexpr (kVectors == 1) {
        _mm512_store_ps(out, _mm512_add_ps(sums[i][0], sums[i][1]));
      } else {
        _mm512_store_ps(out, sums[i][0]);
        _mm512_store_ps(out + 16, sums[i][1]);
      }
    }
  }
}

template <int kVectors>
WEFT_TARGET void pack_weights(float* weights, int64_t count) {
  constexpr int kWidth = kVectors * 16;
  for (int64_t key = 0; key < count; key += 2) {
    for (int v = 0; v < kWidth; v += 16) {
      const __m512 low = _mm512_load_ps(weights + key * kWidth + v);
      const __m512 high = key + 1 < count ? _mm512_load_ps(weights + (key + 1) * kWidth + v) : _mm512_setzero_ps();
      _mm512_store_si512(weights + key / 2 * kWidth + v, interleave(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(low)),
                                                                    reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(high))));
    }
  }
}

template <int kVectors, int kDims>
WEFT_TARGET WEFT_INLINE void add_dims(const float* weights, const float* values, int64_t pairs, int64_t v_dim,
                                      const float* decay, float* results) {
  constexpr int kWidth = kVectors * 16;
  __m512 sums[kDims][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = _mm512_mul_ps(_mm512_load_ps(results + i * kWidth + v * 16), _mm512_load_ps(decay + v * 16));
    }
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh weight[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) weight[v] = load_pairs(weights + pair * kWidth + v * 16);
#pragma GCC unroll 16
    for (int i = 0; i < kDims; ++i) {
      const __m512bh value = broadcast_pair(values + pair * v_dim, i);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], value, weight[v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(results + i * kWidth + v * 16, sums[i][v]);
  }
}

template <int kVectors>
WEFT_TARGET void add(const float* weights, const float* values, int64_t count, int64_t v_dim, int64_t dims, const float* decay,
                     float* results) {
  constexpr int kWidth = kVectors * 16, kWide = 16 / kVectors;
  const int64_t pairs = (count + 1) / 2;
  int64_t dim = 0;
  for (; dim + kWide <= dims; dim += kWide) {
    add_dims<kVectors, kWide>(weights, values + dim, pairs, v_dim, decay, results + dim * kWidth);
  }
  for (; dim < dims; ++dim) add_dims<kVectors, 1>(weights, values + dim, pairs, v_dim, decay, results + dim * kWidth);
}

// Upper and lower bytes of the bfloat16 that codes 0 to 127 stand for.
struct alignas(64) Fp8Tables {
  std::array<uint8_t, 128> upper{}, lower{};
};
constexpr Fp8Tables kFp8Tables = [] {
  Fp8Tables tables;
  for (size_t code = 0; code < 128; ++code) {
    const uint16_t bits = bf16(f8_e4m3_to_float(static_cast<uint8_t>(code))).bits;
    tables.upper[code] = static_cast<uint8_t>(bits >> 8);
    tables.lower[code] = static_cast<uint8_t>(bits & 255);
  }
  return tables;
}();

struct Bf16Times64 {
  __m512i v[2];
};

// Entries number 0 to 127, by the lower seven bits.
WEFT_TARGET_BYTES WEFT_INLINE __m512i look_up(const std::array<uint8_t, 128>& table, __m512i codes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table.data()), codes, _mm512_load_si512(table.data() + 64));
}

/// The first 64 or fewer codes at `at` as bfloat16, 0 behind them.
WEFT_TARGET_BYTES WEFT_INLINE Bf16Times64 load_fp8(const uint8_t* at, int64_t count) {
  const __mmask64 mask = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
  // Bytes are interleaved within 128 bits: each lane takes 8 codes of the first half and 8 of the second.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i codes = _mm512_maskz_permutexvar_epi64(0xff, order, _mm512_maskz_loadu_epi8(mask, at));
  const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  const __m512i lower = look_up(kFp8Tables.lower, codes), upper = _mm512_or_si512(look_up(kFp8Tables.upper, codes), sign);
  return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
}

}  // namespace

bool has_fp8_pairs() {
  static const bool supported = avx512_bf16_pair_kernels(1) != nullptr && __builtin_cpu_supports("avx512vbmi") != 0;
  return supported;
}

WEFT_TARGET_BYTES void unpack_fp8_to_bf16(const void* codes, int64_t count, void* out) {
  const auto* from = static_cast<const uint8_t*>(codes);
  auto* to = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < count; i += 64) {
    const Bf16Times64 numbers = load_fp8(from + i, count - i);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t left = count - i - 32 * half;
      if (left <= 0) break;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      _mm512_mask_storeu_epi16(to + i + 32 * half, mask, numbers.v[half]);
    }
  }
}

WEFT_TARGET_BYTES void pack_fp8_value_pairs(const void* const* values, int64_t count, int64_t v_dim, float* packed) {
  // Pair i of 16: element i of the first row's numbers, then of the second's, which follow in the index.
  alignas(64) uint16_t order[2][32];
  for (uint16_t i = 0; i < 16; ++i) {
    for (uint16_t half = 0; half < 2; ++half) {
      order[half][2 * i] = static_cast<uint16_t>(16 * half + i);
      order[half][2 * i + 1] = static_cast<uint16_t>(32 + 16 * half + i);
    }
  }
  const __m512i orders[2] = {_mm512_load_si512(order[0]), _mm512_load_si512(order[1])};
  for (int64_t key = 0; key < count; key += 2) {
    const auto* low = static_cast<const uint8_t*>(values[key]);
    const auto* high = static_cast<const uint8_t*>(values[std::min(key + 1, count - 1)]);
    float* out = packed + key / 2 * v_dim;
    for (int64_t dim = 0; dim < v_dim; dim += 64) {
      const Bf16Times64 x = load_fp8(low + dim, v_dim - dim), y = load_fp8(high + dim, key + 1 < count ? v_dim - dim : 0);
      for (int64_t part = 0; part < 4; ++part) {
        const int64_t at = dim + 16 * part, left = v_dim - at;
        if (left <= 0) break;
        const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : 0xffff >> (16 - left));
        const __m512i pairs = _mm512_permutex2var_epi16(x.v[part / 2], orders[part % 2], y.v[part / 2]);
        _mm512_mask_storeu_epi32(out + at, mask, pairs);
      }
    }
  }
}

const PairKernels* avx512_bf16_pair_kernels(int vectors) {
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                                __builtin_cpu_supports("avx512bw") != 0;
  static constexpr PairKernels kOne{score<1>, pack_weights<1>, add<1>}, kTwo{score<2>, pack_weights<2>, add<2>};
  if (!supported) return nullptr;
  return vectors == 1 ? &kOne : &kTwo;
}

WEFT_TARGET void pack_value_pairs(const void* const* values, int64_t count, int64_t v_dim, float* packed) {
  for (int64_t key = 0; key < count; key += 2) {
    const auto* low = static_cast<const uint16_t*>(values[key]);
    const auto* high = key + 1 < count ? static_cast<const uint16_t*>(values[key + 1]) : nullptr;
    float* out = packed + key / 2 * v_dim;
    for (int64_t dim = 0; dim < v_dim; dim += 16) {
      const int64_t left = std::min<int64_t>(16, v_dim - dim);
      const auto mask = static_cast<__mmask16>(0xffff >> (16 - left));
      const __m256i x = _mm256_maskz_loadu_epi16(mask, low + dim);
      const __m256i y = high != nullptr ? _mm256_maskz_loadu_epi16(mask, high + dim) : _mm256_setzero_si256();
      _mm512_mask_storeu_epi32(out + dim, mask, interleave(x, y));
    }
  }
}

}  // namespace weft::cpu

#else

namespace weft::cpu {

const PairKernels* avx512_bf16_pair_kernels(int) { return nullptr; }
void pack_value_pairs(const void* const*, int64_t, int64_t, float*) { WEFT_CHECK(false) << "not on this CPU"; }
void pack_fp8_value_pairs(const void* const*, int64_t, int64_t, float*) { WEFT_CHECK(false) << "not on this CPU"; }
void unpack_fp8_to_bf16(const void*, int64_t, void*) { WEFT_CHECK(false) << "not on this CPU"; }
bool has_fp8_pairs() { return false; }

}  // namespace weft::cpu

#endif
