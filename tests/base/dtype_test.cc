#include "base/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

static_assert(float(bf16(1.0f)) == 1.0f);
static_assert(bf16(1.0f).bits == 0x3f80);
static_assert(f16_to_float(0x3c00) == 1.0f);
static_assert(f8_e4m3_to_float(0x38) == 1.0f);
static_assert(f8_e4m3_from_float(1.0f) == 0x38);

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
bool negative(uint32_t sign_bit) { return sign_bit != 0; }

/// Round to nearest even, by distance: the nearer of the two bf16 neighbours in magnitude, the even one on a tie.
uint16_t nearest_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto below = static_cast<uint16_t>(bits >> 16), above = static_cast<uint16_t>(below + 1);
  // The upper neighbour of the largest finite value counts as the next power of two, also where its bits spell infinity.
  const double low = std::fabs(static_cast<double>(from_bits(uint32_t{below} << 16)));
  const double high = (above & 0x7fff) == 0x7f80 ? 0x1p128 : std::fabs(static_cast<double>(from_bits(uint32_t{above} << 16)));
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude - low != high - magnitude) return magnitude - low < high - magnitude ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f16), 2U);
  EXPECT_EQ(size_of(DType::f8_e4m3), 1U);
  EXPECT_EQ(size_of(DType::i32), 4U);
  EXPECT_EQ(size_of(DType::i64), 8U);
  EXPECT_EQ(size_of(DType::u8), 1U);
  EXPECT_EQ(size_of(DType::u64), 8U);
  EXPECT_STREQ(to_string(DType::bf16), "bfloat16");
  EXPECT_STREQ(to_string(DType::f8_e4m3), "float8_e4m3fn");
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(bf16(wide)))) << bits;
    } else {
      ASSERT_EQ(bf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEvenAroundEveryValue) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = from_bits(upper << 16 | lower);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(bf16(value).bits, nearest_bf16(value)) << std::hexfloat << value;
    }
}

TEST(Bf16, RoundsRandomFloatsToNearestEven) {
  for_each_case([](Gen& gen) {
    for (int i = 0; i < 1000; ++i) {
      const float value = from_bits(static_cast<uint32_t>(gen.bits()));
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(bf16(value).bits, nearest_bf16(value)) << std::hexfloat << value;
    }
  });
}

TEST(Bf16, KeepsInfinityNanAndSignedZero) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(bf16(kInf)), kInf);
  EXPECT_EQ(static_cast<float>(bf16(-kInf)), -kInf);
  EXPECT_EQ(static_cast<float>(bf16(std::numeric_limits<float>::max())), kInf) << "past the last half step";
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  // A NaN whose payload lies in the lower half alone must not become infinity, one of all ones must not wrap around.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(from_bits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(from_bits(0x7fffffff)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(from_bits(0xffffffff)))));
}

TEST(F16, EveryValueFollowsTheFormula) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float got = f16_to_float(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10) & 31, mantissa = static_cast<int>(bits & 1023);
    ASSERT_EQ(std::signbit(got), negative(bits & 0x8000)) << bits;
    if (exponent == 31) {
      ASSERT_EQ(std::isinf(got), mantissa == 0) << bits;
      ASSERT_EQ(std::isnan(got), mantissa != 0) << bits;
    } else {
      const double wanted = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(std::fabs(static_cast<double>(got)), wanted) << bits;
    }
  }
}

TEST(F8E4m3, EveryValueFollowsTheFormula) {
  for (int bits = 0; bits < 256; ++bits) {
    const float got = f8_e4m3_to_float(static_cast<uint8_t>(bits));
    const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    if ((bits & 127) == 127) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      continue;
    }
    const double wanted = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    ASSERT_EQ(std::fabs(static_cast<double>(got)), wanted) << bits;
    ASSERT_EQ(std::signbit(got), bits >= 128) << bits;
  }
  EXPECT_EQ(f8_e4m3_to_float(0x7e), 448.0f);
}

TEST(F8E4m3, EveryCodeSurvivesTheRoundTrip) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    ASSERT_EQ(f8_e4m3_from_float(f8_e4m3_to_float(code)), code) << bits;
  }
}

TEST(F8E4m3, RoundsToNearestEvenBetweenEveryTwoNeighbours) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const auto low = static_cast<uint8_t>(bits), high = static_cast<uint8_t>(bits + 1);
    const float below = f8_e4m3_to_float(low), above = f8_e4m3_to_float(high), middle = (below + above) / 2;  // exact
    const uint8_t even = bits % 2 == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      const auto signed_code = [&](uint8_t code) { return sign < 0 ? code | 128 : code; };
      ASSERT_EQ(f8_e4m3_from_float(sign * middle), signed_code(even)) << middle;
      ASSERT_EQ(f8_e4m3_from_float(sign * std::nextafter(middle, 0.0f)), signed_code(low)) << middle;
      ASSERT_EQ(f8_e4m3_from_float(sign * std::nextafter(middle, 500.0f)), signed_code(high)) << middle;
      ASSERT_EQ(f8_e4m3_from_float(sign * std::nextafter(below, 500.0f)), signed_code(low)) << below;
      ASSERT_EQ(f8_e4m3_from_float(sign * std::nextafter(above, 0.0f)), signed_code(high)) << above;
    }
  }
}

TEST(F8E4m3, KnownValues) {
  EXPECT_EQ(static_cast<float>(f8_e4m3(0.3f)), 0.3125f);
  EXPECT_EQ(static_cast<float>(f8_e4m3(500.0f)), 448.0f) << "saturates";
  EXPECT_EQ(static_cast<float>(f8_e4m3(0.001f)), 0x1p-9f) << "the smallest step";
  EXPECT_EQ(f8_e4m3_from_float(0x1p-10f), 0) << "half the smallest step is a tie, and 0 is even";
  EXPECT_EQ(f8_e4m3_from_float(0x1.8p-9f), 2);
}

TEST(F8E4m3, SaturatesAndKeepsNanAndSignedZero) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float large : {448.0f, 456.0f, 464.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(f8_e4m3_from_float(large), 0x7e) << large;
    EXPECT_EQ(f8_e4m3_from_float(-large), 0xfe) << large;
  }
  EXPECT_EQ(f8_e4m3_from_float(-0.0f), 0x80);
  EXPECT_EQ(f8_e4m3_from_float(-1e-30f), 0x80);
  EXPECT_EQ(f8_e4m3_from_float(from_bits(0x7f800001)), 0x7f);
  EXPECT_EQ(f8_e4m3_from_float(from_bits(0xffffffff)), 0xff);
}

}  // namespace
}  // namespace weft
