#include "engine/engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "engine/model_team.h"
#include "engine/small_engine.h"

namespace weft {
namespace {

using test::EngineOfTwoRanks;
using ::testing::Each;
using ::testing::HasSubstr;

/// Stops an engine behind a step until it is let go.
class Hold {
 public:
  std::function<void()> hook() {
    return [this] {
      std::unique_lock lock(mutex_);
      if (!holding_) return;
      held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !holding_; });
      held_ = false;
    };
  }
  /// Returns when the engine stands.
  void hold(Engine& engine) {
    std::unique_lock lock(mutex_);
    holding_ = true;
    lock.unlock();
    engine.cancel(0);  // nobody, but it gives the engine a turn where it has nothing to do
    lock.lock();
    changed_.wait(lock, [&] { return held_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    holding_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool holding_ = false, held_ = false;
};

void wait_for(const RequestStream& stream) {
  while (!stream.done()) std::this_thread::yield();
}
std::vector<int32_t> tokens_of(const RequestStream& stream) {
  std::vector<int32_t> out;
  for (const TokenEvent& event : stream.events()) out.push_back(event.token);
  return out;
}

TEST_F(EngineOfTwoRanks, StreamsTheTokensOfARequest) {
  Engine engine(config_);
  const auto stream = engine.submit(request(20, 5)).stream;
  ASSERT_NE(stream, nullptr);
  wait_for(*stream);
  ASSERT_EQ(stream->events().size(), 5u);
  EXPECT_EQ(stream->events()[3].finish, FinishReason::none);
  EXPECT_EQ(stream->events()[4].finish, FinishReason::length);
  EXPECT_EQ(stream->cached_tokens(), 0);
  const RequestTimes& times = stream->times();
  EXPECT_LE(times.submitted, times.admitted);
  EXPECT_LE(times.admitted, times.first_token);
  EXPECT_LE(times.first_token, times.finished);

  const auto again = engine.run({request(20, 5)}).front();
  EXPECT_EQ(tokens_of(*again), tokens_of(*stream));
  EXPECT_EQ(again->cached_tokens(), 19);
  EXPECT_NE(again->id(), stream->id());
  EXPECT_EQ(engine.metrics().generated_tokens.value(), 10);
  EXPECT_EQ(engine.metrics().finished_length.value(), 2);
}

TEST_F(EngineOfTwoRanks, ARequestOfTheCapacityRunsAndOneTokenMoreIsRefused) {
  Engine engine(config_);
  EXPECT_EQ(engine.sizes().capacity.tokens, 256);
  EXPECT_EQ(engine.sizes().max_model_len, 256);
  const EngineSizes alone = engine_sizes(engine.model(), config_);
  EXPECT_EQ(alone.capacity.tokens, 256);
  EXPECT_EQ(alone.max_model_len, 256);
  EXPECT_EQ(alone.weight_bytes, engine.sizes().weight_bytes);
  EXPECT_THROW(engine.submit(request(200, 57)), UserError);
  EXPECT_EQ(engine.run({request(200, 56)}).front()->events().size(), 56u);
  EXPECT_EQ(engine.run({request(255, 1)}).front()->events().size(), 1u);
  EXPECT_EQ(engine.run({request(256, 0)}).front()->events().size(), 1u);
}

TEST_F(EngineOfTwoRanks, TheQueueHasItsBounds) {
  config_.max_num_seqs = 1;
  config_.max_queued_requests = 2;
  Hold hold;
  Engine engine(config_, {.progress = hold.hook()});
  hold.hold(engine);
  std::vector<Engine::Submitted> submitted;
  for (int i = 0; i < 3; ++i) submitted.push_back(engine.submit(request(4, 3)));
  EXPECT_NE(submitted[1].stream, nullptr);
  EXPECT_EQ(submitted[2].stream, nullptr);
  EXPECT_EQ(submitted[2].refusal, Engine::Refusal::queue_full);
  EXPECT_EQ(engine.metrics().refused_queue_requests.value(), 1);
  EXPECT_EQ(engine.metrics().refused_queue_tokens.value(), 0);
  EXPECT_EQ(engine.metrics().queued_requests.value(), 2);
  EXPECT_EQ(engine.metrics().queued_tokens.value(), 8);
  hold.release();
  wait_for(*submitted[0].stream);
  wait_for(*submitted[1].stream);
  // The engine takes note of an ended request behind the step that ended it.
  hold.hold(engine);
  EXPECT_EQ(engine.submit(request(4, 3)).refusal, Engine::Refusal::none);
  hold.release();
}

TEST_F(EngineOfTwoRanks, TheQueueBoundsTokensButTakesALongPromptAlone) {
  config_.max_queued_tokens = 10;
  Hold hold;
  Engine engine(config_, {.progress = hold.hook()});
  hold.hold(engine);
  EXPECT_EQ(engine.submit(request(40, 1)).refusal, Engine::Refusal::none);
  EXPECT_EQ(engine.submit(request(1, 1)).refusal, Engine::Refusal::queue_full);
  hold.release();
  EXPECT_TRUE(engine.run({request(40, 1), request(40, 1)}).back()->done()) << "run() knows no bounds";
}

TEST_F(EngineOfTwoRanks, ACancelledRequestEndsAndTheOthersGoOn) {
  Hold hold;
  Engine engine(config_, {.progress = hold.hook()});
  hold.hold(engine);
  const auto one = engine.submit(request(10, 200)).stream, two = engine.submit(request(12, 9)).stream;
  engine.cancel(one->id());
  engine.cancel(12345);
  hold.release();
  wait_for(*one);
  wait_for(*two);
  EXPECT_EQ(one->events().back().finish, FinishReason::abort);
  EXPECT_EQ(one->events().back().token, -1);
  EXPECT_LT(one->events().size(), 200u);
  EXPECT_EQ(two->events().size(), 9u);
  EXPECT_EQ(engine.metrics().finished_abort.value(), 1);
}

TEST_F(EngineOfTwoRanks, DrainsOrCancelsWhatTakesTooLong) {
  Hold hold;
  Engine engine(config_, {.progress = hold.hook()});
  const auto quick = engine.submit(request(5, 5)).stream;
  EXPECT_TRUE(engine.drain(600'000));
  EXPECT_TRUE(quick->done());
  EXPECT_EQ(engine.submit(request(5, 5)).refusal, Engine::Refusal::draining);

  Engine busy(config_, {.progress = hold.hook()});
  hold.hold(busy);
  const auto slow = busy.submit(request(5, 250)).stream;
  std::thread later([&] {
    while (busy.submit(request(1, 1)).refusal != Engine::Refusal::draining) std::this_thread::yield();
    hold.release();
  });
  EXPECT_FALSE(busy.drain(0));
  later.join();
  EXPECT_TRUE(slow->done());
  EXPECT_EQ(slow->events().back().finish, FinishReason::abort);
}

TEST_F(EngineOfTwoRanks, EndsWhatStillRunsWhenItGoes) {
  std::shared_ptr<RequestStream> stream;
  {
    Engine engine(config_);
    stream = engine.submit(request(5, 250)).stream;
  }
  EXPECT_TRUE(stream->done());
}

TEST_F(EngineOfTwoRanks, ShowsWhatEachRankHolds) {
  std::mutex mutex;
  std::vector<std::vector<int64_t>> seen;
  Engine engine(config_, {.shares = [&](uint64_t, std::span<const int64_t> tokens) {
                  const std::lock_guard lock(mutex);
                  seen.emplace_back(tokens.begin(), tokens.end());
                }});
  engine.run({request(3, 4)});
  // After the prompt and each token that was fed, but for the last step, behind which nothing runs.
  EXPECT_EQ(seen, (std::vector<std::vector<int64_t>>{{2, 1}, {2, 2}, {3, 2}}));
}

/// Fails in the middle of a run, on one rank.
class CutWire final : public Communicator {
 public:
  CutWire(std::unique_ptr<Communicator> inner, const std::atomic<bool>& cut) : inner_(std::move(inner)), cut_(cut) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather(ConstView in, View out) override {
    look();
    inner_->all_gather(in, out);
  }
  void all_to_all(ConstView in, View out) override {
    look();
    inner_->all_to_all(in, out);
  }
  void all_reduce_sum(View data) override {
    look();
    inner_->all_reduce_sum(data);
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  void look() const {
    if (cut_.load() && rank() == 1) throw SystemError("the wire is cut");
  }
  std::unique_ptr<Communicator> inner_;
  const std::atomic<bool>& cut_;
};

TEST_F(EngineOfTwoRanks, AFailureEndsEverythingAndIsKept) {
  ::setenv("TMPDIR", folder_.path().c_str(), 1);  // where the last steps go
  std::atomic<bool> cut{false};
  Hold hold;
  Engine engine(config_, {.progress = hold.hook()}, [&](const RankGrid& grid) {
    LocalRanks ranks = thread_ranks(grid);
    ranks.make_tp = [&cut, make = ranks.make_tp](int rank) { return std::make_unique<CutWire>(make(rank), cut); };
    return ranks;
  });
  EXPECT_EQ(engine.failure(), "");
  EXPECT_EQ(engine.run({request(5, 2)}).front()->events().size(), 2u);
  hold.hold(engine);
  const auto one = engine.submit(request(5, 100)).stream, two = engine.submit(request(6, 100)).stream;
  cut = true;
  hold.release();
  wait_for(*one);
  wait_for(*two);
  EXPECT_EQ(one->events().back().finish, FinishReason::error);
  EXPECT_THAT(one->error(), HasSubstr("the wire is cut"));
  EXPECT_THAT(two->error(), HasSubstr("the wire is cut"));
  EXPECT_THAT(engine.failure(), HasSubstr("the wire is cut"));
  EXPECT_EQ(engine.submit(request(5, 1)).refusal, Engine::Refusal::failed);
  EXPECT_THROW(engine.run({request(5, 1)}), SystemError);
  engine.cancel(one->id());
  engine.reset_prefix_cache();
  EXPECT_TRUE(engine.drain(0));
  ::unsetenv("TMPDIR");
  const bool kept = std::any_of(std::filesystem::directory_iterator(folder_.path()), std::filesystem::directory_iterator(),
                                [](const auto& entry) { return entry.path().filename().string().starts_with("weft-flight-"); });
  EXPECT_TRUE(kept) << "a failure keeps the steps before it";
}

TEST_F(EngineOfTwoRanks, ManyThreadsMaySubmitAndCancel) {
  Engine engine(config_);
  std::vector<std::thread> clients;
  std::atomic<int> ended{0};
  for (int client = 0; client < 4; ++client)
    clients.emplace_back([&, client] {
      for (int i = 0; i < 10; ++i) {
        const auto submitted = engine.submit(request(3 + client, 6, client));
        ASSERT_NE(submitted.stream, nullptr);
        if (i % 3 == 0) engine.cancel(submitted.stream->id());
        wait_for(*submitted.stream);
        ++ended;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ended, 40);
  EXPECT_TRUE(engine.drain(600'000));
  EXPECT_EQ(engine.metrics().running.value(), 0);
  EXPECT_EQ(engine.metrics().blocks_held.value(), 0);
}

}  // namespace
}  // namespace weft
