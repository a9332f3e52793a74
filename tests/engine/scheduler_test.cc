#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/chunk_sizer.h"
#include "engine/engine_loop.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Sequences on one rank, with blocks of four tokens.
struct Fixture {
  Fixture(int64_t blocks, int64_t tokens, int64_t sequences, int64_t max_length = 32, int64_t penalty_tokens = 1000)
      : memory({.layout = layout, .blocks = blocks, .sequences = sequences, .max_length = max_length}),
        scheduler(memory, {.tokens = tokens, .sequences = sequences, .penalty_tokens = penalty_tokens}) {
    options.layout = layout;
    options.vocab = 1000;
  }

  Sequence& add(std::vector<int32_t> prompt, int64_t max_tokens = 16, float repetition_penalty = 1) {
    Request request{.prompt = std::move(prompt), .max_tokens = max_tokens};
    request.sampling.repetition_penalty = repetition_penalty;
    const auto stream = std::make_shared<RequestStream>(submissions.size() + 1, request);
    submissions.push_back(EngineLoop::prepare(std::move(request), stream, options));
    submissions.back()->root = memory.root("", "");
    Sequence& sequence = submissions.back()->sequences.front();
    scheduler.add(sequence);
    return sequence;
  }
  /// Computes what was chosen; sequences that come to their end go on with token 5.
  std::vector<std::pair<Sequence*, int64_t>> step(int64_t prefill_beside_decodes = INT64_MAX) {
    std::vector<std::pair<Sequence*, int64_t>> chosen;
    for (const auto& [sequence, tokens] : scheduler.next(prefill_beside_decodes)) {
      chosen.emplace_back(sequence, tokens);
      sequence->cached += tokens;
      memory.publish(*sequence, false);
      if (sequence->pending() == 0) append_token(*sequence, 5);
      scheduler.done(*sequence);
    }
    memory.step_done();
    memory.check_invariants(scheduler.running());
    return chosen;
  }

  BlockLayout layout{.shard = {}, .block_tokens = 4};
  EngineLoop::Options options;
  SequenceMemory memory;
  std::vector<EngineLoop::SubmissionPtr> submissions;  ///< go before the memory that they hold blocks of
  Scheduler scheduler;
};

