#include "ops/cpu/merge.h"

#include <algorithm>
#include <cmath>

namespace weft::cpu {
namespace {

// Elements of a head whose sums are kept at once: all partials are read before any is written, since out may be one of them.
constexpr int64_t kChunk = 512;

float lse_at(const Partial& partial, int64_t row, int64_t head) {
  const float lse = partial.lse.as<float>()[row * partial.lse.stride(0) + head * partial.lse.stride(1)];
  return lse < HUGE_VALF ? lse : -HUGE_VALF;  // NaN compares false
}

template <typename T>
void merge_head(std::span<const Partial> partials, int64_t row, int64_t head, View out, View lse) {
  float top = -HUGE_VALF;
  for (const Partial& partial : partials) top = std::max(top, lse_at(partial, row, head));
  double sum = 0;
  if (top != -HUGE_VALF) {
    for (const Partial& partial : partials) sum += std::exp(static_cast<double>(lse_at(partial, row, head)) - top);
  }
  const double total = top == -HUGE_VALF ? top : top + std::log(sum);

  T* target = static_cast<T*>(out.data()) + row * out.stride(0) + head * out.stride(1);
  for (int64_t first = 0; first < out.size(2); first += kChunk) {
    const int64_t count = std::min(kChunk, out.size(2) - first);
    float sums[kChunk] = {};
    for (const Partial& partial : partials) {
      const float part = lse_at(partial, row, head);
      if (part == -HUGE_VALF) continue;
      const float weight = static_cast<float>(std::exp(part - total));
      const T* source =
          static_cast<const T*>(partial.out.data()) + row * partial.out.stride(0) + head * partial.out.stride(1) + first;
      for (int64_t i = 0; i < count; ++i) sums[i] += weight * static_cast<float>(source[i]);
    }
    for (int64_t i = 0; i < count; ++i) target[first + i] = T(sums[i]);
  }
  if (!lse.empty()) lse.as<float>()[row * lse.stride(0) + head * lse.stride(1)] = static_cast<float>(total);
}

void check(std::span<const Partial> partials, const View& out, const View& lse) {
  WEFT_CHECK_EQ(out.dims(), 3);
  WEFT_CHECK_EQ(out.stride(2), 1);
  WEFT_CHECK(out.dtype() == DType::f32 || out.dtype() == DType::bf16) << to_string(out.dtype());
  WEFT_CHECK(lse.empty() || (lse.size(0) == out.size(0) && lse.size(1) == out.size(1))) << "sizes of lse";
  for (const Partial& partial : partials) {
    WEFT_CHECK(partial.out.dtype() == out.dtype()) << to_string(partial.out.dtype());
    WEFT_CHECK_EQ(partial.out.stride(2), 1);
    for (int d = 0; d < 3; ++d) WEFT_CHECK_EQ(partial.out.size(d), out.size(d)) << "dimension " << d;
    for (int d = 0; d < 2; ++d) WEFT_CHECK_EQ(partial.lse.size(d), out.size(d)) << "dimension " << d;
  }
}

}  // namespace

void merge(Pool& pool, std::span<const Partial> partials, View out, View lse) {
  check(partials, out, lse);
  const auto merge_one = out.dtype() == DType::bf16 ? merge_head<bf16> : merge_head<float>;
  const int64_t heads = out.size(1), all = out.size(0) * heads;
  constexpr int64_t kHeads = 16;  // of one task
  pool.run((all + kHeads - 1) / kHeads, [&](int64_t task, int) {
    for (int64_t i = task * kHeads; i < std::min(all, (task + 1) * kHeads); ++i) {
      merge_one(partials, i / heads, i % heads, out, lse);
    }
  });
}

}  // namespace weft::cpu
