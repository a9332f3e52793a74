// What the loop does with KV memory: prefixes that are found again, and pools that are too small for all.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "engine/loop_harness.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::counting;
using test::finish_of;
using test::for_each_case;
using test::Gen;
using test::Harness;
using test::list;
using test::plain_answer;
using test::tokens_of;
using ::testing::Each;
using ::testing::SizeIs;

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

TEST(EngineLoop, WhereOneStepHasNoRoomForTheTablesTheNextOneDoes) {
  // Each choice wants 12500 entries; a step has room for 65536.
  Harness h({.ranks = 1, .block_tokens = 1, .blocks = 13000, .max_model_len = 12600, .tokens = 12600, .sequences = 8});
  const auto stream = h.submit({.prompt = counting(0, 12500), .max_tokens = 10, .choices = 8, .ignore_eos = true});
  int steps = 0;
  for (; h.loop->running() < 8 && steps < 4; ++steps) h.step();
  EXPECT_EQ(steps, 3) << "one for the prompt, and two for the tables";
  EXPECT_GT(h.metrics.admissions_deferred.value(), 0);
  h.finish();
  for (int32_t choice = 0; choice < 8; ++choice) EXPECT_EQ(tokens_of(*stream, choice), plain_answer(12500, 10, choice));
}

}  // namespace
}  // namespace weft