std::vector<int32_t> prompt(int32_t from, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

using Step = std::vector<std::pair<Sequence*, int64_t>>;

TEST(Scheduler, DecodesComeFirstAndPrefillFillsTheRest) {
  Fixture f(16, 8, 3);
  Sequence& a = f.add(prompt(0, 6));
  Sequence& b = f.add(prompt(100, 9));
  Sequence& c = f.add(prompt(200, 4));
  EXPECT_EQ(f.step(), (Step{{&a, 6}, {&b, 2}}));
  EXPECT_EQ(f.step(), (Step{{&a, 1}, {&b, 7}}));
  EXPECT_EQ(f.step(), (Step{{&a, 1}, {&b, 1}, {&c, 4}}));
  EXPECT_EQ(f.step(), (Step{{&a, 1}, {&b, 1}, {&c, 1}}));
}

TEST(Scheduler, PrefillBesideDecodesKeepsToItsBound) {
  Fixture f(16, 8, 3);
  Sequence& a = f.add(prompt(0, 6));
  EXPECT_EQ(f.step(1), (Step{{&a, 6}})) << "no decodes, no bound";
  Sequence& b = f.add(prompt(100, 9));
  EXPECT_EQ(f.step(3), (Step{{&a, 1}, {&b, 3}}));
  EXPECT_EQ(f.step(4), (Step{{&a, 1}, {&b, 4}}));
}

TEST(Scheduler, NoMoreThanTheSlotsAreAdmitted) {
  Fixture f(16, 8, 2);
  Sequence& a = f.add(prompt(0, 2));
  f.add(prompt(10, 2));
  Sequence& c = f.add(prompt(20, 2));
  EXPECT_THAT(f.step(), SizeIs(2));
  EXPECT_EQ(f.scheduler.waiting(), 1);
  EXPECT_EQ(c.slot, -1);
  const int32_t slot = a.slot;
  f.scheduler.remove(a);
  EXPECT_THAT(f.step(), SizeIs(2));
  EXPECT_EQ(c.slot, slot);
}

TEST(Scheduler, NobodyOvertakesTheFirstInTheQueue) {
  Fixture f(4, 16, 3, 16);
  f.add(prompt(0, 9));                      // three of four blocks
  Sequence& big = f.add(prompt(100, 6));    // needs two
  Sequence& small = f.add(prompt(200, 2));  // one would do
  EXPECT_THAT(f.step(), SizeIs(1));
  EXPECT_EQ(big.state, SequenceState::waiting_admission);
  EXPECT_EQ(small.state, SequenceState::waiting_admission);
}

TEST(Scheduler, WithoutBlocksTheYoungestGoesToTheFrontOfTheQueue) {
  Fixture f(5, 16, 4, 20);
  Sequence& a = f.add(prompt(0, 4));
  Sequence& b = f.add(prompt(100, 6));
  Sequence& c = f.add(prompt(200, 6));
  EXPECT_THAT(f.step(), SizeIs(3));  // 1 + 2 + 2 blocks
  Sequence& d = f.add(prompt(300, 2));
  EXPECT_EQ(f.step(), (Step{{&a, 1}, {&b, 1}})) << "a's token 4 needs a block, which c gives; c waits before d";
  EXPECT_EQ(c.state, SequenceState::waiting_admission);
  EXPECT_EQ(d.state, SequenceState::waiting_admission);
  EXPECT_EQ(c.cached, 0);
  EXPECT_THAT(c.tokens, SizeIs(7)) << "what was generated is kept";
  EXPECT_EQ(f.scheduler.preemptions(), 1);
  f.scheduler.remove(a);
  // Of c's first block the content is still there: 4 of its 7 tokens need not be computed again.
  EXPECT_EQ(f.step(), (Step{{&b, 1}, {&c, 3}, {&d, 2}}));
}

TEST(Scheduler, TheOldestAlwaysGoesOn) {
  Fixture f(4, 16, 4, 16);
  Sequence& a = f.add(prompt(0, 4), 12);
  f.add(prompt(100, 4), 12);
  f.add(prompt(200, 4), 12);
  for (int64_t length = 5; length <= 16; ++length) {
    f.step();
    ASSERT_EQ(a.tokens.size(), static_cast<size_t>(length));
  }
}

TEST(Scheduler, MorePenaltiesThanAStepHoldsTakeTurns) {
  // Each has 8 distinct tokens in its prompt and one generated; a step holds 20.
  Fixture f(40, 32, 4, 32, 20);
  std::vector<Sequence*> all;
  for (int32_t i = 0; i < 4; ++i) all.push_back(&f.add(prompt(20 * i, 8), 16, 2.0f));
  Step step = f.step();
  // Two prompts end, of the others the last token waits.
  EXPECT_EQ(step, (Step{{all[0], 8}, {all[1], 8}, {all[2], 7}, {all[3], 7}}));
  std::map<Sequence*, int> runs;
  for (int i = 0; i < 12; ++i) {
    step = f.step();
    EXPECT_THAT(step, SizeIs(2));
    for (const auto& [sequence, tokens] : step) ++runs[sequence];
  }
  for (Sequence* sequence : all) EXPECT_EQ(runs[sequence], 6);
  // Of the four that decode in the end two wait in every step.
  const int64_t postponed = f.scheduler.decodes_postponed();
  EXPECT_GT(postponed, 0);
  f.step();
  EXPECT_EQ(f.scheduler.decodes_postponed(), postponed + 2);
}

TEST(Scheduler, ABlockToCopyFromIsGivenUpWhereItIsNeeded) {
  // The pool holds one sequence of four blocks. The second matches the first in 14 tokens: three blocks, and two tokens of the
  // fourth, which would have to stay beside its copy.
  Fixture f(4, 16, 2, 16);
  Sequence& a = f.add(prompt(0, 14), 2);
  f.step();
  f.step();
  f.scheduler.remove(a);
  std::vector<int32_t> tokens = prompt(0, 14);
  tokens.push_back(900);
  tokens.push_back(901);
  Sequence& b = f.add(tokens, 0);
  EXPECT_EQ(f.step(), (Step{{&b, 4}}));
  EXPECT_EQ(f.memory.partial_hits_dropped(), 1);
}

TEST(ChunkSizer, AnswersFollowFromWhatStepsTook) {
  ChunkSizer sizer(10000, 16, 500);
  EXPECT_EQ(sizer.rows_beside_decodes(), 16) << "nothing is known yet";
  sizer.observe(2000, 0, true);
  sizer.observe(4000, 100, true);  // 2,000 us for 100 rows
  EXPECT_EQ(sizer.rows_beside_decodes(), (10000 - 2000) / 20);
  for (int i = 0; i < 50; ++i) sizer.observe(9990, 0, true);
  EXPECT_EQ(sizer.rows_beside_decodes(), 16) << "decodes alone come near the target";
  for (int i = 0; i < 50; ++i) sizer.observe(100, 0, true);
  for (int i = 0; i < 50; ++i) sizer.observe(200, 100, true);  // a microsecond a row
  EXPECT_EQ(sizer.rows_beside_decodes(), 500);
  EXPECT_EQ(ChunkSizer(0, 16, 500).rows_beside_decodes(), 500) << "no target";
  ChunkSizer fewer(50000, 16, 2048);
  fewer.observe(40000, 0, true);
  fewer.observe(30000, 16, true);  // most of the decodes have ended
  EXPECT_EQ(fewer.rows_beside_decodes(), 16) << "nothing is known of a row's time yet";
  fewer.observe(60000, 0, true);
  for (int i = 0; i < 20; ++i) fewer.observe(70000, 0, true);
  fewer.observe(80000, 16, true);
  EXPECT_EQ(fewer.rows_beside_decodes(), 16) << "decodes alone are over the target";
  EXPECT_EQ(ChunkSizer(1000, 16, 8).rows_beside_decodes(), 8);
}

}  // namespace
}  // namespace weft
