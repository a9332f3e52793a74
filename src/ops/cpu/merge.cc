#include "ops/cpu/merge.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/merge.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// sums[i] += weight * source[i]
template <typename T>
void add_weighted(const T* HWY_RESTRICT source, int64_t count, float weight, float* HWY_RESTRICT sums) {
  int64_t i = 0;
  for (; i + kF32Lanes <= count; i += kF32Lanes) {
    const F32 sum = hn::MulAdd(hn::Set(ElementsF32(), weight), load_elements(source + i), load_elements(sums + i));
    store_elements(sum, sums + i);
  }
  for (; i < count; ++i) sums[i] += weight * static_cast<float>(source[i]);
}

template <typename T>
void store_sums(const float* sums, int64_t count, T* target) {
  int64_t i = 0;
  for (; i + kF32Lanes <= count; i += kF32Lanes) store_elements(load_elements(sums + i), target + i);
  for (; i < count; ++i) target[i] = T(sums[i]);
}

void add_weighted_f32(const void* source, int64_t count, float weight, float* sums) {
  add_weighted(static_cast<const float*>(source), count, weight, sums);
}
void add_weighted_bf16(const void* source, int64_t count, float weight, float* sums) {
  add_weighted(static_cast<const bf16*>(source), count, weight, sums);
}
void store_sums_f32(const float* sums, int64_t count, void* target) { store_sums(sums, count, static_cast<float*>(target)); }
void store_sums_bf16(const float* sums, int64_t count, void* target) { store_sums(sums, count, static_cast<bf16*>(target)); }

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(add_weighted_f32);
HWY_EXPORT(add_weighted_bf16);
HWY_EXPORT(store_sums_f32);
HWY_EXPORT(store_sums_bf16);

namespace {

// Elements of a head whose sums are kept at once: all partials are read before any is written, since out may be one of them.
constexpr int64_t kChunk = 512;

float lse_at(const Partial& partial, int64_t row, int64_t head) {
  const float lse = partial.lse.as<float>()[row * partial.lse.stride(0) + head * partial.lse.stride(1)];
  return lse < HUGE_VALF ? lse : -HUGE_VALF;  // NaN compares false
}

// The first element of [T, h, Dv] in row and head, and `first` elements on.
template <typename AnyView>
auto* element_at(const AnyView& view, int64_t row, int64_t head, int64_t first) {
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, std::byte, const std::byte>;
  const int64_t at = row * view.stride(0) + head * view.stride(1) + first;
  return static_cast<Byte*>(view.data()) + at * static_cast<int64_t>(size_of(view.dtype()));
}

// The logarithm of the sum of exp(lse) over the partials.
double total_lse(std::span<const Partial> partials, int64_t row, int64_t head) {
  float top = -HUGE_VALF;
  for (const Partial& partial : partials) top = std::max(top, lse_at(partial, row, head));
  if (top == -HUGE_VALF) return top;
  double sum = 0;
  for (const Partial& partial : partials) sum += std::exp(static_cast<double>(lse_at(partial, row, head)) - top);
  return top + std::log(sum);
}

void merge_head(std::span<const Partial> partials, int64_t row, int64_t head, View out, View lse) {
  const bool is_bf16 = out.dtype() == DType::bf16;
  const auto add = is_bf16 ? HWY_DYNAMIC_DISPATCH(add_weighted_bf16) : HWY_DYNAMIC_DISPATCH(add_weighted_f32);
  const auto store = is_bf16 ? HWY_DYNAMIC_DISPATCH(store_sums_bf16) : HWY_DYNAMIC_DISPATCH(store_sums_f32);
  const double total = total_lse(partials, row, head);
  for (int64_t first = 0; first < out.size(2); first += kChunk) {
    const int64_t count = std::min(kChunk, out.size(2) - first);
    float sums[kChunk];
    std::fill_n(sums, count, 0.0f);
    for (const Partial& partial : partials) {
      const float part = lse_at(partial, row, head);
      if (part == -HUGE_VALF) continue;
      add(element_at(partial.out, row, head, first), count, static_cast<float>(std::exp(part - total)), sums);
    }
    store(sums, count, element_at(out, row, head, first));
  }
  if (!lse.empty()) lse.as<float>()[row * lse.stride(0) + head * lse.stride(1)] = static_cast<float>(total);
}

}  // namespace

void merge(Pool& pool, std::span<const Partial> partials, View out, View lse) {
  const int64_t heads = out.size(1), all = out.size(0) * heads;
  constexpr int64_t kHeads = 16;  // of one task: some microseconds of work
  pool.run((all + kHeads - 1) / kHeads, [&](int64_t task, int) {
    for (int64_t i = task * kHeads; i < std::min(all, (task + 1) * kHeads); ++i) {
      merge_head(partials, i / heads, i % heads, out, lse);
    }
  });
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
