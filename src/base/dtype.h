#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace weft {

/// Element types of tensors. The spelling in messages is `to_string`, which is also PyTorch's.
enum class DType : uint8_t { f32, bf16, f16, f8_e4m3, i32, i64, u8, u64 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f8_e4m3:
    case DType::u8:
      return 1;
    case DType::i64:
    case DType::u64:
      return 8;
  }
  return 0;
}

constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f8_e4m3:
      return "float8_e4m3fn";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u8:
      return "uint8";
    case DType::u64:
      return "uint64";
  }
  return "?";
}

/// bfloat16: the upper half of a float32, rounded to nearest even.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit constexpr bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

/// IEEE half precision to float, exact.
constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

/// OCP float8 e4m3fn to float, exact: bias 7, no infinities, NaN is 0x7f and 0xff, largest value 448.
constexpr float f8_e4m3_to_float(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  float magnitude = 0;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    magnitude = std::bit_cast<float>(static_cast<uint32_t>(exponent + 120) << 23 | static_cast<uint32_t>(mantissa) << 20);
  }
  return (bits & 128) != 0 ? -magnitude : magnitude;
}

/// The nearest e4m3fn, ties to even. What is too large, infinities included, becomes the largest value, 448; NaN stays NaN.
constexpr uint8_t f8_e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>((bits >> 24) & 128u);
  uint32_t code = 0x7e;
  if (magnitude > 0x7f800000u) {
    code = 0x7f;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: a multiple of 2^-9, which is the unit in the last place of 2^14.
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  } else if (magnitude < std::bit_cast<uint32_t>(448.0f)) {
    code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  }
  return static_cast<uint8_t>(sign | code);
}

/// One element of float8 e4m3fn.
struct f8_e4m3 {
  uint8_t bits = 0;
  f8_e4m3() = default;
  explicit constexpr f8_e4m3(float value) : bits(f8_e4m3_from_float(value)) {}
  explicit constexpr operator float() const { return f8_e4m3_to_float(bits); }
};
static_assert(sizeof(f8_e4m3) == 1);

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f8_e4m3> {
  static constexpr DType value = DType::f8_e4m3;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<uint64_t> {
  static constexpr DType value = DType::u64;
};

}  // namespace weft
