#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "engine/engine.h"
#include "support/allocations.h"
#include "support/checkpoint_writer.h"
#include "support/synthetic_models.h"

namespace weft::test {
namespace {

// Memory is taken at the start. Nothing that runs between two steps of a real model takes any, on whatever thread: the test's
// own thread sleeps while the engine's and the ranks' work.

/// Counts what is allocated from one step's end to the next one's, while it is told to.
class StepCounts {
 public:
  std::function<void()> hook() {
    return [this] {
      const int64_t now = allocations_of_all_threads();
      if (counting_) {
        ++steps_;
        worst_ = std::max(worst_.load(), now - before_.load());
      }
      before_ = now;
      std::unique_lock lock(mutex_);
      if (!holding_) return;
      held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !holding_; });
      held_ = false;
      before_ = allocations_of_all_threads();
    };
  }
  /// Submits the requests while the engine stands, then sleeps until all have ended. The step that takes them in, and the one
  /// behind which the last of them ends and is freed, are counted too: freeing is no allocation.
  void run(Engine& engine, std::vector<Request> requests) {
    std::unique_lock lock(mutex_);
    holding_ = true;
    engine.cancel(0);  // nobody, but it gives the engine a turn
    changed_.wait(lock, [&] { return held_; });
    std::vector<std::shared_ptr<RequestStream>> streams;
    for (Request& request : requests) streams.push_back(engine.submit(std::move(request)).stream);
    counting_ = true;
    holding_ = false;
    changed_.notify_all();
    lock.unlock();
    engine_idle(engine, streams);
    counting_ = false;
  }
  int64_t worst() const { return worst_; }
  int64_t steps() const { return steps_; }

 private:
  static void engine_idle(const Engine&, const std::vector<std::shared_ptr<RequestStream>>& streams) {
    for (const auto& stream : streams) {
      ASSERT_NE(stream, nullptr);
      while (!stream->done()) {
        const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
        nanosleep(&pause, nullptr);
      }
    }
  }

  std::atomic<bool> counting_{false};
  std::atomic<int64_t> before_{0}, worst_{0}, steps_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool holding_ = false, held_ = false;
};

Request request(int64_t prompt, int64_t max_tokens, int32_t first, int64_t vocab) {
  Request out;
  for (int64_t i = 0; i < prompt; ++i) out.prompt.push_back(static_cast<int32_t>((first + 7 * i) % vocab));
  out.max_tokens = max_tokens;
  out.sampling.temperature = 0;
  out.ignore_eos = true;
  return out;
}

class AllocationsOf : public testing::TestWithParam<const char*> {};

TEST_P(AllocationsOf, StepsAreNone) {
  spdlog::set_level(spdlog::level::warn);
  const TemporaryFolder folder;
  for (const SyntheticModel& model : synthetic_models()) {
    if (model.name == GetParam()) write_checkpoint(folder.path(), model.config);
  }
  EngineConfig config;
  config.model_dir = folder.path();
  config.tensor_parallel_size = config.decode_context_parallel_size = 2;
  config.block_size = 4;
  config.num_gpu_blocks_override = 100;  // of 8 tokens
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.threads = 2;
  StepCounts counts;
  Engine engine(config, {.progress = counts.hook()});
  const int64_t vocab = engine.model().vocab;
  // Once around, so that what grows to its size on first use has grown: thread-local scratch of libraries.
  engine.run({request(150, 20, 1, vocab), request(9, 20, 2, vocab)});

  // Prefill in chunks, decodes beside it, and more sequences than run at once.
  std::vector<Request> fresh;
  for (int32_t i = 0; i < 6; ++i) fresh.push_back(request(20 + 30 * i, 12, 10 + i, vocab));
  counts.run(engine, fresh);
  EXPECT_EQ(counts.worst(), 0) << "fresh prompts";

  // The same from the cache, sampled, with log probabilities; the last first, as the pool does not hold them all.
  std::reverse(fresh.begin(), fresh.end());
  for (Request& one : fresh) {
    one.sampling.temperature = 0.8f;
    one.sampling.top_k = 20;
    one.sampling.top_p = 0.9f;
    one.sampling.repetition_penalty = 1.1f;
    one.sampling.logit_bias = {{.token = 3, .bias = 1}};
    one.log_probs = 5;
    one.choices = 2;
  }
  counts.run(engine, fresh);
  EXPECT_EQ(counts.worst(), 0) << "cached prompts, sampled";
  EXPECT_GT(engine.metrics().prefix_hits.value(), 0);

  // Answers that outgrow the pool.
  std::vector<Request> long_ones;
  for (int32_t i = 0; i < 4; ++i) long_ones.push_back(request(60, 200, 30 + i, vocab));
  counts.run(engine, long_ones);
  EXPECT_EQ(counts.worst(), 0) << "preemption";
  EXPECT_GT(engine.metrics().preemptions.value(), 0);
  EXPECT_GT(counts.steps(), 100);
}

INSTANTIATE_TEST_SUITE_P(Models, AllocationsOf,
                         testing::Values("glm4_moe_8_over_1", "deepseek_v3_8_heads", "deepseek_v2_24_heads"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weft::test
