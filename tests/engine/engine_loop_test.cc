#include "engine/engine_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "support/allocations.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kVocab = 1000, kEnd = 999;

/// Stands for ranks and model: remembers plans, and says of each sampling row whatever the test wants.
class FakeRunner : public StepRunner {
 public:
  const StepResult& run(const StepPlan& plan) override {
    const int64_t before = test::allocations_of_this_thread();
    answer(plan);
    allocated += test::allocations_of_this_thread() - before;
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
  }

  /// A function of the place in the text alone, so that answers do not depend on how steps are put together.
  static int32_t plain_token(const SamplingRow& row) { return 1 + (row.position * 7 + row.choice * 3) % 900; }

  std::function<int32_t(const SamplingRow&)> token = plain_token;
  std::vector<StepPlan> plans;
  StepResult result;
  double seconds = 0;
  bool fail = false;
  int64_t allocated = 0;  ///< by itself: how often
};

ModelConfig one_head() {
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

std::vector<int32_t> counting(int32_t from, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  for (int32_t& token : tokens) token %= kVocab - 1;
  return tokens;
}

std::vector<int32_t> tokens_of(const RequestStream& stream, int32_t choice = 0) {
  std::vector<int32_t> tokens;
  for (const TokenEvent& event : stream.events())
    if (event.choice == choice && event.token >= 0) tokens.push_back(event.token);
  return tokens;
}

/// What FakeRunner::plain_token answers.
std::vector<int32_t> plain_answer(int64_t prompt, int64_t count, int32_t choice = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(FakeRunner::plain_token(
        {.choice = choice, .position = static_cast<int32_t>(prompt + i), .penalty_tokens = {}, .biases = {}}));
  return tokens;
}

FinishReason finish_of(const RequestStream& stream, int32_t choice = 0) {
  for (const TokenEvent& event : stream.events())
    if (event.choice == choice && event.finish != FinishReason::none) return event.finish;
  return FinishReason::none;
}

template <typename T>
std::vector<T> list(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// --- the plain course ------------------------------------------------------------------------------------------------------

TEST(EngineLoop, ARequestRunsToItsLength) {
  Harness h({});
  h.runner.seconds = 0.0005;
  const auto stream = h.submit({.prompt = counting(1, 5), .max_tokens = 3});
  EXPECT_EQ(h.loop->waiting(), 1);
  ASSERT_TRUE(h.step());
  EXPECT_EQ(h.loop->running(), 1);
  EXPECT_EQ(list(h.last_plan()[h.last_plan()->token_src]), counting(1, 5));
  EXPECT_THAT(stream->events(), SizeIs(1));
  ASSERT_TRUE(h.step());
  EXPECT_EQ(list(h.last_plan()[h.last_plan()->positions]), std::vector<int32_t>{5});
  EXPECT_EQ(list(h.last_plan()[h.last_plan()->token_src]), plain_answer(5, 1));
  EXPECT_FALSE(stream->done());
  ASSERT_TRUE(h.step());
  EXPECT_TRUE(stream->done());
  EXPECT_FALSE(h.step());
  EXPECT_EQ(tokens_of(*stream), plain_answer(5, 3));
  EXPECT_EQ(finish_of(*stream), FinishReason::length);
  EXPECT_EQ(stream->times().submitted, 1'000'000);
  EXPECT_EQ(stream->times().admitted, 1'000'000);
  EXPECT_EQ(stream->times().first_token, 1'000'500);
  EXPECT_EQ(stream->times().finished, 1'002'500);
  EXPECT_EQ(h.metrics.generated_tokens.value(), 3);
  EXPECT_EQ(h.metrics.prompt_tokens.value(), 5);
  EXPECT_EQ(h.metrics.finished_length.value(), 1);
  EXPECT_EQ(h.metrics.step_rows.value(), 5 + 1 + 1);
  EXPECT_EQ(h.metrics.blocks_held.value(), 0);
  EXPECT_EQ(h.metrics.running.value(), 0);
  EXPECT_EQ(h.metrics.waiting.value(), 0);
  // Seven tokens are stored, eight to a block.
  EXPECT_EQ(h.metrics.blocks_cached.value(), 1);
}

TEST(EngineLoop, WithoutTokensToGenerateOnlyThePromptIsComputed) {
  Harness h({});
  const auto stream = h.submit({.prompt = counting(1, 5), .max_tokens = 0, .choices = 2});
  h.finish();
  ASSERT_THAT(stream->events(), SizeIs(2));
  for (const TokenEvent& event : stream->events()) {
    EXPECT_EQ(event.token, -1);
    EXPECT_EQ(event.finish, FinishReason::length);
  }
  EXPECT_EQ(h.rows_in_all(), 5);
  EXPECT_TRUE(stream->done());
}

TEST(EngineLoop, AnAnswerEndsAtEndTokensUnlessToldOtherwise) {
  for (const bool ignore : {false, true}) {
    Harness h({});
    h.runner.token = [](const SamplingRow& row) { return row.position == 6 ? kEnd : row.position == 8 ? 77 : 5; };
    const auto stream = h.submit({.prompt = counting(1, 5), .max_tokens = 9, .stop_tokens = {77}, .ignore_eos = ignore});
    h.finish();
    EXPECT_EQ(tokens_of(*stream), ignore ? (std::vector<int32_t>{5, kEnd, 5, 77}) : (std::vector<int32_t>{5, kEnd}));
    EXPECT_EQ(finish_of(*stream), FinishReason::stop);
    EXPECT_EQ(h.metrics.finished_stop.value(), 1);
  }
}

TEST(EngineLoop, EndTokensAreForbiddenUntilMinTokensHaveCome) {
  Harness h({});
  Request request{.prompt = counting(1, 5), .max_tokens = 4, .min_tokens = 2, .stop_tokens = {3, 77}};
  request.sampling.logit_bias = {{.token = 77, .bias = 5}, {.token = 2, .bias = 1}};
  h.submit(std::move(request));
  h.finish();
  ASSERT_THAT(h.runner.plans, SizeIs(4));
  for (size_t step = 0; step < 4; ++step) {
    const StepPlan& plan = h.runner.plans[step];
    std::map<int32_t, float> biases;
    for (const LogitBias& bias : plan[plan->biases]) biases[bias.token] = bias.bias;
    const float never = -std::numeric_limits<float>::infinity();
    if (step < 2)
      EXPECT_EQ(biases, (std::map<int32_t, float>{{2, 1.0f}, {3, never}, {77, never}, {kEnd, never}}));
    else
      EXPECT_EQ(biases, (std::map<int32_t, float>{{2, 1.0f}, {77, 5.0f}}));
    EXPECT_TRUE(std::is_sorted(plan[plan->biases].begin(), plan[plan->biases].end(),
                               [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; }));
  }
}

TEST(EngineLoop, PenaltiesSeeThePromptAndWhatWasGenerated) {
  Harness h({});
  h.runner.token = [](const SamplingRow& row) { return row.position == 5 ? 7 : row.position == 6 ? 2 : 7; };
  Request request{.prompt = {9, 2, 9, 4}, .max_tokens = 5};
  request.sampling.repetition_penalty = 1.5f;
  request.sampling.temperature = 0.5f;
  request.sampling.seed = 42;
  h.submit(std::move(request));
  h.finish();
  const auto penalties = [&](size_t step) {
    std::vector<std::array<int32_t, 3>> out;
    for (const PenaltyToken& p : h.runner.plans[step][h.runner.plans[step]->penalty_tokens])
      out.push_back({p.token, p.generated, p.in_prompt});
    return out;
  };
  using Rows = std::vector<std::array<int32_t, 3>>;
  EXPECT_EQ(penalties(0), (Rows{{2, 0, 1}, {4, 0, 1}, {9, 0, 1}}));
  EXPECT_EQ(penalties(1), (Rows{{2, 0, 1}, {4, 0, 1}, {7, 1, 0}, {9, 0, 1}}));
  EXPECT_EQ(penalties(3), (Rows{{2, 1, 1}, {4, 0, 1}, {7, 2, 0}, {9, 0, 1}}));
  const SamplingRow& row = h.runner.plans[3][h.runner.plans[3]->sampling][0];
  EXPECT_EQ(row.seed, 42u);
  EXPECT_EQ(row.position, 7);
  EXPECT_EQ(row.temperature, 0.5f);
}

TEST(EngineLoop, SeedsFollowFromTheEngineAndTheRequest) {
  const auto seed_of = [](uint64_t engine, uint64_t id) {
    Harness h({}, [&](EngineLoop::Options& options) { options.seed = engine; });
    h.next_id = id;
    h.submit({.prompt = counting(1, 3), .max_tokens = 1});
    h.finish();
    return h.last_plan()[h.last_plan()->sampling][0].seed;
  };
  EXPECT_EQ(seed_of(1, 1), seed_of(1, 1));
  EXPECT_EQ((std::set<uint64_t>{seed_of(1, 1), seed_of(1, 2), seed_of(2, 1), seed_of(0, 0)}).size(), 4u);
}

TEST(EngineLoop, LogProbsGoWithTheirTokens) {
  Harness h({});
  const auto stream = h.submit({.prompt = counting(1, 5), .max_tokens = 2, .log_probs = 3});
  const auto plain = h.submit({.prompt = counting(50, 5), .max_tokens = 2});
  h.finish();
  EXPECT_EQ(stream->events()[1].log_prob, -6.0f);
  EXPECT_THAT(stream->top_ids(1), ElementsAre(0, 1, 2));
  EXPECT_EQ(plain->events()[1].log_prob, 0.0f);
}

TEST(EngineLoop, PromptLogProbsComeOfEveryChunkAndNothingOfTheCache) {
  Harness h({.tokens = 8});
  h.submit({.prompt = counting(100, 20), .max_tokens = 1});
  h.finish();
  const auto stream = h.submit({.prompt = counting(100, 20), .max_tokens = 2, .prompt_log_probs = 2});
  h.finish();
  EXPECT_EQ(stream->cached_tokens(), 0);
  ASSERT_THAT(stream->prompt_log_probs(), SizeIs(19));
  // The fake says minus the target, which is the next token of the prompt.
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_EQ(stream->prompt_log_probs()[i], -static_cast<float>(101 + i));
    EXPECT_THAT(stream->prompt_top_ids(i), ElementsAre(0, 1));
  }
  EXPECT_EQ(tokens_of(*stream), plain_answer(20, 2));
}

TEST(EngineLoop, ForcedTokensAreFedAndSamplesKept) {
  Harness h({});
  const auto stream = h.submit({.prompt = counting(1, 5), .max_tokens = 3, .log_probs = 0, .forced_ids = {kEnd, 8, 9}});
  h.finish();
  EXPECT_EQ(tokens_of(*stream), (std::vector<int32_t>{kEnd, 8, 9}));
  EXPECT_EQ(finish_of(*stream), FinishReason::length);
  EXPECT_EQ(stream->captured().argmax_ids, plain_answer(5, 3));
  EXPECT_EQ(stream->events()[1].log_prob, -8.0f) << "of the forced token";
  EXPECT_EQ(list(h.last_plan()[h.last_plan()->token_src]), std::vector<int32_t>{8});
}

TEST(EngineLoop, CapturesHoldThePromptOnceEvenIfItIsPreempted) {
  // Two prompts of three blocks each in a pool of six: the older one's first new block takes the younger one's.
  Harness h({.ranks = 1, .block_tokens = 4, .blocks = 6, .max_model_len = 24, .tokens = 13});
  const auto old = h.submit({.prompt = counting(1, 12), .max_tokens = 12});
  const auto captured = h.submit({.prompt = counting(500, 12),
                                  .max_tokens = 2,
                                  .capture = {.all_logits = true, .want_logits = true, .record = {.hidden = true}}});
  h.finish();
  EXPECT_GE(h.metrics.preemptions.value(), 1);
  EXPECT_EQ(tokens_of(*old), plain_answer(12, 12));
  EXPECT_EQ(tokens_of(*captured), plain_answer(12, 2));
  const Captured& c = captured->captured();
  ASSERT_THAT(c.hidden, SizeIs(1));
  ASSERT_THAT(c.hidden[0], SizeIs(12 * 2));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(c.hidden[0][2 * i], static_cast<float>(i));
  ASSERT_THAT(c.logits, SizeIs(12 * kVocab));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(c.logits[i * kVocab], static_cast<float>(i + 1));
  EXPECT_THAT(c.last_logits, SizeIs(kVocab));
  EXPECT_THAT(c.gen_logits, SizeIs(2 * kVocab));
}

// --- prefixes --------------------------------------------------------------------------------------------------------------

/// The hit of a prompt of `length` tokens that shares the first `shared` with one of `first` tokens computed before.
int64_t hit(int ranks, int block_tokens, int64_t first, int64_t shared, int64_t length) {
  Harness h({.ranks = ranks, .block_tokens = block_tokens, .blocks = 64, .max_model_len = 1024, .tokens = 512});
  h.submit({.prompt = counting(1, first), .max_tokens = 1});
  h.finish();
  std::vector<int32_t> prompt = counting(1, shared);
  for (int64_t i = shared; i < length; ++i) prompt.push_back(static_cast<int32_t>(500 + i % 400));
  const auto stream = h.submit({.prompt = prompt, .max_tokens = 1});
  const int64_t before = h.rows_in_all();
  h.finish();
  EXPECT_EQ(h.metrics.prefix_hits.value(), stream->cached_tokens());
  EXPECT_EQ(h.metrics.prefix_queries.value(), first + length);
  EXPECT_EQ(h.rows_in_all() - before, length - stream->cached_tokens());
  return stream->cached_tokens();
}

// Where only whole virtual blocks of 64 could be shared, these would be 128, 192, 64, 0 and 0.
TEST(EngineLoop, AHitIsCountedInTokensAndLeavesOne) {
  EXPECT_EQ(hit(4, 16, 200, 130, 200), 130);
  EXPECT_EQ(hit(4, 16, 200, 200, 200), 199);
  EXPECT_EQ(hit(4, 16, 128, 128, 128), 127);
  EXPECT_EQ(hit(4, 16, 64, 64, 64), 63);
  EXPECT_EQ(hit(4, 16, 200, 63, 200), 63);
  EXPECT_EQ(hit(4, 16, 200, 0, 200), 0);
}

TEST(EngineLoop, TwoPromptsThatShare150TokensShareAll150) {
  EXPECT_EQ(hit(2, 64, 550, 150, 550), 150);
  EXPECT_EQ(hit(1, 128, 550, 150, 550), 150);
}

TEST(EngineLoop, APartlyMatchingBlockIsCopiedAndWholeOnesAreShared) {
  Harness h({.ranks = 2, .block_tokens = 4, .max_model_len = 64});
  h.submit({.prompt = counting(1, 21), .max_tokens = 1});
  h.finish();
  std::map<int32_t, int32_t> first_table;
  for (const TableUpdate& update : h.runner.plans[0][h.runner.plans[0]->table_updates])
    first_table[update.ordinal] = update.block;
  std::vector<int32_t> prompt = counting(1, 19);
  prompt.push_back(700);
  h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  const StepPlan& plan = h.last_plan();
  std::map<int32_t, int32_t> table;
  for (const TableUpdate& update : plan[plan->table_updates]) table[update.ordinal] = update.block;
  EXPECT_EQ(table[0], first_table[0]);
  EXPECT_EQ(table[1], first_table[1]);
  EXPECT_NE(table[2], first_table[2]);
  ASSERT_THAT(plan[plan->copies], SizeIs(1));
  const BlockCopy& copy = plan[plan->copies][0];
  EXPECT_EQ(copy.source, first_table[2]);
  EXPECT_EQ(copy.target, table[2]);
  EXPECT_EQ(copy.tokens, 3);
  EXPECT_EQ(list(plan[plan->positions]), std::vector<int32_t>{19});
}

TEST(EngineLoop, PrefixesAreSharedWithinOneSaltOnly) {
  Harness h({});
  const auto cached = [&](const char* salt) {
    const auto stream = h.submit({.prompt = counting(1, 30), .max_tokens = 1, .cache_salt = salt});
    h.finish();
    return stream->cached_tokens();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached("a"), 29);
  EXPECT_EQ(cached(""), 0);
}

TEST(EngineLoop, NothingIsFoundWhereCachingIsOffOrTheCacheWasReset) {
  Harness off({}, [](EngineLoop::Options& options) { options.prefix_caching = false; });
  for (int i = 0; i < 2; ++i) {
    const auto stream = off.submit({.prompt = counting(1, 30), .max_tokens = 1});
    off.finish();
    EXPECT_EQ(stream->cached_tokens(), 0);
  }
  EXPECT_EQ(off.metrics.prefix_queries.value(), 0);
  EXPECT_EQ(off.metrics.blocks_cached.value(), 0);

  Harness h({});
  h.submit({.prompt = counting(1, 30), .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.metrics.blocks_cached.value(), 4);
  h.loop->reset_prefix_cache();
  EXPECT_EQ(h.metrics.blocks_cached.value(), 0);
  h.loop->check_invariants();
  const auto stream = h.submit({.prompt = counting(1, 30), .max_tokens = 3});
  h.step();
  EXPECT_EQ(stream->cached_tokens(), 0);
  h.loop->reset_prefix_cache();  // What runs keeps its prefix.
  h.finish();
  const auto again = h.submit({.prompt = counting(1, 30), .max_tokens = 1});
  h.finish();
  EXPECT_EQ(again->cached_tokens(), 29);
}

TEST(EngineLoop, AnAnswerIsFoundAgainAsPartOfTheNextPrompt) {
  Harness h({});
  const auto first = h.submit({.prompt = counting(1, 10), .max_tokens = 9});
  h.finish();
  std::vector<int32_t> prompt = counting(1, 10);
  const auto answer = tokens_of(*first);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.push_back(3);
  const auto second = h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(second->cached_tokens(), 18) << "the last token of an answer is never fed";
}

TEST(EngineLoop, APromptIsFoundWhileItsSequenceStillRuns) {
  Harness h({});
  h.submit({.prompt = counting(1, 13), .max_tokens = 20});
  h.step();
  const auto second = h.submit({.prompt = counting(1, 13), .max_tokens = 1});
  h.step();
  EXPECT_EQ(second->cached_tokens(), 12);
  h.finish();
}

// --- batches ---------------------------------------------------------------------------------------------------------------

TEST(EngineLoop, AWaitingPromptIsTriedAgainOnceItsPrefixIsThere) {
  // Blocks of 4 tokens. The first takes 10 of 16 blocks and 5 more as it grows; the second needs 12, of which it shares 10.
  Harness h({.ranks = 1, .blocks = 16, .max_model_len = 64, .tokens = 60});
  const auto first = h.submit({.prompt = counting(0, 40), .max_tokens = 20, .ignore_eos = true});
  const auto second = h.submit({.prompt = counting(0, 46), .max_tokens = 5, .ignore_eos = true});
  h.step();
  EXPECT_EQ(h.loop->running(), 1);
  h.step();
  EXPECT_EQ(h.loop->running(), 2) << "the first still decodes";
  h.finish();
  EXPECT_EQ(second->cached_tokens(), 40);
  EXPECT_EQ(tokens_of(*first).size(), 20u);
}

TEST(EngineLoop, WhereOneStepHasNoRoomForTheTablesTheNextOneDoes) {
  // Each choice wants 12500 entries; a step has room for 65536.
  Harness h({.ranks = 1, .block_tokens = 1, .blocks = 13000, .max_model_len = 12600, .tokens = 12600, .sequences = 8});
  const auto stream = h.submit({.prompt = counting(0, 12500), .max_tokens = 10, .choices = 8, .ignore_eos = true});
  int steps = 0;
  for (; h.loop->running() < 8 && steps < 4; ++steps) h.step();
  EXPECT_EQ(steps, 3) << "one for the prompt, and two for the tables";
  h.finish();
  for (int32_t choice = 0; choice < 8; ++choice) EXPECT_EQ(tokens_of(*stream, choice), plain_answer(12500, 10, choice));
}

TEST(EngineLoop, ALongPrefillNeverDelaysADecode) {
  Harness h({.blocks = 256, .max_model_len = 1024, .tokens = 32});
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int32_t i = 0; i < 4; ++i) streams.push_back(h.submit({.prompt = counting(100 * i, 3), .max_tokens = 50}));
  h.step();
  const auto lengthy = h.submit({.prompt = counting(500, 700), .max_tokens = 2});
  for (size_t made = 2; made <= 26; ++made) {
    ASSERT_TRUE(h.step());
    EXPECT_EQ(h.last_plan()->rows, 32);
    for (const auto& stream : streams) EXPECT_THAT(stream->events(), SizeIs(made));
  }
  EXPECT_THAT(lengthy->events(), SizeIs(1)) << "25 steps with 28 rows beside 4 decodes";
  h.finish();
}

TEST(EngineLoop, ChunksKeepToTheTargetTime) {
  Harness h({.blocks = 512, .max_model_len = 4096, .tokens = 256},
            [](EngineLoop::Options& options) { options.tpot_target_ms = 3; });
  // A step takes 1 ms and 100 us for each row of prefill: 20 rows keep to 3 ms.
  const auto step = [&] {
    h.loop->step(h.now);
    const int64_t prefill = std::max<int64_t>(h.last_plan()->rows - 1, 0);
    h.now += 1000 + 100 * prefill;
    return prefill;
  };
  h.submit({.prompt = counting(1, 1), .max_tokens = 200});
  for (int i = 0; i < 5; ++i) step();
  h.submit({.prompt = counting(300, 400), .max_tokens = 1});
  EXPECT_EQ(step(), 16) << "the least chunk, as long as nothing is known of prefill";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step(), 20);
  h.finish();
}

