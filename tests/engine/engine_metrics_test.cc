// What the loop counts, by hand and against brute force. That nothing of it is allocated, other tests see.

#include "engine/engine_metrics.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/loop_harness.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::counting;
using test::for_each_case;
using test::Gen;
using test::Harness;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<double> rank_tokens(const EngineMetrics& metrics) {
  std::vector<double> out;
  for (const Gauge& rank : metrics.rank_kv_tokens) out.push_back(rank.value());
  return out;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// --- the shares of the ranks -----------------------------------------------------------------------------------------------

TEST(EngineMetrics, RanksHoldTheirTokensAndASharedBlockOnce) {
  // Two ranks, blocks of 4 tokens on each.
  Harness h({.ranks = 2, .block_tokens = 4});
  EXPECT_THAT(rank_tokens(h.metrics), ElementsAre(0, 0));
  h.submit({.prompt = counting(1, 19), .max_tokens = 30, .ignore_eos = true});
  h.step();
  EXPECT_THAT(rank_tokens(h.metrics), ElementsAre(10, 9));
  h.submit({.prompt = joined(counting(1, 16), counting(500, 5)), .max_tokens = 30, .ignore_eos = true});
  h.now += 100'000;
  h.step();
  EXPECT_EQ(h.metrics.prefix_hits.value(), 16);
  // The 16 tokens that both begin with, the first one's other 4, the second one's other 5.
  EXPECT_THAT(rank_tokens(h.metrics), ElementsAre(8 + 2 + 3, 8 + 2 + 2));
  h.step();
  EXPECT_THAT(rank_tokens(h.metrics), ElementsAre(13, 12)) << "a millisecond later nobody looks";
  h.finish();
  EXPECT_THAT(rank_tokens(h.metrics), ElementsAre(0, 0)) << "nothing runs";
}

TEST(EngineMetrics, RankTokensAreTheRowsThatHeldBlocksHave) {
  for_each_case([](Gen& gen) {
    const int ranks = gen.pick({1, 2, 3, 4}), interleave = gen.pick({1, 2, 4});
    const BlockLayout layout{.shard = {.ranks = ranks, .interleave = interleave}, .block_tokens = 4};
    SequenceMemory memory({.layout = layout, .blocks = 60, .sequences = 6, .max_length = 100});
    EngineLoop::Options options;
    options.layout = layout;
    options.vocab = 1000;
    std::vector<EngineLoop::SubmissionPtr> submissions;
    std::vector<Sequence*> running;
    for (int32_t slot = 0; slot < 6; ++slot) {
      const std::vector<int32_t> prompt = joined(counting(1, gen.pick({0, 9, 40})), counting(100 * slot + 300, gen.in(1, 50)));
      Request request{.prompt = prompt, .max_tokens = 1};
      const auto stream = std::make_shared<RequestStream>(static_cast<uint64_t>(slot + 1), request);
      submissions.push_back(EngineLoop::prepare(std::move(request), stream, options));
      submissions.back()->root = memory.root("", "");
      Sequence& sequence = submissions.back()->sequences.front();
      if (memory.admit(sequence, slot) != SequenceMemory::Admission::admitted) continue;
      running.push_back(&sequence);
      sequence.cached += gen.in(0, sequence.pending());
      memory.publish(sequence, gen.chance(0.5));
      memory.step_done();
    }
    std::set<std::pair<int, int64_t>> rows;  // rank, slot
    for (const Sequence* sequence : running)
      for (int64_t pos = 0; pos < sequence->cached; ++pos)
        for (int rank = 0; rank < ranks; ++rank)
          if (const int64_t row = layout.slot(sequence->blocks.blocks(), pos, rank); row >= 0) rows.emplace(rank, row);
    std::vector<int64_t> expected(static_cast<size_t>(ranks)), got(static_cast<size_t>(ranks));
    for (const auto& [rank, row] : rows) ++expected[static_cast<size_t>(rank)];
    memory.count_rank_tokens(running, got);
    EXPECT_EQ(got, expected) << "ranks " << ranks << " interleave " << interleave;
    for (Sequence* sequence : running) memory.release(*sequence);
  });
}

TEST(EngineMetrics, ARequestOfHalfThePoolShowsAsHalfAndThenAsNothing) {
  // Twenty blocks of 8 tokens.
  Harness h({.ranks = 2, .block_tokens = 4, .blocks = 20});
  h.submit({.prompt = counting(1, 76), .max_tokens = 4, .ignore_eos = true});
  h.step();
  h.step();
  EXPECT_EQ(h.metrics.kv_usage.value(), 0.5);
  EXPECT_EQ(h.metrics.blocks_held.value(), 10);
  h.finish();
  EXPECT_EQ(h.metrics.kv_usage.value(), 0);
  EXPECT_EQ(h.metrics.blocks_cached.value(), 10) << "cached blocks that nobody holds do not count";
}

// --- prompts, hits, copies -------------------------------------------------------------------------------------------------

TEST(EngineMetrics, HitsAreSharedBlocksAndCopiedRows) {
  // Blocks of 8 tokens over both ranks.
  Harness h({.ranks = 2, .block_tokens = 4});
  h.submit({.prompt = counting(1, 13), .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.metrics.computed_prompt_tokens.value(), 13);
  h.submit({.prompt = joined(counting(1, 11), counting(700, 5)), .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.metrics.prefix_queries.value(), 13 + 16);
  EXPECT_EQ(h.metrics.prefix_hits.value(), 11);
  EXPECT_EQ(h.metrics.prefix_hits_shared.value(), 8);
  EXPECT_EQ(h.metrics.prefix_hits_copied.value(), 3);
  EXPECT_EQ(h.metrics.kv_copies.value(), 1);
  EXPECT_EQ(h.metrics.kv_copied_tokens.value(), 3);
  EXPECT_EQ(h.metrics.computed_prompt_tokens.value(), 13 + 5);
  EXPECT_EQ(h.metrics.prompt_tokens.value(), 13 + 16);
  EXPECT_EQ(h.metrics.request_computed_tokens.sum(), 13 + 5);
  h.submit({.prompt = counting(1, 13), .max_tokens = 1, .prompt_log_probs = 0});
  h.finish();
  EXPECT_EQ(h.metrics.prompts_not_looked_up.value(), 1);
  EXPECT_EQ(h.metrics.prefix_queries.value(), 13 + 16) << "as before";
  EXPECT_EQ(h.metrics.computed_prompt_tokens.value(), 13 + 5 + 13);
}

TEST(EngineMetrics, RowsAreCountedByHowTheySeeTheirContext) {
  Harness h({.ranks = 2, .block_tokens = 4});
  h.submit({.prompt = counting(1, 13), .max_tokens = 4, .ignore_eos = true});
  h.finish();
  EXPECT_EQ(h.metrics.rows_without_context.value(), 13) << "a cold prompt";
  EXPECT_EQ(h.metrics.rows_via_queries.value(), 3) << "decodes";
  EXPECT_EQ(h.metrics.rows_via_keys.value(), 0);
  EXPECT_EQ(h.metrics.step_rows.value(), 16);
}

TEST(EngineMetrics, AnswersAreCountedBySequenceAndByRequest) {
  Harness h({.ranks = 2});
  h.runner.token = [](const SamplingRow& row) { return row.choice == 1 && row.position == 7 ? test::kEnd : 5; };
  h.runner.seconds = 0.5;
  h.submit({.prompt = counting(1, 5), .max_tokens = 6, .choices = 2});  // The second ends at its third token.
  h.finish();
  EXPECT_EQ(h.metrics.request_generated_tokens.sum(), 6 + 3);
  EXPECT_EQ(h.metrics.request_most_generated_tokens.sum(), 6);
  EXPECT_EQ(h.metrics.request_choices.sum(), 2);
  EXPECT_EQ(h.metrics.finished_length.value(), 1);
  EXPECT_EQ(h.metrics.finished_stop.value(), 1);
  // Steps begin a millisecond apart on this clock, however long they say they take.
  EXPECT_NEAR(h.metrics.request_time_per_output_token.sum(), 0.001 + 0.001, 1e-9);
}

// --- what had to be done another way ---------------------------------------------------------------------------------------

TEST(EngineMetrics, PreemptionsSayWhoseGrowthTookTheBlocks) {
  {
    // Four blocks of 8 tokens; each grows to three, the older one first.
    Harness h({.ranks = 2, .block_tokens = 4, .blocks = 4, .max_model_len = 24});
    h.submit({.prompt = counting(1, 14), .max_tokens = 10, .ignore_eos = true});
    h.submit({.prompt = counting(200, 14), .max_tokens = 10, .ignore_eos = true});
    h.finish();
    EXPECT_EQ(h.metrics.preemptions.value(), 1);
    EXPECT_EQ(h.metrics.preemptions_for_older.value(), 1);
    EXPECT_EQ(h.metrics.preemptions_for_itself.value(), 0);
  }
  {
    // The older one has the three that it needs, the younger one wants a second.
    Harness h({.ranks = 2, .block_tokens = 4, .blocks = 4, .max_model_len = 24});
    h.submit({.prompt = counting(1, 17), .max_tokens = 7, .ignore_eos = true});
    h.submit({.prompt = counting(200, 7), .max_tokens = 10, .ignore_eos = true});
    h.finish();
    EXPECT_EQ(h.metrics.preemptions.value(), 1);
    EXPECT_EQ(h.metrics.preemptions_for_older.value(), 0);
    EXPECT_EQ(h.metrics.preemptions_for_itself.value(), 1);
  }
}

// --- exchange time ---------------------------------------------------------------------------------------------------------

TEST(EngineMetrics, ARequestHasTheExchangeTimeOfItsStepsOnce) {
  Harness h({.ranks = 2, .sequences = 4});
  h.runner.seconds = 0.005;
  h.runner.exchange_seconds = 0.002;
  const auto two = h.submit({.prompt = counting(1, 5), .max_tokens = 6, .choices = 2, .ignore_eos = true});
  h.step();
  const auto late = h.submit({.prompt = counting(300, 5), .max_tokens = 2, .ignore_eos = true});
  h.finish();
  EXPECT_EQ(two->times().exchange, 2000 * h.metrics.steps.value()) << "it was in all steps, with one choice or with both";
  EXPECT_EQ(late->times().exchange, 2000 * 2);
}

// --- laws ------------------------------------------------------------------------------------------------------------------

TEST(EngineMetrics, SumsAgreeAfterRandomTrafficAndNothingIsLeft) {
  for_each_case(
      [](Gen& gen) {
        const int ranks = gen.pick({1, 2, 4});
        Harness h({.ranks = ranks, .block_tokens = 2, .blocks = 40 / ranks, .max_model_len = 60, .tokens = 16, .sequences = 4});
        for (int i = 0; i < 40; ++i) {
          Request request{.prompt = counting(gen.pick({0, 0, 300}), gen.in(1, 40)), .max_tokens = gen.in(0, 20)};
          request.choices = static_cast<int>(gen.in(1, 4));
          if (gen.chance(0.2)) request.prompt_log_probs = 2;
          h.submit(std::move(request));
          for (int64_t steps = gen.in(0, 3); steps > 0; --steps) h.step();
          if (gen.chance(0.2)) h.loop->cancel(h.next_id - static_cast<uint64_t>(gen.in(1, 3)), h.now);
        }
        h.finish();
        const EngineMetrics& m = h.metrics;
        EXPECT_EQ(m.preemptions.value(), m.preemptions_for_older.value() + m.preemptions_for_itself.value());
        EXPECT_EQ(m.prefix_hits.value(), m.prefix_hits_shared.value() + m.prefix_hits_copied.value());
        EXPECT_EQ(m.prompt_tokens.value(), m.computed_prompt_tokens.value() + m.prefix_hits.value());
        EXPECT_EQ(m.step_rows.value(), m.rows_without_context.value() + m.rows_via_queries.value() + m.rows_via_keys.value());
        EXPECT_EQ(m.step_rows.value(), h.rows_in_all());
        EXPECT_GE(m.kv_copies.value(), 0);
        EXPECT_THAT(rank_tokens(m), Each(0));
        EXPECT_EQ(m.blocks_held.value() + m.running.value() + m.waiting.value(), 0);
      },
      30);
}

}  // namespace
}  // namespace weft
