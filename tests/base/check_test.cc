#include "base/check.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Check, HoldsSilentlyAndEvaluatesOnce) {
  int calls = 0;
  const auto next = [&] { return ++calls; };
  WEFT_CHECK(next() == 1) << "never built";
  WEFT_CHECK_EQ(next(), 2);
  WEFT_CHECK_LT(next(), 4) << "never built";
  EXPECT_EQ(calls, 3);
}

TEST(Check, BindsAsOneStatement) {
  bool other = false;
  if (other == false)
    WEFT_CHECK_EQ(1, 1);
  else
    other = true;
  EXPECT_FALSE(other);
}

TEST(CheckDeathTest, PrintsTheConditionBothValuesAndTheMessage) {
  const int local = 7, count = 5;
  EXPECT_DEATH(WEFT_CHECK(local < count) << "sequence " << 12, "check_test.cc:[0-9]+: check failed: local < count sequence 12");
  EXPECT_DEATH(WEFT_CHECK_EQ(local, count), "check failed: local == count \\(7 vs 5\\)");
  EXPECT_DEATH(WEFT_CHECK_NE(local, local), "check failed: local != local \\(7 vs 7\\)");
  EXPECT_DEATH(WEFT_CHECK_LT(local, count) << "past the end", "check failed: local < count \\(7 vs 5\\) past the end");
  EXPECT_DEATH(WEFT_CHECK_LE(local, count), "local <= count");
  EXPECT_DEATH(WEFT_CHECK_GT(count, local), "count > local");
  EXPECT_DEATH(WEFT_CHECK_GE(count, local), "count >= local");
}

TEST(CheckDeathTest, PrintsSmallIntegersAsNumbers) {
  const uint8_t a = 65;
  EXPECT_DEATH(WEFT_CHECK_EQ(a, uint8_t{66}), "\\(65 vs 66\\)");
}

TEST(Errors, FormatTheirMessages) {
  EXPECT_STREQ(UserError("dcp {} of {}", 3, 8).what(), "dcp 3 of 8");
  EXPECT_STREQ(UserError("a brace { as it is").what(), "a brace { as it is");
  EXPECT_STREQ(SystemError("{} bytes", 10).what(), "10 bytes");
}

}  // namespace
}  // namespace weft