TEST(EngineLoop, EveryChoiceAnswersThePromptThatIsComputedOnce) {
  Harness h({});
  const auto stream = h.submit({.prompt = counting(1, 13), .max_tokens = 4, .choices = 3});
  EXPECT_EQ(h.loop->waiting(), 3);
  h.step();
  const StepPlan& plan = h.last_plan();
  ASSERT_THAT(plan[plan->sampling], SizeIs(3));
  for (int32_t k = 0; k < 3; ++k) {
    EXPECT_EQ(plan[plan->sampling][static_cast<size_t>(k)].row, 12);
    EXPECT_EQ(plan[plan->sampling][static_cast<size_t>(k)].choice, k);
    EXPECT_EQ(plan[plan->sampling][static_cast<size_t>(k)].position, 13);
  }
  EXPECT_THAT(stream->events(), SizeIs(3));
  h.step();
  EXPECT_EQ(h.last_plan()->rows, 3) << "one row each: the prompt is in the cache";
  EXPECT_THAT(h.last_plan()[h.last_plan()->copies], SizeIs(2)) << "the tail of the prompt, for two";
  h.finish();
  for (int32_t k = 0; k < 3; ++k) EXPECT_EQ(tokens_of(*stream, k), plain_answer(13, 4, k));
  EXPECT_EQ(h.rows_in_all(), 13 + 3 * 3);
  EXPECT_EQ(h.metrics.prefix_queries.value(), 13);
  EXPECT_EQ(h.metrics.prefix_hits.value(), 0);
}

