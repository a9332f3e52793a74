#include "base/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace weft {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{63}, size_t{64}, size_t{4097}, (size_t{4} << 20) - 1, size_t{4} << 20, (size_t{5} << 20) + 3}) {
    const Buffer buffer = Buffer::host(bytes);
    ASSERT_EQ(buffer.bytes(), bytes);
    const size_t alignment = bytes >= size_t{4} << 20 ? size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0U) << bytes;
    for (size_t i = 0; i < bytes; i += 61) ASSERT_EQ(buffer.data()[i], std::byte{0}) << bytes << " at " << i;
    buffer.data()[bytes - 1] = std::byte{1};
  }
}

TEST(Buffer, NothingIsAskedForNothing) {
  const Buffer buffer = Buffer::host(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0U);
}

TEST(Buffer, AnImpossibleSizeIsASystemError) {
  EXPECT_THROW(Buffer::host(SIZE_MAX), SystemError);
  EXPECT_THROW(Buffer::host(SIZE_MAX / 2), SystemError);
}

TEST(Buffer, GivesItsBytesBackOnceAndAfterAMoveFromTheNewOwner) {
  int freed = 0;
  char memory[4];
  {
    Buffer first(memory, 4, [&](void* data) { freed += data == memory; });
    Buffer second = std::move(first);
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): on purpose
    EXPECT_EQ(second.data(), reinterpret_cast<std::byte*>(memory));
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

/// 2 x 3 x 4 numbers 0, 1, 2, ...
class ViewTest : public ::testing::Test {
 protected:
  ViewTest() { std::iota(values_.begin(), values_.end(), 0.0f); }
  static float first(const ConstView& view) { return *view.as<float>(); }

  std::array<float, 24> values_;
  View view_{values_.data(), DType::f32, {2, 3, 4}};
};

TEST_F(ViewTest, KnowsItsShape) {
  EXPECT_EQ(view_.dims(), 3);
  EXPECT_EQ(view_.count(), 24);
  EXPECT_EQ(view_.bytes(), 96U);
  EXPECT_EQ(view_.stride(0), 12);
  EXPECT_EQ(view_.stride(1), 4);
  EXPECT_EQ(view_.stride(2), 1);
  EXPECT_TRUE(view_.is_contiguous());
  EXPECT_FALSE(view_.empty());
  EXPECT_TRUE(View().empty());
}

TEST_F(ViewTest, SlicesEachDimension) {
  const View columns = view_.slice(2, 1, 2);
  EXPECT_EQ(first(columns), 1);
  EXPECT_EQ(columns.size(2), 2);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(first(columns.at(1).at(2)), 21);
  EXPECT_EQ(first(view_.slice(1, 2, 1)), 8);
  EXPECT_EQ(first(view_.rows(1, 1)), 12);
  EXPECT_TRUE(view_.rows(1, 1).is_contiguous());
  EXPECT_EQ(view_.rows(2, 0).count(), 0) << "an empty slice at the end";
}

TEST_F(ViewTest, TakesOneOfTheFirstDimension) {
  const View second = view_.at(1);
  EXPECT_EQ(second.dims(), 2);
  EXPECT_EQ(second.size(0), 3);
  EXPECT_EQ(first(second), 12);
  EXPECT_EQ(first(second.at(2)), 20);
}

TEST_F(ViewTest, SplitsTheLastDimension) {
  const View split = view_.split_last(2);
  EXPECT_EQ(split.dims(), 4);
  EXPECT_EQ(split.size(2), 2);
  EXPECT_EQ(split.size(3), 2);
  EXPECT_TRUE(split.is_contiguous());
  EXPECT_EQ(first(split.at(0).at(1).at(1)), 6);
  // Also where the last dimension is a part of a wider row.
  EXPECT_EQ(first(view_.slice(2, 2, 2).at(0).split_last(2).at(1).at(1)), 7);
}

TEST_F(ViewTest, StridesMayBeGiven) {
  const View transposed(values_.data(), DType::f32, {4, 6}, {1, 4});
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_EQ(first(transposed.at(3).slice(0, 5, 1)), 23);
}

TEST_F(ViewTest, ADimensionOfOneMayHaveAnyStride) {
  EXPECT_TRUE(View(values_.data(), DType::f32, {1, 4}, {99, 1}).is_contiguous());
}

TEST_F(ViewTest, ReadsWhereverAConstViewIsWanted) {
  const ConstView read = view_;
  EXPECT_EQ(read.data(), view_.data());
  EXPECT_EQ(first(read.rows(1, 1)), 12);
  static_assert(std::is_same_v<decltype(read.as<float>()), const float*>);
  static_assert(std::is_same_v<decltype(view_.as<float>()), float*>);
  static_assert(!std::is_convertible_v<ConstView, View>);
}

using ViewDeathTest = ViewTest;

TEST_F(ViewDeathTest, RefusesWhatLiesOutside) {
  EXPECT_DEATH(view_.slice(1, 2, 2), "slice \\[2, \\+2\\) of dimension 1 of size 3");
  EXPECT_DEATH(view_.slice(3, 0, 1), "dimension 3");
  EXPECT_DEATH(view_.rows(-1, 1), "slice");
  EXPECT_DEATH(view_.at(2), "index 2");
  EXPECT_DEATH(view_.at(0).at(0).at(0), "index 0");
  EXPECT_DEATH(view_.split_last(3), "parts 3");
  EXPECT_DEATH(view_.as<int32_t>(), "view holds float32");
  EXPECT_DEATH(View(values_.data(), DType::f32, {1, 1, 1, 1, 1}), "check failed");
}

}  // namespace
}  // namespace weft
