#include "ops/cpu/pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/check.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

TEST(Pool, RunsEveryTaskOnce) {
  Pool pool(2);
  std::vector<int> seen(5, 0);
  pool.run(5, [&](int64_t i, int) { ++seen[static_cast<size_t>(i)]; });
  EXPECT_EQ(seen, (std::vector<int>{1, 1, 1, 1, 1}));
}

TEST(Pool, RunsEveryTaskOnceForAnyCounts) {
  for_each_case(
      [](Gen& gen) {
        Pool pool(static_cast<int>(gen.in(1, 9)));
        for (int job = 0; job < 20; ++job) {
          std::vector<int> seen(static_cast<size_t>(gen.in(0, 40)), 0);
          std::atomic<int> strangers = 0;
          pool.run(static_cast<int64_t>(seen.size()), [&](int64_t i, int thread) {
            ++seen[static_cast<size_t>(i)];
            if (thread < 0 || thread >= pool.threads()) ++strangers;
          });
          EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
          EXPECT_EQ(strangers, 0);
        }
      },
      30);
}

TEST(Pool, ManyTinyJobsInARow) {
  Pool pool(3);
  std::atomic<int64_t> sum = 0;
  for (int job = 0; job < 20000; ++job) pool.run(4, [&](int64_t i, int) { sum += i; });
  EXPECT_EQ(sum, 20000 * 6);
}

TEST(Pool, WorkersThatFellAsleepWakeUp) {
  Pool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // Both tasks wait for each other: this ends only if two threads run them.
    std::atomic<int> arrived = 0;
    pool.run(2, [&](int64_t, int) {
      ++arrived;
      while (arrived != 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(Pool, ThreadNumbersAreNotSharedByTasksAtTheSameTime) {
  Pool pool(4);
  std::vector<std::atomic<int>> users(4);
  std::atomic<int> clashes = 0;
  pool.run(2000, [&](int64_t, int thread) {
    if (users[static_cast<size_t>(thread)].fetch_add(1) != 0) ++clashes;
    users[static_cast<size_t>(thread)].fetch_sub(1);
  });
  EXPECT_EQ(clashes, 0);
}

TEST(Pool, AnExceptionArrivesAtTheCallerAndThePoolGoesOn) {
  for (int threads : {1, 2, 5}) {
    Pool pool(threads);
    EXPECT_THROW(pool.run(100,
                          [](int64_t i, int) {
                            if (i == 17) throw std::runtime_error("seventeen");
                          }),
                 std::runtime_error);
    EXPECT_THROW(pool.run(100, [](int64_t, int) { throw std::runtime_error("all"); }), std::runtime_error);
    std::atomic<int> count = 0;
    pool.run(100, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count, 100);
  }
}

TEST(Pool, SeveralPoolsWorkSideBySide) {
  std::vector<std::thread> ranks;
  std::atomic<int64_t> sum = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      Pool pool(2);
      for (int job = 0; job < 500; ++job) pool.run(3, [&](int64_t, int) { ++sum; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sum, 4 * 500 * 3);
}

TEST(Pool, CanBeDestroyedIdle) {
  for (int round = 0; round < 50; ++round) Pool pool(4);
  Pool used(4);
  used.run(10, [](int64_t, int) {});
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // These need more address space than the limit leaves.
TEST(PoolDeathTest, ThreadsThatTheSystemRefusesAreAnErrorLikeAnyOther) {
  const auto start_a_thousand = [] {
    const rlimit limit{.rlim_cur = rlim_t{1} << 30, .rlim_max = RLIM_INFINITY};  // room for the stacks of about a hundred
    setrlimit(RLIMIT_AS, &limit);
    try {
      Pool pool(1000);
    } catch (const SystemError& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(start_a_thousand(), testing::ExitedWithCode(1), "cannot start the threads of a rank: .* threads 1000, started");
}
#endif

}  // namespace
}  // namespace weft