TEST(EngineLoop, ChoicesShareThePenaltiesOfTheirPrompt) {
  Harness h({});
  Request request{.prompt = counting(1, 13), .max_tokens = 2, .choices = 3};
  request.sampling.repetition_penalty = 2;
  request.sampling.allowed_tokens = {1, 33};
  h.submit(std::move(request));
  h.step();
  const StepPlan& plan = h.last_plan();
  EXPECT_THAT(plan[plan->penalty_tokens], SizeIs(13));
  EXPECT_THAT(plan[plan->token_masks], SizeIs((kVocab + 31) / 32));
  EXPECT_EQ(plan[plan->token_masks][0], 2u);
  EXPECT_EQ(plan[plan->token_masks][1], 2u);
  for (const SamplingRow& row : plan[plan->sampling]) {
    EXPECT_EQ(row.penalty_tokens.count, 13);
    EXPECT_EQ(row.allowed_mask, 0);
  }
  h.step();
  EXPECT_THAT(h.last_plan()[h.last_plan()->token_masks], SizeIs((kVocab + 31) / 32)) << "one mask for all choices";
  h.finish();
}

TEST(EngineLoop, BatchInvariantRowsAllSeeThemselvesInTheCache) {
  Harness h({.tokens = 16}, [](EngineLoop::Options& options) { options.batch_invariant = true; });
  h.submit({.prompt = counting(1, 40), .max_tokens = 3});
  h.submit({.prompt = counting(1, 25), .max_tokens = 3});
  h.finish();
  for (const StepPlan& plan : h.runner.plans) {
    ASSERT_THAT(plan[plan->groups], SizeIs(1));
    EXPECT_EQ(plan[plan->groups][0].via, ContextVia::queries);
    EXPECT_FALSE(plan[plan->groups][0].fresh);
    // Visible keys of both ranks together: every position up to the row's own.
    for (size_t row = 0; row < static_cast<size_t>(plan->rows); ++row)
      EXPECT_EQ(plan.of_rank(plan->ctx_end, 0)[row] + plan.of_rank(plan->ctx_end, 1)[row], plan[plan->positions][row] + 1);
  }
}

