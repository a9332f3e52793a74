// Float32 vectors from and to memory that holds float32 or bfloat16, and from float8_e4m3. Compiled once per instruction set.

#if defined(WEFT_OPS_CPU_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_ELEMENTS_INL_H_
#undef WEFT_OPS_CPU_ELEMENTS_INL_H_
#else
#define WEFT_OPS_CPU_ELEMENTS_INL_H_
#endif

#include <cstdint>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

using ElementsF32 = hwy::HWY_NAMESPACE::CappedTag<float, 16>;
using ElementsU32 = hwy::HWY_NAMESPACE::RebindToUnsigned<ElementsF32>;
using ElementsU16 = hwy::HWY_NAMESPACE::Rebind<uint16_t, ElementsF32>;
using F32 = hwy::HWY_NAMESPACE::Vec<ElementsF32>;

constexpr int64_t kF32Lanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

HWY_INLINE F32 load_elements(const float* p) { return hwy::HWY_NAMESPACE::LoadU(ElementsF32(), p); }

HWY_INLINE F32 load_elements(const bf16* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto half = hn::LoadU(ElementsU16(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(ElementsF32(), hn::ShiftLeft<16>(hn::PromoteTo(ElementsU32(), half)));
}

HWY_INLINE F32 load_elements(const f8_e4m3* p) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // The bits of e4m3 in the places of a half float are 1/256 of the value, subnormals included. With the sign extended to 16
  // bits and shifted by 7, only bit 14 does not belong there. Code 0x7f is the only one that a unit in its last place carries
  // into the top bit of the exponent: that makes it the NaN which it stands for.
  const hn::Rebind<int8_t, ElementsF32> di8;
  const hn::Rebind<int16_t, ElementsF32> di16;
  const auto wide = hn::ShiftLeft<7>(hn::PromoteTo(di16, hn::LoadU(di8, reinterpret_cast<const int8_t*>(p))));
  const auto half = hn::And(wide, hn::Set(di16, static_cast<int16_t>(0xbfff)));
  const auto nan = hn::And(hn::Add(half, hn::Set(di16, 0x80)), hn::Set(di16, 0x4000));
  const hn::Rebind<hwy::float16_t, ElementsF32> df16;
  return hn::Mul(hn::PromoteTo(ElementsF32(), hn::BitCast(df16, hn::Or(half, nan))), hn::Set(ElementsF32(), 256.0f));
#else
  HWY_ALIGN float lanes[kF32Lanes];
  for (int64_t i = 0; i < kF32Lanes; ++i) lanes[i] = static_cast<float>(p[i]);
  return hn::Load(ElementsF32(), lanes);
#endif
}

HWY_INLINE void store_elements(F32 value, float* p) { hwy::HWY_NAMESPACE::StoreU(value, ElementsF32(), p); }

/// Rounds to nearest even; NaN stays NaN.
HWY_INLINE void store_elements(F32 value, bf16* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ElementsU32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(ElementsU16(), hn::ShiftRight<16>(chosen)), ElementsU16(), reinterpret_cast<uint16_t*>(p));
}

/// The first n elements, 0 < n < lanes; the other lanes are `filler`.
template <typename T>
HWY_INLINE F32 load_some(const T* p, int64_t n, float filler = 0) {
  HWY_ALIGN float lanes[kF32Lanes];
  for (int64_t i = 0; i < kF32Lanes; ++i) lanes[i] = i < n ? static_cast<float>(p[i]) : filler;
  return hwy::HWY_NAMESPACE::Load(ElementsF32(), lanes);
}

/// Stores the first n elements, 0 < n < lanes.
template <typename T>
HWY_INLINE void store_some(F32 value, int64_t n, T* p) {
  HWY_ALIGN T lanes[kF32Lanes];
  store_elements(value, lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
