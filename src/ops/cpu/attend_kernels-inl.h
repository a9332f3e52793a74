// The arithmetic of attention on one tile, compiled once per instruction set (see attend.cc).
//
// Queries lie in the lanes of vectors. With W queries side by side, scores are S[key][W] = sum_d K[key][d] * Q[d][W] and
// results O[d][W] = sum_key V[key][d] * P[key][W]: keys and values are read as scalars and broadcast, so they need no
// transposition; maxima, sums and masks of the softmax are vertical operations; and only Q and O, touched once per tile, are
// stored transposed.

#if defined(WEFT_OPS_CPU_ATTEND_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_ATTEND_KERNELS_INL_H_
#undef WEFT_OPS_CPU_ATTEND_KERNELS_INL_H_
#else
#define WEFT_OPS_CPU_ATTEND_KERNELS_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"
#include "ops/cpu/attend_plan.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;

/// Lanes of a vector, and queries of a panel: two vectors.
constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kPanel = 2 * kLanes;
static_assert(kTileQueries % kPanel == 0);

/// Keys scored together: with two vectors of queries each, their sums fill half of the registers.
constexpr int kKeyBlock = HWY_TARGET == HWY_AVX3 ? 8 : 4;
static_assert(kTileKeys % kKeyBlock == 0);

#ifdef __clang__
#define WEFT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define WEFT_UNROLL _Pragma("GCC unroll 16")
#endif

/// 2^x for x <= 0, relative error below 8e-8. Below 2^-126 the result is about 2^-126 instead of less.
/// 2^x = 2^n * 2^f with n the nearest integer and |f| <= 1/2; 2^f by the polynomial of degree 6 that is nearest in relative
/// error (found by Remez exchange, error 2e-9).
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF d;
  const DI di;
  x = hn::Max(x, hn::Set(d, -126.0f));
  const auto n = hn::NearestInt(x);
  const VF f = hn::Sub(x, hn::ConvertTo(d, n));
  VF p = hn::Set(d, 1.534581199e-04f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339993122e-03f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618488957e-03f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550328777e-02f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402264689e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472057e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
}

/// Two lanes' worth of vectors: one value for each query of a panel.
struct PanelVec {
  VF v[2];
};

HWY_INLINE PanelVec load_panel(const float* at) {
  const DF d;
  return {{hn::Load(d, at), hn::Load(d, at + kLanes)}};
}
HWY_INLINE void store_panel(const PanelVec& x, float* at) {
  const DF d;
  hn::Store(x.v[0], d, at);
  hn::Store(x.v[1], d, at + kLanes);
}

/// scores[key][W] = sum over d of keys[key][d] * queries[d][W], for `count` keys rounded up to whole blocks.
inline void score_keys(const float* HWY_RESTRICT queries, const void* const* key_rows, int64_t count, int64_t dk,
                       float* HWY_RESTRICT scores) {
  const DF d;
  for (int64_t first = 0; first < count; first += kKeyBlock) {
    const float* rows[kKeyBlock];
    PanelVec sums[kKeyBlock];
    WEFT_UNROLL
    for (int i = 0; i < kKeyBlock; ++i) {
      rows[i] = static_cast<const float*>(key_rows[first + i]);
      sums[i] = {{hn::Zero(d), hn::Zero(d)}};
    }
    for (int64_t k = 0; k < dk; ++k) {
      const PanelVec q = load_panel(queries + k * kPanel);
      WEFT_UNROLL
      for (int i = 0; i < kKeyBlock; ++i) {
        const VF key = hn::Set(d, rows[i][k]);
        sums[i] = {{hn::MulAdd(key, q.v[0], sums[i].v[0]), hn::MulAdd(key, q.v[1], sums[i].v[1])}};
      }
    }
    WEFT_UNROLL
    for (int i = 0; i < kKeyBlock; ++i) store_panel(sums[i], scores + (first + i) * kPanel);
  }
}