// --- memory runs out -------------------------------------------------------------------------------------------------------

TEST(EngineLoop, TheYoungestGivesWayAndGoesOnLater) {
  // Four blocks of 8 tokens; each sequence grows to three.
  Harness h({.ranks = 2, .block_tokens = 4, .blocks = 4, .max_model_len = 24});
  const auto first = h.submit({.prompt = counting(1, 14), .max_tokens = 10});
  const auto second = h.submit({.prompt = counting(200, 14), .max_tokens = 10});
  h.finish();
  EXPECT_EQ(tokens_of(*first), plain_answer(14, 10));
  EXPECT_EQ(tokens_of(*second), plain_answer(14, 10));
  EXPECT_EQ(h.metrics.preemptions.value(), 1);
  EXPECT_LT(first->times().finished, second->times().finished);
  // Counted once, though the second was admitted twice and found its own blocks again.
  EXPECT_EQ(h.metrics.prefix_queries.value(), 28);
  EXPECT_EQ(h.metrics.prefix_hits.value(), 0);
  EXPECT_EQ(h.metrics.prompt_tokens.value(), 28);
  EXPECT_EQ(h.metrics.blocks_held.value(), 0);
}

TEST(EngineLoop, TheSmallestPoolServesEverybodyInTurn) {
  for (const int ranks : {1, 2, 4}) {
    const int64_t longest = 24;
    Harness h({.ranks = ranks,
               .block_tokens = 2,
               .blocks = longest / (2 * ranks),
               .max_model_len = longest,
               .tokens = 8,
               .sequences = 4});
    std::vector<std::shared_ptr<RequestStream>> streams;
    for (int32_t i = 0; i < 6; ++i)
      streams.push_back(
          h.submit({.prompt = counting(i % 2 * 100, 15 + i % 3), .max_tokens = longest - 15 - i % 3, .choices = 1 + i % 3}));
    h.finish();
    for (size_t i = 0; i < streams.size(); ++i) {
      const int64_t prompt = 15 + static_cast<int64_t>(i) % 3;
      for (int32_t k = 0; k < streams[i]->choices(); ++k)
        EXPECT_EQ(tokens_of(*streams[i], k), plain_answer(prompt, longest - prompt, k)) << "request " << i << " choice " << k;
    }
    EXPECT_EQ(h.metrics.blocks_held.value(), 0);
  }
}

