// What both ways to attend share. Compiled once per instruction set.

#if defined(WEFT_OPS_CPU_ATTEND_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_ATTEND_MATH_INL_H_
#undef WEFT_OPS_CPU_ATTEND_MATH_INL_H_
#else
#define WEFT_OPS_CPU_ATTEND_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "ops/cpu/attend_tile.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = ElementsF32;
using DI = hn::RebindToSigned<DF>;
using VF = F32;

constexpr int kLanes = static_cast<int>(kF32Lanes);
static_assert(kTileKeys % kLanes == 0 && kTileQueries % (2 * kLanes) == 0);

#ifdef __clang__
#define WEFT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define WEFT_UNROLL _Pragma("GCC unroll 16")
#endif

/// 2^x for x <= 0, relative error below 8e-8. Below 2^-126 the result is 2^-126 instead of less.
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

/// Lanes of `key` that lie in [from, to).
HWY_INLINE auto in_range(hn::Vec<DI> key, hn::Vec<DI> from, hn::Vec<DI> to) {
  return hn::RebindMask(DF(), hn::AndNot(hn::Lt(key, from), hn::Lt(key, to)));
}

/// Walks over the rows of some keys and values, all KV heads of each, and asks for a little of them at a time: whole rows in
/// the order of memory, since pieces of rows in the order of use reach a third of the bandwidth; and a little, since memory
/// should be as busy while the piece before is computed with as it is between. May ask for a few bytes behind a row.
class Prefetcher {
 public:
  static constexpr int64_t kBytes = 256;

  Prefetcher(const KeyRows& rows, int64_t key_bytes, int64_t value_bytes, int64_t steps)
      : rows_(rows), bytes_{key_bytes, rows.values[0] == rows.keys[0] ? 0 : value_bytes} {
    if (rows.count == 0) return;
    const int64_t row = (bytes_[0] + kBytes - 1) / kBytes + (bytes_[1] + kBytes - 1) / kBytes;
    per_step_ = steps > 0 ? (rows.count * row + steps - 1) / steps : 0;
    at_ = static_cast<const std::byte*>(rows.keys[0]);
    end_ = at_ + bytes_[0];
  }

  HWY_INLINE void step() {
    for (int64_t i = 0; i < per_step_; ++i) {
      for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(at_ + line, 0, 2);
      at_ += kBytes;
      if (at_ >= end_) next_row();
    }
  }

 private:
  void next_row() {
    if (++key_ == rows_.count) {
      key_ = 0;
      if (++plane_ == 2 || bytes_[plane_] == 0) {
        per_step_ = 0;
        return;
      }
    }
    at_ = static_cast<const std::byte*>(plane_ == 0 ? rows_.keys[key_] : rows_.values[key_]);
    end_ = at_ + bytes_[plane_];
  }

  const KeyRows& rows_;
  const int64_t bytes_[2];
  int64_t per_step_ = 0, key_ = 0;
  int plane_ = 0;
  const std::byte *at_ = nullptr, *end_ = nullptr;
};

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
