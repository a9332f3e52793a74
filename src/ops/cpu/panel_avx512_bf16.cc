#include <cstring>

#include "ops/cpu/panel.h"

// Highway 1.0.3 has no vdpbf16ps, which does four times the work of the float32 instructions it would use instead. This file
// is compiled on every x86 whatever its flags, and used where the CPU has the instruction.
#if defined(__x86_64__)
#include <immintrin.h>

#define WEFT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::cpu {
namespace {

constexpr int kVectors = 4;  // of 16 columns: a panel
// 6 rows of 4 sums, 4 vectors of weights and one of x fill 29 of the 32 registers.
constexpr int64_t kRows = 6;

/// The next panel, fetched while this one is multiplied: `step` bytes with each pair of the depth, 0 = nothing. Where several
/// passes read this panel, all but the first find it in a cache and would leave the memory idle; so each fetches its share.
/// Measured with one thread: 12, 16 and 24 rows 1.2 times as fast, 48 rows 1.1 times. A single pass is better left to the
/// hardware, which sees one stream.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t step = 0;
};

constexpr int64_t kPairBytes = kPanelColumns * 4;  // A line of the panel: a pair of each column.

WEFT_TARGET WEFT_INLINE void fetch(Ahead& ahead) {
  if (ahead.step == 0) return;
  _mm_prefetch(ahead.at, _MM_HINT_T0);
  if (ahead.step > 64) _mm_prefetch(ahead.at + 64, _MM_HINT_T0);
  ahead.at += ahead.step;
}

WEFT_TARGET WEFT_INLINE __m512bh broadcast_pair(const std::byte* row, int64_t pair) {
  int32_t bits;
  std::memcpy(&bits, row + pair * 4, 4);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

WEFT_TARGET WEFT_INLINE __m512bh broadcast_last(const std::byte* row, int64_t pair) {
  uint16_t bits;
  std::memcpy(&bits, row + pair * 4, 2);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

WEFT_TARGET WEFT_INLINE void store(__m512 sum, const PanelJob& job, std::byte* row, int64_t column, DType out) {
  const int64_t columns = job.columns - column;
  if (columns <= 0) return;
  const auto mask = static_cast<__mmask16>(columns >= 16 ? 0xffffu : (1u << columns) - 1u);
  if (job.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, job.bias + column));
  if (out == DType::f32) {
    _mm512_mask_storeu_ps(reinterpret_cast<float*>(row) + column, mask, sum);
  } else {
    _mm256_mask_storeu_epi16(reinterpret_cast<bf16*>(row) + column, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
  }
}

/// `Rows` rows from `row` on. All sums stay in registers.
template <int Rows>
WEFT_TARGET WEFT_INLINE void tile(const PanelJob& job, int64_t row, Ahead ahead, DType out) {
  const std::byte* x[Rows];
  __m512 sum[Rows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = job.x[row + r];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const std::byte* w = job.panel;
  const int64_t pairs = job.depth / 2;
  for (int64_t pair = 0; pair < pairs; ++pair, w += kPairBytes) {
    fetch(ahead);
    __m512bh b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(w + v * 64));
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512bh a = broadcast_pair(x[r], pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], a, b[v]);
    }
  }
  if (job.depth % 2 != 0) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512bh b = reinterpret_cast<__m512bh>(_mm512_load_si512(w + v * 64));
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], broadcast_last(x[r], pairs), b);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(sum[r][v], job, job.out[row + r], v * 16, out);
  }
}

template <DType kOut>
WEFT_TARGET void multiply(const PanelJob& job) {
  // As many rows a pass as fit, and no pass much smaller than the others: each reads the whole panel.
  const int64_t all = (job.rows + kRows - 1) / kRows;
  Ahead ahead{.at = job.next, .step = job.next != nullptr && all > 1 ? (kPairBytes + all - 1) / all : 0};
  for (int64_t row = 0, passes = all; passes > 0; --passes) {
    const int64_t rows = (job.rows - row + passes - 1) / passes;
    switch (rows) {
      case 1:
        tile<1>(job, row, ahead, kOut);
        break;
      case 2:
        tile<2>(job, row, ahead, kOut);
        break;
      case 3:
        tile<3>(job, row, ahead, kOut);
        break;
      case 4:
        tile<4>(job, row, ahead, kOut);
        break;
      case 5:
        tile<5>(job, row, ahead, kOut);
        break;
      default:
        tile<6>(job, row, ahead, kOut);
        break;
    }
    row += rows;
    ahead.at += ahead.step * (job.depth / 2);
  }
}

}  // namespace

PanelKernel avx512_bf16_panel_kernel(DType out) {
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw")) {
    return nullptr;
  }
  return out == DType::f32 ? multiply<DType::f32> : multiply<DType::bf16>;
}

}  // namespace weft::cpu

#else

weft::cpu::PanelKernel weft::cpu::avx512_bf16_panel_kernel(DType) { return nullptr; }

#endif