TEST(EngineLoop, RandomBatchesInTinyPoolsAnswerAsIfAlone) {
  for_each_case([](Gen& gen) {
    const int ranks = gen.pick({1, 2, 3}), block_tokens = gen.pick({1, 2, 4});
    const int64_t longest = gen.in(4, 40), one = (longest + ranks * block_tokens - 1) / (ranks * block_tokens);
    Harness h({.ranks = ranks,
               .block_tokens = block_tokens,
               .blocks = gen.chance(0.3) ? one : gen.in(one, 4 * one),
               .max_model_len = longest,
               .tokens = gen.in(1, 24),
               .sequences = gen.in(1, 5)},
              [&](EngineLoop::Options& options) {
                options.prefix_caching = gen.chance(0.8);
                options.batch_invariant = gen.chance(0.2);
                options.tpot_target_ms = gen.chance(0.3) ? 2 : 0;
              });
    struct Sent {
      std::shared_ptr<RequestStream> stream;
      int64_t prompt = 0, max_tokens = 0;
      bool cancelled = false;
    };
    std::vector<Sent> sent;
    const int64_t most_choices = std::min(h.options.limits.sequences, h.options.limits.tokens);
    for (int event = 0; event < 60; ++event) {
      if (gen.chance(0.4)) {
        Request request;
        const int64_t prompt = gen.in(1, longest);
        request.prompt = counting(gen.pick({0, 0, 0, 7, 300}), prompt);
        request.max_tokens = gen.in(0, longest - prompt);
        request.choices = static_cast<int>(gen.in(1, std::min<int64_t>(most_choices, 3)));
        if (gen.chance(0.1)) request.prompt_log_probs = 1;
        if (gen.chance(0.2)) request.sampling.repetition_penalty = 2;
        const int64_t max_tokens = request.max_tokens;
        sent.push_back({.stream = h.submit(std::move(request)), .prompt = prompt, .max_tokens = max_tokens});
      } else if (gen.chance(0.1) && !sent.empty()) {
        Sent& one_sent = sent[static_cast<size_t>(gen.in(0, static_cast<int64_t>(sent.size()) - 1))];
        one_sent.cancelled |= !one_sent.stream->done();
        h.loop->cancel(one_sent.stream->id(), h.now);
        ASSERT_TRUE(one_sent.stream->done());
      } else {
        h.step();
      }
      if (gen.chance(0.02)) h.loop->reset_prefix_cache();
    }
    h.finish();
    for (const Sent& one_sent : sent) {
      ASSERT_TRUE(one_sent.stream->done());
      for (int32_t k = 0; k < one_sent.stream->choices(); ++k) {
        auto expected = plain_answer(one_sent.prompt, one_sent.max_tokens, k);
        const auto got = tokens_of(*one_sent.stream, k);
        if (one_sent.cancelled) expected.resize(std::min(expected.size(), got.size()));
        ASSERT_EQ(got, expected);
        ASSERT_NE(finish_of(*one_sent.stream, k), FinishReason::none);
      }
    }
    EXPECT_EQ(h.loop->running(), 0);
    EXPECT_EQ(h.loop->waiting(), 0);
    EXPECT_EQ(h.metrics.blocks_held.value(), 0);
    EXPECT_LE(h.metrics.prefix_hits.value(), h.metrics.prefix_queries.value());
  });
}

