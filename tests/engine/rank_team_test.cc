#include "engine/rank_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/thread_group.h"
#include "support/prop.h"

namespace weft {
namespace {

/// A team with one group over all its ranks.
struct TeamWithGroup {
  explicit TeamWithGroup(int ranks)
      : group(ranks), team(ranks, [this] {
          ++aborts;
          group.abort();
        }) {
    for (int rank = 0; rank < ranks; ++rank) communicators.push_back(group.join(rank));
  }
  void meet(int rank) {
    float value = 1;
    communicators[static_cast<size_t>(rank)]->all_reduce_sum(View(&value, DType::f32, {1}));
    ASSERT_EQ(value, static_cast<float>(team.ranks()));
  }

  ThreadGroup group;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::atomic<int> aborts{0};
  RankTeam team;
};

std::string error_of(RankTeam& team, const RankTeam::Job& job) {
  try {
    team.run(job);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

TEST(RankTeam, RunsAJobOnceOnEachRanksOwnThread) {
  RankTeam team(4, [] {});
  std::vector<std::thread::id> threads(4);
  std::vector<int> calls(4);
  team.run([&](int rank) { threads[static_cast<size_t>(rank)] = std::this_thread::get_id(); });
  for (int turn = 0; turn < 500; ++turn) {
    team.run([&](int rank) {
      EXPECT_EQ(threads[static_cast<size_t>(rank)], std::this_thread::get_id());
      ++calls[static_cast<size_t>(rank)];
    });
  }
  EXPECT_EQ(calls, std::vector<int>(4, 500));
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_NE(threads[a], std::this_thread::get_id());
    for (size_t b = 0; b < a; ++b) EXPECT_NE(threads[a], threads[b]);
  }
}

TEST(RankTeam, JobsMeetInCollectives) {
  for (const int ranks : {1, 2, 8}) {
    TeamWithGroup both(ranks);
    for (int turn = 0; turn < 200; ++turn) both.team.run([&](int rank) { both.meet(rank); });
  }
}

TEST(RankTeam, RanksThatSleptBetweenRunsWakeUp) {
  TeamWithGroup both(3);
  for (int turn = 0; turn < 3; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    both.team.run([&](int rank) { both.meet(rank); });
  }
}

TEST(RankTeam, ThrowsTheErrorOfTheRankThatFailedWhileOthersWait) {
  TeamWithGroup both(3);
  EXPECT_EQ(error_of(both.team,
                     [&](int rank) {
                       if (rank == 1) {
                         std::this_thread::sleep_for(std::chrono::milliseconds(5));
                         throw UserError("tensor is missing");
                       }
                       both.meet(rank);
                     }),
            "tensor is missing");
  EXPECT_EQ(both.aborts, 1);
}

TEST(RankTeam, KeepsTheTypeOfTheError) {
  TeamWithGroup both(2);
  EXPECT_THROW(both.team.run([&](int rank) {
    if (rank == 1) throw UserError("the checkpoint is wrong");
    both.meet(rank);
  }),
               UserError);
}

TEST(RankTeam, WakesRanksThatComeToTheCollectiveAfterTheFailure) {
  TeamWithGroup both(3);
  EXPECT_EQ(error_of(both.team,
                     [&](int rank) {
                       if (rank == 0) throw SystemError("disk is gone");
                       std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       both.meet(rank);
                     }),
            "disk is gone");
}

TEST(RankTeam, WaitsForRanksThatNeverMeetAgain) {
  TeamWithGroup both(2);
  std::atomic<bool> done = false;
  EXPECT_EQ(error_of(both.team,
                     [&](int rank) {
                       if (rank == 0) throw SystemError("first");
                       std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       done = true;
                     }),
            "first");
  EXPECT_TRUE(done);
}

TEST(RankTeam, KeepsTheErrorBeforeItWakesThePeers) {
  ThreadGroup group(2);
  const auto peer = group.join(1);
  std::atomic<bool> woken = false;
  RankTeam team(2, [&group, &woken] {
    group.abort();
    if (woken.exchange(true)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time for the peer to fail as well
  });
  EXPECT_EQ(error_of(team,
                     [&](int rank) {
                       if (rank == 0) throw SystemError("cause");
                       float value = 1;
                       peer->all_reduce_sum(View(&value, DType::f32, {1}));
                     }),
            "cause");
}

TEST(RankTeam, IsDeadAfterAFailure) {
  TeamWithGroup both(2);
  error_of(both.team, [](int) { throw SystemError("out of memory"); });
  EXPECT_EQ(both.aborts, 1);
  bool ran = false;
  EXPECT_THROW(both.team.run([&](int) { ran = true; }), SystemError);
  EXPECT_FALSE(ran);
}

TEST(RankTeam, OnlyTheFirstErrorSurvivesWhereverItFalls) {
  test::for_each_case(
      [](test::Gen& gen) {
        const int ranks = static_cast<int>(gen.in(1, 8));
        const int bad_rank = static_cast<int>(gen.in(0, ranks - 1));
        const int bad_run = static_cast<int>(gen.in(0, 3)), bad_meeting = static_cast<int>(gen.in(0, 5));
        TeamWithGroup both(ranks);
        for (int turn = 0; turn <= bad_run; ++turn) {
          const std::string error = error_of(both.team, [&](int rank) {
            for (int meeting = 0; meeting < 5; ++meeting) {
              if (turn == bad_run && rank == bad_rank && meeting == bad_meeting) throw SystemError("mine");
              both.meet(rank);
            }
            if (turn == bad_run && rank == bad_rank && bad_meeting == 5) throw SystemError("mine");
          });
          EXPECT_EQ(error, turn == bad_run ? "mine" : "none");
        }
      },
      60);
}

TEST(RankTeam, ThingsMadeByAJobCanBeDestroyedByOne) {
  struct Worker {
    std::thread::id maker = std::this_thread::get_id();
    ~Worker() { EXPECT_EQ(maker, std::this_thread::get_id()); }
  };
  RankTeam team(3, [] {});
  std::vector<std::unique_ptr<Worker>> workers(3);
  team.run([&](int rank) { workers[static_cast<size_t>(rank)] = std::make_unique<Worker>(); });
  team.run([&](int rank) { workers[static_cast<size_t>(rank)].reset(); });
}

}  // namespace
}  // namespace weft
