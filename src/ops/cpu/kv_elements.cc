#include "ops/cpu/kv_elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "layout/kv_view.h"

namespace weft::cpu {
namespace {

constexpr auto kFp8Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = f8_e4m3_to_float(static_cast<uint8_t>(code));
  return values;
}();

template <typename In, typename Out>
void convert(const In* in, int64_t count, float scale, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Out, f8_e4m3>) {
      out[i] = f8_e4m3(static_cast<float>(in[i]) / scale);
    } else if constexpr (std::is_same_v<In, f8_e4m3>) {
      out[i] = Out(kFp8Values[in[i].bits] * scale);
    } else {
      out[i] = Out(static_cast<float>(in[i]));
    }
  }
}

/// Calls body with a pointer to the elements.
template <typename Body>
void with_type(const void* data, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(static_cast<const float*>(data));
    case DType::bf16:
      return body(static_cast<const bf16*>(data));
    case DType::f8_e4m3:
      return body(static_cast<const f8_e4m3*>(data));
    default:
      WEFT_CHECK(false) << "numbers of type " << to_string(dtype);
  }
}

// Magnitude of the largest number; infinity counts as the largest finite one, NaN not at all.
template <typename T>
float largest_of(const T* in, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(static_cast<float>(in[i])));
  return std::min(largest, std::numeric_limits<float>::max());
}

}  // namespace

void copy_elements(const void* in, DType in_dtype, int64_t count, void* out, DType out_dtype, float scale) {
  if (in_dtype == out_dtype) {
    std::memcpy(out, in, static_cast<size_t>(count) * size_of(in_dtype));
    return;
  }
  with_type(in, in_dtype, [&](const auto* from) {
    with_type(out, out_dtype, [&](const auto* to) {
      using Out = std::remove_cvref_t<decltype(*to)>;
      convert(from, count, scale, static_cast<Out*>(out));
    });
  });
}

void store_fp8_ds_mla(const void* latent, int64_t latent_dim, const void* rope, int64_t rope_dim, DType dtype, void* row) {
  auto* codes = static_cast<std::byte*>(row);
  std::byte* scales = codes + latent_dim;
  with_type(latent, dtype, [&](const auto* in) {
    for (int64_t i = 0; i < latent_dim; i += kLatentScaleGroup, scales += sizeof(float)) {
      const float scale = std::max(largest_of(in + i, kLatentScaleGroup) / 448, std::numeric_limits<float>::min());
      copy_elements(in + i, dtype, kLatentScaleGroup, codes + i, DType::f8_e4m3, scale);
      std::memcpy(scales, &scale, sizeof(float));
    }
  });
  copy_elements(rope, dtype, rope_dim, scales, DType::bf16);
}

void load_fp8_ds_mla(const void* row, int64_t latent_dim, int64_t rope_dim, void* out, DType dtype) {
  const auto* codes = static_cast<const std::byte*>(row);
  const std::byte* scales = codes + latent_dim;
  auto* to = static_cast<std::byte*>(out);
  const int64_t group_bytes = kLatentScaleGroup * static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < latent_dim; i += kLatentScaleGroup, scales += sizeof(float), to += group_bytes) {
    float scale = 0;
    std::memcpy(&scale, scales, sizeof(float));
    copy_elements(codes + i, DType::f8_e4m3, kLatentScaleGroup, to, dtype, scale);
  }
  copy_elements(scales, DType::bf16, rope_dim, to, dtype);
}

}  // namespace weft::cpu