TEST(EngineLoop, TheSameSubmissionsGiveTheSamePlans) {
  const auto plans = [](uint64_t seed) {
    Gen gen(seed);
    Harness h({.ranks = 2, .block_tokens = 2, .blocks = 12, .max_model_len = 40, .tokens = 16, .sequences = 4});
    for (int i = 0; i < 20; ++i) {
      Request request{.prompt = counting(static_cast<int32_t>(gen.in(0, 2)), gen.in(1, 20)), .max_tokens = gen.in(1, 20)};
      request.choices = static_cast<int>(gen.in(1, 3));
      request.sampling.frequency_penalty = gen.chance(0.5) ? 1 : 0;
      h.submit(std::move(request));
      h.step();
    }
    h.finish();
    std::vector<std::vector<std::byte>> bytes;
    for (const StepPlan& plan : h.runner.plans) bytes.emplace_back(plan.bytes().begin(), plan.bytes().end());
    return bytes;
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    // Something else in memory and on the stack in between.
    const auto first = plans(seed), other = plans(seed + 100), second = plans(seed);
    EXPECT_TRUE(first == second);
    EXPECT_FALSE(first == other);
  }
}

TEST(EngineLoop, NothingIsAllocatedFromASubmissionToItsEnd) {
  for_each_case(
      [](Gen& gen) {
        const int ranks = gen.pick({1, 2, 4});
        Harness h({.ranks = ranks, .block_tokens = 2, .blocks = 40 / ranks, .max_model_len = 60, .tokens = 16, .sequences = 4},
                  [&](EngineLoop::Options& options) { options.batch_invariant = gen.chance(0.3); });
        int64_t in_loop = 0;
        const auto counted = [&](auto action) {
          const int64_t before = test::allocations_of_this_thread() - h.runner.allocated;
          action();
          in_loop += test::allocations_of_this_thread() - h.runner.allocated - before;
        };
        std::vector<std::shared_ptr<RequestStream>> streams;
        for (int i = 0; i < 30; ++i) {
          Request request{.prompt = counting(gen.pick({0, 0, 300}), gen.in(1, 40)), .max_tokens = gen.in(0, 20)};
          request.choices = static_cast<int>(gen.in(1, 4));
          request.min_tokens = gen.in(0, request.max_tokens);
          request.sampling.repetition_penalty = gen.pick({1.0f, 2.0f});
          request.sampling.frequency_penalty = gen.pick({0.0f, 1.0f});
          if (gen.chance(0.2)) request.sampling.allowed_tokens = {1, 5};
          if (gen.chance(0.2)) request.sampling.logit_bias = {{.token = 4, .bias = 1}};
          if (gen.chance(0.2)) request.prompt_log_probs = 2;
          if (gen.chance(0.2)) request.log_probs = 3;
          streams.push_back(std::make_shared<RequestStream>(h.next_id++, request));
          auto submission = EngineLoop::prepare(std::move(request), streams.back(), h.options);
          counted([&] { h.loop->add(std::move(submission), h.now); });
          for (int64_t steps = gen.in(0, 3); steps > 0; --steps) counted([&] { h.loop->step(h.now); });
          if (gen.chance(0.1)) counted([&] { h.loop->cancel(h.next_id - 1, h.now); });
        }
        while (h.loop->running() + h.loop->waiting() > 0) counted([&] { h.loop->step(h.now); });
        EXPECT_EQ(in_loop, 0);
        EXPECT_GT(h.metrics.preemptions.value() + h.metrics.prefix_hits.value(), 0);
      },
      20);
}

