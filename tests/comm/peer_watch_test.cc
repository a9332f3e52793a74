#include "comm/peer_watch.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>

#include "base/check.h"
#include "base/log.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A bound on waiting for what must happen, not a measurement.
constexpr std::chrono::seconds kLong{60};

/// What a watch told.
struct News {
  std::mutex mutex;
  std::condition_variable changed;
  std::string loss;
  std::vector<std::pair<uint64_t, int64_t>> aborted;

  PeerWatch::Handlers handlers() {
    return {.lost =
                [this](const std::string& why) {
                  const std::lock_guard lock(mutex);
                  EXPECT_EQ(loss, "") << "lost twice";
                  loss = why;
                  changed.notify_all();
                },
            .aborted =
                [this](uint64_t group, int64_t after) {
                  const std::lock_guard lock(mutex);
                  aborted.emplace_back(group, after);
                  changed.notify_all();
                }};
  }
  std::string wait_for_loss() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLong, [&] { return !loss.empty(); });
    return loss;
  }
  std::pair<uint64_t, int64_t> wait_for_abort() {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, kLong, [&] { return !aborted.empty(); })) return {};
    return aborted.front();
  }
};

PeerWatch::Options options(int64_t silence_ms = 60'000) {
  return {.beat_ms = 10, .silence_ms = silence_ms, .exit_ms = 600'000};
}

/// Ends of a connection between process 0 and another.
struct Ends {
  explicit Ends(int process) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    at_first = {.process = process, .pid = 1000 + process, .socket = Descriptor(fds[0])};
    at_other = {.process = 0, .pid = 1000, .socket = Descriptor(fds[1])};
  }
  PeerConnection at_first, at_other;
};

std::vector<PeerConnection> list(PeerConnection one) {
  std::vector<PeerConnection> all;
  all.push_back(std::move(one));
  return all;
}

TEST(PeerWatch, AProcessThatIsKilledIsLost) {
  Ends ends(1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // holds its end of the connection until it is killed
    ends.at_first.socket = Descriptor();
    ::pause();
    ::_exit(0);
  }
  ends.at_other.socket = Descriptor();
  News news;
  PeerWatch watch(0, 2, list(std::move(ends.at_first)), news.handlers(), options());
  EXPECT_EQ(watch.loss(), "");
  ::kill(child, SIGKILL);
  EXPECT_THAT(news.wait_for_loss(), HasSubstr("process 1 (pid 1001) of 2 is gone"));
  EXPECT_EQ(watch.loss(), news.loss);
  ::waitpid(child, nullptr, 0);
}

TEST(PeerWatch, AProcessThatIsSilentIsLost) {
  Ends ends(1);
  News news;
  PeerWatch watch(1, 2, list(std::move(ends.at_other)), news.handlers(), options(200));
  EXPECT_THAT(news.wait_for_loss(), AllOf(HasSubstr("process 0 (pid 1000) of 2"), HasSubstr("no sign of life for 0.2 s")));
}

TEST(PeerWatch, ProcessesThatAnswerAreKept) {
  Ends ends(1);
  News first, other;
  PeerWatch a(0, 2, list(std::move(ends.at_first)), first.handlers(), options(4000));
  PeerWatch b(1, 2, list(std::move(ends.at_other)), other.handlers(), options(4000));
  std::this_thread::sleep_for(std::chrono::milliseconds(4500));
  EXPECT_EQ(a.loss(), "");
  EXPECT_EQ(b.loss(), "");
  b.leave(0, "");
  a.leave(0, "");
}

TEST(PeerWatch, NewsReachesAllThroughTheFirst) {
  Ends one(1), two(2);
  News first, second, third;
  std::vector<PeerConnection> both = list(std::move(one.at_first));
  both.push_back(std::move(two.at_first));
  PeerWatch a(0, 3, std::move(both), first.handlers(), options());
  PeerWatch b(1, 3, list(std::move(one.at_other)), second.handlers(), options());
  PeerWatch c(2, 3, list(std::move(two.at_other)), third.handlers(), options());

  b.tell_abort(7, 41);
  EXPECT_EQ(first.wait_for_abort(), (std::pair<uint64_t, int64_t>(7, 41)));
  EXPECT_EQ(third.wait_for_abort(), (std::pair<uint64_t, int64_t>(7, 41)));

  b.tell_failure("out of memory");
  const std::string told = fmt::format("process 1 (pid {}) of 3 failed: out of memory", ::getpid());
  EXPECT_EQ(first.wait_for_loss(), told);
  EXPECT_EQ(third.wait_for_loss(), told);
  EXPECT_TRUE(second.aborted.empty()) << "news came back to who told it";
  EXPECT_EQ(b.loss(), "");
}

TEST(PeerWatch, AnEndInOrderIsNoLoss) {
  Ends ends(1);
  News first, other;
  auto a = std::make_unique<PeerWatch>(0, 2, list(std::move(ends.at_first)), first.handlers(), options());
  PeerWatch b(1, 2, list(std::move(ends.at_other)), other.handlers(), options());
  EXPECT_FALSE(b.farewell().has_value());
  a->leave(0, "");
  a.reset();
  for (int i = 0; i < 6000 && !b.farewell(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(b.farewell().has_value());
  EXPECT_EQ(b.farewell()->status, 0);
  EXPECT_EQ(b.loss(), "");
}

TEST(PeerWatch, AnEndInOrderIsNoLossThoughBeatsWereNeverRead) {
  for (int round = 0; round < 100; ++round) {
    Ends ends(1);
    News first, other;
    auto a = std::make_unique<PeerWatch>(0, 2, list(std::move(ends.at_first)), first.handlers(), options());
    PeerWatch::Options fast = options();
    fast.beat_ms = 1;
    PeerWatch b(1, 2, list(std::move(ends.at_other)), other.handlers(), fast);
    b.leave(0, "");  // a reads no more of b, whose beats then lie in the socket when a ends
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    a->leave(0, "");
    a.reset();
    for (int i = 0; i < 6000 && !b.farewell(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(b.farewell().has_value());
    ASSERT_EQ(b.loss(), "");
  }
}

TEST(PeerWatch, AnEndWithAnErrorIsALoss) {
  Ends ends(1);
  News first, other;
  PeerWatch a(0, 2, list(std::move(ends.at_first)), first.handlers(), options());
  PeerWatch b(1, 2, list(std::move(ends.at_other)), other.handlers(), options());
  b.leave(2, "no such flag");
  EXPECT_THAT(first.wait_for_loss(), HasSubstr("process 1 (pid 1001) of 2 ended with status 2: no such flag"));
}

TEST(PeerWatchDeathTest, AProcessThatDoesNotEndAfterALossIsEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        log::start();
        Ends ends(1);
        ends.at_first.socket = Descriptor();
        News news;
        PeerWatch watch(1, 2, list(std::move(ends.at_other)), news.handlers(),
                        {.beat_ms = 10, .silence_ms = 60'000, .exit_ms = 50});
        ::pause();
      },
      ::testing::ExitedWithCode(1), "process 0 \\(pid 1000\\) of 2 is gone");
}

TEST(PeerConnections, FindOneAnotherByName) {
  PeerListener listener;
  std::vector<PeerConnection> others;
  std::thread connecting([&] {
    for (const int process : {2, 1}) others.push_back(connect_to_first(listener.name(), process));
  });
  const std::vector<PeerConnection> peers = listener.accept_all(3);
  connecting.join();
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_EQ(peers[0].process + peers[1].process, 3);
  for (const PeerConnection& peer : peers) EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_THROW(connect_to_first("weft-nobody", 1), SystemError);
}

}  // namespace
}  // namespace weft
