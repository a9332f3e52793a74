#include "ops/cpu/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/logits.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The largest number among x, -inf where there is none: a comparison with NaN is false and changes nothing.
float largest(const float* x, int64_t n) {
  const ElementsF32 d;
  const F32 lowest = hn::Set(d, -kInfinity);
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

/// The smallest of x above -inf, +inf where there is none.
float smallest_above_infinity(const float* x, int64_t n) {
  const ElementsF32 d;
  const F32 out = hn::Set(d, -kInfinity);
  F32 best[2] = {hn::Set(d, kInfinity), hn::Set(d, kInfinity)};
  int64_t i = 0;
  for (; i + 2 * kF32Lanes <= n; i += 2 * kF32Lanes) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const F32 v = load_elements(x + i + j * kF32Lanes);
      best[j] = hn::IfThenElse(hn::And(hn::Gt(v, out), hn::Lt(v, best[j])), v, best[j]);
    }
  }
  float result = hn::GetLane(hn::MinOfLanes(d, hn::Min(best[0], best[1])));
  for (; i < n; ++i) result = x[i] > -kInfinity && x[i] < result ? x[i] : result;
  return result;
}

// Exponentials in float64. Eight of them at most, so that AVX2 and AVX-512 add up in the same order.
using DD = hn::CappedTag<double, 8>;
using DF = hn::Rebind<float, DD>;
using DI = hn::RebindToSigned<DF>;
constexpr int64_t kLanes = HWY_LANES(double) < 8 ? HWY_LANES(double) : 8;
static_assert(kLogitPiece % kLanes == 0);

/// exp of (x - largest) * scale, 0 below `lowest` and for NaN. The difference of equal infinities is 0.
HWY_INLINE hn::Vec<DD> exponential(hn::Vec<DF> x, hn::Vec<DD> largest_x, hn::Vec<DD> scale, hn::Vec<DD> lowest) {
  const DD d;
  const auto v = hn::PromoteTo(d, x);
  const auto z = hn::IfThenZeroElse(hn::Eq(v, largest_x), hn::Mul(hn::Sub(v, largest_x), scale));
  const auto counts = hn::Ge(z, lowest);
  if (hn::AllFalse(d, counts)) return hn::Zero(d);
  return hn::IfThenElseZero(counts, hn::Exp(d, hn::Max(z, lowest)));
}

/// The bucket of each x: NaN and -inf go wherever they like, their weight is 0.
HWY_INLINE hn::Vec<DI> bucket_of(hn::Vec<DF> x, const Weighing& how) {
  const DF d;
  const auto most = hn::Set(d, how.largest);
  const auto below = hn::IfThenElseZero(hn::Lt(x, most), hn::Sub(most, x));
  const auto last = hn::Set(d, static_cast<float>(how.buckets - 1));
  return hn::ConvertTo(DI(), hn::Min(hn::Mul(below, hn::Set(d, how.buckets_per_logit)), last));
}

/// The exponent from which on exp is worth computing: the smallest normal number is exp(-708.4).
constexpr double kLowestExponent = -708;