// --- endings ---------------------------------------------------------------------------------------------------------------

TEST(EngineLoop, ACancelledRequestIsInNoFurtherStep) {
  Harness h({});
  const auto running = h.submit({.prompt = counting(1, 13), .max_tokens = 50, .choices = 2});
  const auto other = h.submit({.prompt = counting(200, 4), .max_tokens = 4});
  h.step();
  h.step();
  const auto waiting = h.submit({.prompt = counting(300, 4), .max_tokens = 4});
  h.loop->cancel(waiting->id(), h.now);
  EXPECT_TRUE(waiting->done());
  EXPECT_EQ(finish_of(*waiting), FinishReason::abort);
  h.loop->cancel(running->id(), h.now);
  EXPECT_TRUE(running->done());
  for (int32_t k = 0; k < 2; ++k) {
    EXPECT_EQ(tokens_of(*running, k), plain_answer(13, 2, k));
    EXPECT_EQ(finish_of(*running, k), FinishReason::abort);
  }
  h.loop->check_invariants();
  h.step();
  EXPECT_EQ(h.last_plan()->rows, 1);
  h.finish();
  EXPECT_EQ(tokens_of(*other), plain_answer(4, 4));
  h.loop->cancel(running->id(), h.now);
  h.loop->cancel(12345, h.now);
  EXPECT_EQ(h.metrics.finished_abort.value(), 3);
  EXPECT_EQ(h.metrics.waiting.value(), 0);
  EXPECT_EQ(h.metrics.blocks_held.value(), 0);
  // What it stored can be found: the prompt and one token.
  std::vector<int32_t> prompt = counting(1, 13);
  const auto begun = plain_answer(13, 1);
  prompt.insert(prompt.end(), begun.begin(), begun.end());
  prompt.push_back(5);
  const auto again = h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(again->cached_tokens(), 14);
}

