#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/engine_loop.h"
#include "support/allocations.h"

namespace weft::test {

constexpr int32_t kVocab = 1000, kEnd = 999;

/// Stands for ranks and model: remembers plans, and says of each sampling row whatever the test wants.
class FakeRunner : public StepRunner {
 public:
  const StepResult& run(const StepPlan& plan) override {
    const int64_t before = allocations_of_this_thread();
    answer(plan);
    allocated += allocations_of_this_thread() - before;
    return result;
  }

  void answer(const StepPlan& plan) {
    if (fail) throw SystemError("a rank is lost");
    plans.push_back(StepPlan::from_bytes(plan.bytes()));
    const auto rows = plan[plan->sampling];
    const auto k = static_cast<size_t>(plan->max_top_log_probs);
    result = {};
    for (const SamplingRow& row : rows) {
      result.ids.push_back(token(row));
      result.log_probs.push_back(-static_cast<float>(row.position));
      result.target_log_probs.push_back(-static_cast<float>(row.target));
      for (size_t i = 0; i < k; ++i) {
        result.top_ids.push_back(static_cast<int32_t>(i) < row.top_log_probs ? static_cast<int32_t>(i) : -1);
        result.top_log_probs.push_back(-static_cast<float>(i));
      }
      if (plan->want_logits) result.logits.insert(result.logits.end(), kVocab, static_cast<float>(row.position));
    }
    if (plan->record.hidden) {
      result.hidden.emplace_back();
      for (const int32_t position : plan[plan->positions])
        result.hidden[0].insert(result.hidden[0].end(), 2, static_cast<float>(position));
    }
    result.seconds = seconds;
    result.exchange_seconds = exchange_seconds;
  }

  /// A function of the place in the text alone, so that answers do not depend on how steps are put together.
  static int32_t plain_token(const SamplingRow& row) { return 1 + (row.position * 7 + row.choice * 3) % 900; }

  std::function<int32_t(const SamplingRow&)> token = plain_token;
  std::vector<StepPlan> plans;
  StepResult result;
  double seconds = 0, exchange_seconds = 0;
  bool fail = false;
  int64_t allocated = 0;  ///< by itself: how often
};

inline ModelConfig one_head() {
  ModelConfig config;
  config.hidden = 64;
  config.layers = 1;
  config.q_heads = 48;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.max_positions = 1 << 20;
  return config;
}

struct Setup {
  int ranks = 2, block_tokens = 4;
  int64_t blocks = 64, max_model_len = 128, tokens = 64, sequences = 8;
};

struct Harness {
  explicit Harness(const Setup& setup, const std::function<void(EngineLoop::Options&)>& change = {})
      : config(one_head()),
        grid({.tp = setup.ranks,
              .dcp = setup.ranks,
              .q_heads = config.q_heads,
              .kv_heads = 1,
              .interleave = 1,
              .block_tokens = setup.block_tokens}),
        builder(config, grid,
                {.layout = {.shard = grid.shard(), .block_tokens = setup.block_tokens}, .context_rows = 16, .last_layer = 1}) {
    options.layout = {.shard = grid.shard(), .block_tokens = setup.block_tokens};
    options.blocks = setup.blocks;
    options.limits = {.tokens = setup.tokens, .sequences = setup.sequences};
    options.max_model_len = setup.max_model_len;
    options.vocab = kVocab;
    options.end_tokens = {kEnd};
    options.fingerprint = "test";
    if (change) change(options);
    loop = std::make_unique<EngineLoop>(options, builder, runner, metrics);
  }

  std::shared_ptr<RequestStream> submit(Request request) {
    const auto stream = std::make_shared<RequestStream>(next_id++, request);
    loop->add(EngineLoop::prepare(std::move(request), stream, options), now);
    return stream;
  }
  bool step() {
    const bool worked = loop->step(now);
    loop->check_invariants();
    now += 1000;
    return worked;
  }
  void finish() {
    for (int i = 0; step(); ++i) ASSERT_LT(i, 100000) << "the loop does not end";
  }
  const StepPlan& last_plan() const { return runner.plans.back(); }
  int64_t rows_in_all() const {
    return std::accumulate(runner.plans.begin(), runner.plans.end(), int64_t{0},
                           [](int64_t sum, const StepPlan& plan) { return sum + plan->rows; });
  }

  ModelConfig config;
  RankGrid grid;
  PlanBuilder builder;
  FakeRunner runner;
  EngineMetrics metrics;
  EngineLoop::Options options;
  std::unique_ptr<EngineLoop> loop;
  uint64_t next_id = 1;
  int64_t now = 1'000'000;
};

inline std::vector<int32_t> counting(int32_t from, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  for (int32_t& token : tokens) token %= kVocab - 1;
  return tokens;
}

inline std::vector<int32_t> tokens_of(const RequestStream& stream, int32_t choice = 0) {
  std::vector<int32_t> tokens;
  for (const TokenEvent& event : stream.events())
    if (event.choice == choice && event.token >= 0) tokens.push_back(event.token);
  return tokens;
}

/// What FakeRunner::plain_token answers.
inline std::vector<int32_t> plain_answer(int64_t prompt, int64_t count, int32_t choice = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(FakeRunner::plain_token(
        {.choice = choice, .position = static_cast<int32_t>(prompt + i), .penalty_tokens = {}, .biases = {}}));
  return tokens;
}

inline FinishReason finish_of(const RequestStream& stream, int32_t choice = 0) {
  for (const TokenEvent& event : stream.events())
    if (event.choice == choice && event.finish != FinishReason::none) return event.finish;
  return FinishReason::none;
}

template <typename T>
std::vector<T> list(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace weft::test
