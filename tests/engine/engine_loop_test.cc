// The loop's course: what a request asks for, what runs beside it, and how it ends.

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "engine/loop_harness.h"

namespace weft {
namespace {

using test::counting;
using test::finish_of;
using test::Harness;
using test::kEnd;
using test::kVocab;
using test::list;
using test::plain_answer;
using test::tokens_of;
using ::testing::ElementsAre;
using ::testing::SizeIs;

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

// --- batches ---------------------------------------------------------------------------------------------------------------

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

TEST(EngineLoop, ARequestWhoseTimeIsOverIsInNoFurtherStep) {
  Harness h({.sequences = 2});
  // A step a millisecond. The two choices take all places.
  const auto late = h.submit({.prompt = counting(1, 13), .max_tokens = 50, .choices = 2, .timeout_us = 3'500});
  h.step();
  h.step();
  const auto waiting = h.submit({.prompt = counting(300, 4), .max_tokens = 4, .timeout_us = 1'000});
  const auto patient = h.submit({.prompt = counting(200, 4), .max_tokens = 4, .timeout_us = 60'000'000});
  h.step();  // At 2 ms.
  EXPECT_FALSE(waiting->done());
  h.step();  // At 3 ms: just its time.
  EXPECT_EQ(finish_of(*waiting), FinishReason::timeout);
  EXPECT_THAT(tokens_of(*waiting), SizeIs(0));
  EXPECT_FALSE(late->done());
  h.step();  // At 4 ms.
  EXPECT_TRUE(late->done());
  for (int32_t k = 0; k < 2; ++k) {
    EXPECT_EQ(tokens_of(*late, k), plain_answer(13, 4, k)) << "what was generated stays";
    EXPECT_EQ(finish_of(*late, k), FinishReason::timeout);
  }
  EXPECT_EQ(h.last_plan()->rows, 4) << "the places are free in the very step that found it late";
  h.finish();
  EXPECT_EQ(tokens_of(*patient), plain_answer(4, 4));
  EXPECT_EQ(finish_of(*patient), FinishReason::length);
  EXPECT_EQ(h.metrics.finished_timeout.value(), 3);
  EXPECT_EQ(h.metrics.waiting.value(), 0);
  EXPECT_EQ(h.metrics.blocks_held.value(), 0);
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
