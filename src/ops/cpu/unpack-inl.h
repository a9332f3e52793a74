// Stored keys and values as float32 or bfloat16. Compiled once per instruction set.

#if defined(WEFT_OPS_CPU_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_UNPACK_INL_H_
#undef WEFT_OPS_CPU_UNPACK_INL_H_
#else
#define WEFT_OPS_CPU_UNPACK_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "layout/kv_view.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

/// `count` adjacent elements, into a type that holds all of In's numbers; the scale of float8_e4m3 is left to the caller, who
/// can multiply sums with it.
template <typename In, typename Out>
void unpack_elements(const void* in, int64_t count, Out* out) {
  const In* from = static_cast<const In*>(in);
  int64_t i = 0;
  for (; i + 2 * kF32Lanes <= count; i += 2 * kF32Lanes) {
    const F32Pair pair = load_two(from + i);
    store_exactly(pair.v[0], out + i);
    store_exactly(pair.v[1], out + i + kF32Lanes);
  }
  for (; i < count; ++i) out[i] = Out(static_cast<float>(from[i]));
}

/// The latent and rope part of a fp8_ds_mla row, multiplied with the scales in it.
template <typename Out>
void unpack_fp8_ds_mla(const void* row, int64_t latent_dim, int64_t rope_dim, Out* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto* codes = static_cast<const f8_e4m3*>(row);
  const auto* scales = reinterpret_cast<const std::byte*>(codes + latent_dim);
  for (int64_t group = 0; group < latent_dim; group += kLatentScaleGroup, scales += sizeof(float)) {
    float scale = 0;
    std::memcpy(&scale, scales, sizeof(float));
    const F32 factor = hn::Set(ElementsF32(), scale);
    for (int64_t i = group; i < group + kLatentScaleGroup; i += 2 * kF32Lanes) {
      const F32Pair pair = load_two(codes + i);
      store_elements(hn::Mul(pair.v[0], factor), out + i);
      store_elements(hn::Mul(pair.v[1], factor), out + i + kF32Lanes);
    }
  }
  unpack_elements<bf16>(scales, rope_dim, out + latent_dim);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
