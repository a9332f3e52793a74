#include "base/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace weft {
namespace {

TEST(Queue, GivesBackInOrder) {
  Queue<int> queue(3);
  int value = 1;
  EXPECT_TRUE(queue.try_push(value));
  EXPECT_TRUE(queue.push(2));
  EXPECT_EQ(queue.try_pop(), 1);
  EXPECT_TRUE(queue.push(3));
  EXPECT_TRUE(queue.push(4));  // around the end of the memory
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_EQ(queue.try_pop(), 2);
  EXPECT_EQ(queue.pop(), 3);
  EXPECT_EQ(queue.pop(), 4);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
}

TEST(Queue, AFullOneLeavesTheValueWithItsOwner) {
  Queue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.try_push(first));
  EXPECT_EQ(first, nullptr);
  EXPECT_FALSE(queue.try_push(second));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

TEST(Queue, AClosedOneGivesWhatItHasAndTakesNothing) {
  Queue<int> queue(2);
  queue.push(1);
  queue.close();
  int value = 2;
  EXPECT_FALSE(queue.push(2));
  EXPECT_FALSE(queue.try_push(value));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(Queue, CloseWakesThoseWhoWait) {
  Queue<int> empty(1), full(1);
  full.push(1);
  std::thread reader([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  std::thread writer([&] { EXPECT_FALSE(full.push(2)); });
  empty.close();
  full.close();
  reader.join();
  writer.join();
}

TEST(Queue, ManyWritersLoseNothingAndKeepTheirOrder) {
  constexpr int kWriters = 4, kEach = 2000;
  Queue<std::pair<int, int>> queue(7);
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(queue.push({writer, i}));
    });
  int next[kWriters] = {};
  for (int i = 0; i < kWriters * kEach; ++i) {
    const auto got = queue.pop();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->second, next[got->first]++);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace weft