TEST(EngineLoop, AFailedStepEndsEverythingWithItsReason) {
  Harness h({.sequences = 2});
  const auto running = h.submit({.prompt = counting(1, 13), .max_tokens = 50, .choices = 2});
  const auto waiting = h.submit({.prompt = counting(200, 4), .max_tokens = 4});
  h.step();
  h.runner.fail = true;
  EXPECT_THROW(h.loop->step(h.now), SystemError);
  h.loop->fail_all("a rank is lost", h.now);
  for (const auto& stream : {running, waiting}) {
    EXPECT_TRUE(stream->done());
    EXPECT_EQ(stream->error(), "a rank is lost");
    EXPECT_EQ(finish_of(*stream), FinishReason::error);
  }
  EXPECT_EQ(h.metrics.finished_error.value(), 3);
  EXPECT_EQ(h.metrics.blocks_held.value(), 0);
  h.loop->check_invariants();
}

TEST(EngineLoop, WhatStillRunsWhenTheLoopGoesIsLeftUnfinished) {
  std::shared_ptr<RequestStream> stream;
  {
    Harness h({});
    stream = h.submit({.prompt = counting(1, 13), .max_tokens = 50});
    h.step();
  }
  EXPECT_FALSE(stream->done());
}

}  // namespace
}  // namespace weft