/// Turns the scores of keys [first_key, first_key + count) into weights 2^(score * scale - max), 0 for keys that a query does
/// not see, and brings max, sum and decay of the panel's queries up to date.
template <bool kMasked>
void weigh_keys(int64_t first_key, int64_t count, float scale, const int32_t* begin, const int32_t* end,
                float* HWY_RESTRICT max, float* HWY_RESTRICT sum, float* HWY_RESTRICT decay, float* HWY_RESTRICT scores) {
  const DF d;
  const DI di;
  const VF factor = hn::Set(d, scale), lowest = hn::Set(d, -HUGE_VALF);
  for (int lane = 0; lane < kPanel; lane += kLanes) {
    const auto from = hn::Load(di, begin + lane), to = hn::Load(di, end + lane);
    const auto sees = [&](int64_t key) HWY_ATTR {
      const auto k = hn::Set(di, static_cast<int32_t>(key));
      return hn::RebindMask(d, hn::AndNot(hn::Lt(k, from), hn::Lt(k, to)));
    };
    const VF old_max = hn::Load(d, max + lane);
    VF top = old_max;
    for (int64_t i = 0; i < count; ++i) {
      VF score = hn::Mul(hn::Load(d, scores + i * kPanel + lane), factor);
      if constexpr (kMasked) score = hn::IfThenElse(sees(first_key + i), score, lowest);
      hn::Store(score, d, scores + i * kPanel + lane);
      top = hn::Max(top, score);
    }
    // A query that has seen nothing yet keeps -inf, and measures from 0 so that no infinities are subtracted.
    const VF base = hn::IfThenElse(hn::Eq(top, lowest), hn::Zero(d), top);
    const VF shrink = exp2_nonpositive(hn::Sub(old_max, base));
    VF total = hn::Mul(hn::Load(d, sum + lane), shrink);
    for (int64_t i = 0; i < count; ++i) {
      const VF score = hn::Load(d, scores + i * kPanel + lane);
      VF weight = exp2_nonpositive(hn::Sub(score, base));
      if constexpr (kMasked) weight = hn::IfThenElseZero(hn::Ne(score, lowest), weight);
      hn::Store(weight, d, scores + i * kPanel + lane);
      total = hn::Add(total, weight);
    }
    hn::Store(top, d, max + lane);
    hn::Store(total, d, sum + lane);
    hn::Store(shrink, d, decay + lane);
  }
}

/// results[d][W] = results[d][W] * decay[W] + sum over keys of values[key][d] * weights[key][W], for kDims dims.
template <int kDims>
HWY_INLINE void add_value_dims(const float* HWY_RESTRICT weights, const void* const* value_rows, int64_t count, int64_t dim,
                               const PanelVec& decay, float* HWY_RESTRICT results) {
  const DF d;
  PanelVec sums[kDims];
  WEFT_UNROLL
  for (int i = 0; i < kDims; ++i) {
    const PanelVec old = load_panel(results + (dim + i) * kPanel);
    sums[i] = {{hn::Mul(old.v[0], decay.v[0]), hn::Mul(old.v[1], decay.v[1])}};
  }
  for (int64_t key = 0; key < count; ++key) {
    const PanelVec w = load_panel(weights + key * kPanel);
    const float* value = static_cast<const float*>(value_rows[key]) + dim;
    WEFT_UNROLL
    for (int i = 0; i < kDims; ++i) {
      const VF v = hn::Set(d, value[i]);
      sums[i] = {{hn::MulAdd(v, w.v[0], sums[i].v[0]), hn::MulAdd(v, w.v[1], sums[i].v[1])}};
    }
  }
  WEFT_UNROLL
  for (int i = 0; i < kDims; ++i) store_panel(sums[i], results + (dim + i) * kPanel);
}

inline void add_values(const float* weights, const void* const* value_rows, int64_t count, int64_t dv, const float* decay,
                       float* results) {
  const PanelVec factor = load_panel(decay);
  int64_t dim = 0;
  for (; dim + kKeyBlock <= dv; dim += kKeyBlock) {
    add_value_dims<kKeyBlock>(weights, value_rows, count, dim, factor, results);
  }
  for (; dim < dv; ++dim) add_value_dims<1>(weights, value_rows, count, dim, factor, results);
}

/// float32 from a row of either element type.
inline void widen(const float* in, int64_t count, float* out) {
  std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}
inline void widen(const bf16* in, int64_t count, float* out) {
  const DF d;
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto* bits = reinterpret_cast<const uint16_t*>(in);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, bits + i)))), d, out + i);
  }
  for (; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

/// A row of either element type from float32, times `factor`.
inline void narrow(const float* in, int64_t stride, int64_t count, float factor, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = in[i * stride] * factor;
}
inline void narrow(const float* in, int64_t stride, int64_t count, float factor, bf16* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16(in[i * stride] * factor);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
