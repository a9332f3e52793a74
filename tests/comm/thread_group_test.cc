#include "comm/thread_group.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"

namespace weft {
namespace {

/// Runs body(communicator) for every rank of a fresh group on a thread of its own.
template <typename Body>
void on_all_ranks(ThreadGroup& group, Body body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&group, rank, &body] {
      const auto communicator = group.join(rank);
      body(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadGroup, AllGatherMayFindItsInputInPlace) {
  ThreadGroup group(3);
  on_all_ranks(group, [](Communicator& comm) {
    std::array<int32_t, 3> out{-1, -1, -1};
    out[static_cast<size_t>(comm.rank())] = 10 * comm.rank();
    comm.all_gather(View(&out[static_cast<size_t>(comm.rank())], DType::i32, {1}), View(out.data(), DType::i32, {3, 1}));
    EXPECT_EQ(out, (std::array<int32_t, 3>{0, 10, 20}));
  });
}

TEST(ThreadGroup, AGroupOfOneWorksInPlace) {
  ThreadGroup group(1);
  const auto comm = group.join(0);
  float value = 3;
  const View view(&value, DType::f32, {1});
  comm->all_gather(view, view);
  comm->all_to_all(view, view);
  comm->all_reduce_sum(view);
  EXPECT_EQ(value, 3);
}

TEST(ThreadGroup, RanksThatComeLateAreWaitedForAsleep) {
  // Longer than any spinning, in both directions.
  ThreadGroup group(2);
  on_all_ranks(group, [](Communicator& comm) {
    for (int turn = 0; turn < 4; ++turn) {
      if (turn % 2 == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      float value = 1;
      comm.all_reduce_sum(View(&value, DType::f32, {1}));
      EXPECT_EQ(value, 2);
    }
  });
}

TEST(ThreadGroup, ManyCallsInARowKeepTheirTurns) {
  for (const int size : {2, 5, 8}) {
    ThreadGroup group(size);
    on_all_ranks(group, [size](Communicator& comm) {
      for (int turn = 0; turn < 2000; ++turn) {
        std::array<int32_t, 8> out{};
        const int32_t mine = turn * size + comm.rank();
        comm.all_gather(ConstView(&mine, DType::i32, {1}), View(out.data(), DType::i32, {size, 1}));
        for (int rank = 0; rank < size; ++rank) ASSERT_EQ(out[static_cast<size_t>(rank)], turn * size + rank);
      }
    });
  }
}

TEST(ThreadGroup, AnOnlookerCanAbort) {
  ThreadGroup group(2);
  std::thread onlooker([&group] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    group.abort();
  });
  const auto comm = group.join(0);
  float value = 1;
  EXPECT_THROW(comm->all_reduce_sum(View(&value, DType::f32, {1})), SystemError);
  onlooker.join();
}

TEST(ThreadGroup, AnAbortInTheMidstOfCallsNeverSplitsTheGroup) {
  // Whenever the abort comes, the ranks complete the same number of calls, and nobody hangs.
  for (int round = 0; round < 50; ++round) {
    constexpr int kRanks = 3;
    ThreadGroup group(kRanks);
    std::array<int, kRanks> completed{};
    std::thread onlooker([&group, round] {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
      group.abort();
    });
    on_all_ranks(group, [&completed](Communicator& comm) {
      std::vector<float> values(64);  // freed when the rank unwinds: a peer that still reads it is seen by the sanitizers
      try {
        for (;; ++completed[static_cast<size_t>(comm.rank())]) {
          comm.all_reduce_sum(View(values.data(), DType::f32, {64}));
        }
      } catch (const SystemError&) {
      }
    });
    onlooker.join();
    EXPECT_EQ(completed[0], completed[1]);
    EXPECT_EQ(completed[0], completed[2]);
  }
}

using ThreadGroupDeathTest = ::testing::Test;

TEST(ThreadGroupDeathTest, DifferentSizesNameBoth) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto mismatch = [] {
    ThreadGroup group(2);
    on_all_ranks(group, [](Communicator& comm) {
      std::array<float, 2> data{};
      comm.all_reduce_sum(View(data.data(), DType::f32, {1 + comm.rank()}));
    });
  };
  EXPECT_DEATH(mismatch(), "(4 vs 8|8 vs 4).*different sizes");
}

TEST(ThreadGroupDeathTest, DifferentCallsDie) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto mismatch = [] {
    ThreadGroup group(2);
    on_all_ranks(group, [](Communicator& comm) {
      std::array<float, 2> in{}, out{};
      if (comm.rank() == 0) {
        comm.all_to_all(ConstView(in.data(), DType::f32, {2}), View(out.data(), DType::f32, {2}));
      } else {
        comm.all_reduce_sum(View(in.data(), DType::f32, {2}));
      }
    });
  };
  EXPECT_DEATH(mismatch(), "different collective calls");
}

TEST(ThreadGroupDeathTest, ARankJoinsOnce) {
  ThreadGroup group(2);
  const auto comm = group.join(1);
  EXPECT_DEATH(group.join(1), "joined twice");
  EXPECT_DEATH(group.join(2), "rank 2 of 2");
}

}  // namespace
}  // namespace weft
