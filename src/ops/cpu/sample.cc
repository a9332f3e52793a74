#include "ops/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/row_blocks.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sample.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// The largest number among x, -inf where there is none: a comparison with NaN is false and changes nothing.
float largest(const float* x, int64_t n) {
  const ElementsF32 d;
  const F32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  F32 best[4] = {lowest, lowest, lowest, lowest};
  int64_t i = 0;
  for (; i + 4 * kF32Lanes <= n; i += 4 * kF32Lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32 v = load_elements(x + i + j * kF32Lanes);
      best[j] = hn::IfThenElse(hn::Gt(v, best[j]), v, best[j]);
    }
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(best[0], best[1]), hn::Max(best[2], best[3]))));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace
}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

HWY_EXPORT(largest);

// One block fits the first-level cache: the search inside the best block reads it once more, for free.
constexpr int64_t kBlock = 4096;

int32_t argmax_row(const float* x, int64_t n) {
  const auto largest_of = HWY_DYNAMIC_DISPATCH(largest);
  float best = -std::numeric_limits<float>::infinity();
  int64_t best_block = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float here = largest_of(x + begin, std::min(kBlock, n - begin));
    if (here > best) {
      best = here;
      best_block = begin;
    }
  }
  // With nothing above -inf, the first -inf may be in any block; with nothing but NaN, there is none.
  const float* found = std::find(x + best_block, x + n, best);
  return found == x + n ? 0 : static_cast<int32_t>(found - x);
}

double log_sum_exp(const float* x, int64_t n) {
  const double most = HWY_DYNAMIC_DISPATCH(largest)(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - most);
  return most + std::log(sum);
}

}  // namespace

void argmax(Pool& pool, ConstView logits, int32_t* ids) {
  for_each_row(pool, logits.size(0), logits.size(1), [&](int64_t row) {
    ids[row] = argmax_row(reinterpret_cast<const float*>(row_at(logits, row)), logits.size(1));
  });
}

void log_prob(Pool& pool, ConstView logits, const int32_t* ids, float* out) {
  for_each_row(pool, logits.size(0), logits.size(1), [&](int64_t row) {
    const auto* x = reinterpret_cast<const float*>(row_at(logits, row));
    WEFT_CHECK_LT(static_cast<int64_t>(ids[row]), logits.size(1));
    out[row] = ids[row] < 0 ? 0.0f : static_cast<float>(x[ids[row]] - log_sum_exp(x, logits.size(1)));
  });
}

}  // namespace weft::cpu
#endif