double sum_exp(const float* x, int64_t n, float most) {
  constexpr int kSums = static_cast<int>(16 / kLanes);
  const DD d;
  const DF df;
  const auto largest_x = hn::Set(d, static_cast<double>(most)), one = hn::Set(d, 1.0), lowest = hn::Set(d, kLowestExponent);
  hn::Vec<DD> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  const auto add = [&](const float* piece) {
    for (int j = 0; j < kSums; ++j)
      sums[j] = hn::Add(sums[j], exponential(hn::LoadU(df, piece + j * kLanes), largest_x, one, lowest));
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) add(x + i);
  if (i < n) {
    float rest[16];
    std::fill(std::copy(x + i, x + n, rest), rest + 16, -kInfinity);
    add(rest);
  }
  double parts[16];
  for (int j = 0; j < kSums; ++j) hn::StoreU(sums[j], d, parts + j * kLanes);
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

template <bool kDeal>
HWY_INLINE void weigh_all(const float* x, int64_t n, const Weighing& how, double* weights, int32_t* buckets) {
  const DD d;
  const DF df;
  const auto largest_x = hn::Set(d, static_cast<double>(how.largest)), scale = hn::Set(d, how.inverse_temperature);
  const auto lowest = hn::Set(d, how.lowest_exponent);
  float rest[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    const float* from = x + i;
    if (i + kLanes > n) {
      std::fill(std::copy(from, x + n, rest), rest + kLanes, -kInfinity);
      from = rest;
    }
    const auto v = hn::LoadU(df, from);
    hn::StoreU(exponential(v, largest_x, scale, lowest), d, weights + i);
    if constexpr (kDeal) hn::StoreU(bucket_of(v, how), DI(), buckets + i);
  }
}

void weigh(const float* x, int64_t n, const Weighing& how, double* weights) { weigh_all<false>(x, n, how, weights, nullptr); }

void weigh_and_deal(const float* x, int64_t n, const Weighing& how, double* weights, int32_t* buckets) {
  weigh_all<true>(x, n, how, weights, buckets);
}

/// Writes the indices for which matches(vector of logits) is true.
template <typename Matches>
HWY_INLINE int64_t find(const float* x, int64_t n, int32_t* indices, Matches matches) {
  const DF d;
  float rest[kLanes];
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const float* from = x + i;
    if (i + kLanes > n) {
      std::fill(std::copy(from, x + n, rest), rest + kLanes, std::numeric_limits<float>::quiet_NaN());
      from = rest;
    }
    const auto mask = matches(hn::LoadU(d, from));
    if (hn::AllFalse(d, mask)) continue;
    uint8_t bits[8] = {};
    hn::StoreMaskBits(d, mask, bits);
    for (int64_t j = 0; j < kLanes; ++j) {
      indices[found] = static_cast<int32_t>(i + j);
      found += bits[0] >> j & 1;
    }
  }
  return found;
}

int64_t find_in_bucket(const float* x, int64_t n, const Weighing& how, int32_t bucket, float smallest, int32_t* indices) {
  const auto wanted = hn::Set(DI(), bucket);
  const auto least = hn::Set(DF(), smallest);
  return find(x, n, indices, [&](hn::Vec<DF> v) {
    return hn::And(hn::RebindMask(DF(), hn::Eq(bucket_of(v, how), wanted)), hn::Ge(v, least));
  });
}

int64_t find_larger(const float* x, int64_t n, float bound, int32_t* indices) {
  const auto least = hn::Set(DF(), bound);
  return find(x, n, indices, [&](hn::Vec<DF> v) { return hn::Gt(v, least); });
}

}  // namespace
}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

HWY_EXPORT(largest);
HWY_EXPORT(smallest_above_infinity);
HWY_EXPORT(sum_exp);
HWY_EXPORT(weigh);
HWY_EXPORT(weigh_and_deal);
HWY_EXPORT(find_in_bucket);
HWY_EXPORT(find_larger);

// One block fits the first-level cache: the search inside the best block reads it once more, for free.
constexpr int64_t kBlock = 4096;

}  // namespace

int32_t index_of_largest(const float* x, int64_t n) {
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
  return found == x + n ? -1 : static_cast<int32_t>(found - x);
}

LogitRange range_of(const float* x, int64_t n) {
  LogitRange range{.largest = HWY_DYNAMIC_DISPATCH(largest)(x, n),
                   .smallest = HWY_DYNAMIC_DISPATCH(smallest_above_infinity)(x, n)};
  range.smallest = std::min(range.smallest, range.largest);
  return range;
}

double sum_of_exponentials(const float* x, int64_t n, float largest) { return HWY_DYNAMIC_DISPATCH(sum_exp)(x, n, largest); }

void weigh(const float* x, int64_t n, const Weighing& how, double* weights) {
  WEFT_CHECK_LE(n, kLogitPiece);
  HWY_DYNAMIC_DISPATCH(weigh)(x, n, how, weights);
}

void weigh_and_deal(const float* x, int64_t n, const Weighing& how, double* weights, int32_t* buckets) {
  WEFT_CHECK_LE(n, kLogitPiece);
  HWY_DYNAMIC_DISPATCH(weigh_and_deal)(x, n, how, weights, buckets);
}

int64_t find_in_bucket(const float* x, int64_t n, const Weighing& how, int32_t bucket, float smallest, int32_t* indices) {
  WEFT_CHECK_LE(n, kLogitPiece);
  return HWY_DYNAMIC_DISPATCH(find_in_bucket)(x, n, how, bucket, smallest, indices);
}

int64_t find_larger(const float* x, int64_t n, float bound, int32_t* indices) {
  WEFT_CHECK_LE(n, kLogitPiece);
  return HWY_DYNAMIC_DISPATCH(find_larger)(x, n, bound, indices);
}

}  // namespace weft::cpu
#endif
