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

/// Two vectors that follow one another in memory. Some types are cheaper to load in twos.
struct F32Pair {
  F32 v[2];
};

HWY_INLINE F32 load_elements(const float* p) { return hwy::HWY_NAMESPACE::LoadU(ElementsF32(), p); }

HWY_INLINE F32 load_elements(const bf16* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto half = hn::LoadU(ElementsU16(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(ElementsF32(), hn::ShiftLeft<16>(hn::PromoteTo(ElementsU32(), half)));
}

template <typename T>
HWY_INLINE F32Pair load_two(const T* p) {
  return {load_elements(p), load_elements(p + kF32Lanes)};
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// float8 e4m3 as half precision, divided by 256: its bits in their places there, subnormals included. With the sign extended
/// to 16 bits and shifted by 7, only bit 14 does not belong there. Code 0x7f is the only one that a unit in its last place
/// carries into the top bit of the exponent: that makes it the NaN which it stands for.
template <class D16>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D16> half_of_f8(D16 d, const f8_e4m3* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int8_t, D16> bytes;
  const auto wide = hn::ShiftLeft<7>(hn::PromoteTo(d, hn::LoadU(bytes, reinterpret_cast<const int8_t*>(p))));
  const auto half = hn::And(wide, hn::Set(d, static_cast<int16_t>(0xbfff)));
  return hn::OrAnd(half, hn::Add(half, hn::Set(d, 0x80)), hn::Set(d, 0x4000));
}

template <class V16>
HWY_INLINE F32 f8_of_half(V16 half) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<hwy::float16_t, ElementsF32> d;
  return hn::Mul(hn::PromoteTo(ElementsF32(), hn::BitCast(d, half)), hn::Set(ElementsF32(), 256.0f));
}

HWY_INLINE F32 load_elements(const f8_e4m3* p) {
  return f8_of_half(half_of_f8(hwy::HWY_NAMESPACE::Rebind<int16_t, ElementsF32>(), p));
}

HWY_INLINE F32Pair load_two(const f8_e4m3* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<int16_t, 2 * kF32Lanes> both;
  const auto half = half_of_f8(both, p);
  return {f8_of_half(hn::LowerHalf(hn::Half<decltype(both)>(), half)),
          f8_of_half(hn::UpperHalf(hn::Half<decltype(both)>(), half))};
}
#else
HWY_INLINE F32 load_elements(const f8_e4m3* p) {
  HWY_ALIGN float lanes[kF32Lanes];
  for (int64_t i = 0; i < kF32Lanes; ++i) lanes[i] = static_cast<float>(p[i]);
  return hwy::HWY_NAMESPACE::Load(ElementsF32(), lanes);
}
HWY_INLINE F32Pair load_two(const f8_e4m3* p) { return {load_elements(p), load_elements(p + kF32Lanes)}; }
#endif

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

/// Requires: the value is one of bfloat16. Keeps its upper half.
HWY_INLINE void store_exactly(F32 value, bf16* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto bits = hn::ShiftRight<16>(hn::BitCast(ElementsU32(), value));
  hn::StoreU(hn::TruncateTo(ElementsU16(), bits), ElementsU16(), reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void store_exactly(F32 value, float* p) { store_elements(value, p); }

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
