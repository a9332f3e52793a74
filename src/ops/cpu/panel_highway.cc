#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/panel.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/panel_highway.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Sums kept in registers at a time: kRows rows of kVectors vectors of columns. Besides them a pass holds the vectors of
/// weights and, in bfloat16, two halves of a pair of each row.
constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3;
constexpr int kVectors = kManyRegisters ? 4 : 2;
template <typename T>
constexpr int kRows = std::is_same_v<T, float> ? 6 : (kManyRegisters ? 4 : 3);

/// One element of the depth of each row in float32, one pair in bfloat16.
template <int Rows>
HWY_INLINE void add_products(const float* const* x, int64_t k, const float* w, F32 (&sum)[Rows][kVectors]) {
  F32 b[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) b[v] = load_elements(w + v * kF32Lanes);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const F32 a = hn::Set(ElementsF32(), x[r][k]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a, b[v], sum[r][v]);
  }
}

template <int Rows>
HWY_INLINE void add_pairs(const F32 (&even)[Rows], const F32 (&odd)[Rows], const bf16* w, F32 (&sum)[Rows][kVectors]) {
  const ElementsF32 d;
  const ElementsU32 du;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(w) + v * kF32Lanes);
    const F32 low = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    const F32 high = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000u)));
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) sum[r][v] = hn::MulAdd(odd[r], high, hn::MulAdd(even[r], low, sum[r][v]));
  }
}

template <int Rows>
HWY_INLINE void add_depth(const float* const* x, int64_t depth, const float* w, F32 (&sum)[Rows][kVectors]) {
  for (int64_t k = 0; k < depth; ++k) add_products<Rows>(x, k, w + k * kPanelColumns, sum);
}

template <int Rows>
HWY_INLINE void add_depth(const bf16* const* x, int64_t depth, const bf16* w, F32 (&sum)[Rows][kVectors]) {
  const ElementsF32 d;
  const ElementsU32 du;
  F32 even[Rows], odd[Rows];
  for (int64_t pair = 0; pair < depth / 2; ++pair) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      uint32_t bits;
      std::memcpy(&bits, x[r] + 2 * pair, sizeof bits);
      const auto both = hn::Set(du, bits);
      even[r] = hn::BitCast(d, hn::ShiftLeft<16>(both));
      odd[r] = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
    }
    add_pairs<Rows>(even, odd, w + pair * 2 * kPanelColumns, sum);
  }
  if (depth % 2 != 0) {
    for (int r = 0; r < Rows; ++r) {
      even[r] = hn::Set(d, static_cast<float>(x[r][depth - 1]));
      odd[r] = hn::Zero(d);
    }
    add_pairs<Rows>(even, odd, w + (depth - 1) * kPanelColumns, sum);
  }
}

template <typename Out>
HWY_INLINE void finish(F32 sum, const float* bias, int64_t columns, Out* out) {
  if (columns >= kF32Lanes) {
    store_elements(bias == nullptr ? sum : hn::Add(sum, load_elements(bias)), out);
  } else if (columns > 0) {
    store_some(bias == nullptr ? sum : hn::Add(sum, load_some(bias, columns)), columns, out);
  }
}

template <typename T, typename Out, int Rows>
HWY_INLINE void tile(const PanelJob& job, int64_t row) {
  const T* x[Rows];
  for (int r = 0; r < Rows; ++r) x[r] = reinterpret_cast<const T*>(job.x[row + r]);
  constexpr int64_t kStep = kVectors * kF32Lanes;
  constexpr int64_t kPair = std::is_same_v<T, float> ? 1 : 2;
  for (int64_t column = 0; column < job.columns; column += kStep) {
    F32 sum[Rows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(ElementsF32());
    }
    add_depth<Rows>(x, job.depth, reinterpret_cast<const T*>(job.panel) + column * kPair, sum);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t c = column + v * kF32Lanes;
        finish(sum[r][v], job.bias == nullptr ? nullptr : job.bias + c, job.columns - c,
               reinterpret_cast<Out*>(job.out[row + r]) + c);
      }
    }
  }
}

template <typename T, typename Out, int Rows>
HWY_INLINE void tile_of(const PanelJob& job, int64_t row, int64_t rows) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return tile_of<T, Out, Rows - 1>(job, row, rows);
  }
  tile<T, Out, Rows>(job, row);
}

template <typename T, typename Out>
void multiply(const PanelJob& job) {
  // As many rows a pass as fit, and no pass much smaller than the others: each reads the whole panel.
  for (int64_t row = 0, passes = (job.rows + kRows<T> - 1) / kRows<T>; passes > 0; --passes) {
    const int64_t rows = (job.rows - row + passes - 1) / passes;
    tile_of<T, Out, kRows<T>>(job, row, rows);
    row += rows;
  }
}

void multiply_f32(const PanelJob& job) { multiply<float, float>(job); }
void multiply_bf16_to_f32(const PanelJob& job) { multiply<bf16, float>(job); }
void multiply_bf16(const PanelJob& job) { multiply<bf16, bf16>(job); }

}  // namespace
}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_bf16_to_f32);
HWY_EXPORT(multiply_bf16);

PanelKernel highway_panel_kernel(DType x, DType out) {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  if (x == DType::f32 && out == DType::f32) return HWY_DYNAMIC_DISPATCH(multiply_f32);
  WEFT_CHECK(x == DType::bf16 && (out == DType::f32 || out == DType::bf16)) << to_string(x) << " to " << to_string(out);
  return out == DType::f32 ? HWY_DYNAMIC_DISPATCH(multiply_bf16_to_f32) : HWY_DYNAMIC_DISPATCH(multiply_bf16);
}

PanelKernel panel_kernel(DType x, DType out) {
  const PanelKernel pairs = x == DType::bf16 ? avx512_bf16_panel_kernel(out) : nullptr;
  return pairs != nullptr ? pairs : highway_panel_kernel(x, out);
}

}  // namespace weft::cpu
#endif
