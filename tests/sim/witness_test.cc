#include "support/witness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/plan_builder.h"

namespace weft::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kVocab = 1000;

int32_t greedy(std::initializer_list<int32_t> tokens) {
  WitnessPath path;
  for (const int32_t token : tokens) path.feed(token);
  return witness_token(path.hidden(), {.row = {}, .penalty_tokens = {}, .biases = {}, .allowed = {}}, kVocab);
}

/// Two ranks, blocks of 4 rows on each: a virtual block is 8 tokens. The sequence's blocks are 7 and 3.
class WitnessTest : public ::testing::Test {
 protected:
  WitnessTest() {
    config_.q_heads = 4;
    config_.kv_heads = 1;
    config_.head_dim = 8;
  }
  StepPlan plan(std::vector<int32_t> tokens, int64_t cached, bool decode, const PlanBuilder::Flags& flags = {}) {
    const std::vector<BlockId> table{BlockId{7}, BlockId{3}};
    const SequenceStep step{.sequence = 1,
                            .cached = cached,
                            .tokens = tokens,
                            .table = table,
                            .decode = decode,
                            .logits = SequenceStep::Logits::last};
    const std::vector<TableUpdate> updates{{1, 0, 7}, {1, 1, 3}};
    return StepPlan::from_bytes(
        builder_.build(std::span(&step, 1), cached == 0 ? updates : std::vector<TableUpdate>(), {}, flags).bytes());
  }

  const BlockLayout layout_{.shard = {.ranks = 2, .interleave = 1}, .block_tokens = 4};
  ModelConfig config_;
  RankGrid grid_{{.tp = 2, .dcp = 2, .q_heads = 4, .kv_heads = 1, .interleave = 1, .block_tokens = 4}};
  PlanBuilder builder_{config_, grid_, {.layout = layout_, .context_rows = 4, .last_layer = 1}};
  Witness witness_{{.layout = layout_,
                    .blocks = 8,
                    .sequences = 2,
                    .blocks_per_sequence = 2,
                    .rows = 16,
                    .context_rows = 4,
                    .vocab = kVocab}};
};

TEST_F(WitnessTest, ChunksAndDecodesGiveWhatOneReadingGives) {
  EXPECT_THAT(witness_.run(plan({10, 11, 12}, 0, false)).ids, ElementsAre(greedy({10, 11, 12})));
  EXPECT_THAT(witness_.run(plan({13, 14}, 3, false)).ids, ElementsAre(greedy({10, 11, 12, 13, 14})));
  EXPECT_THAT(witness_.run(plan({15}, 5, true)).ids, ElementsAre(greedy({10, 11, 12, 13, 14, 15})));
  EXPECT_THAT(witness_.run(plan({16, 17, 18}, 6, true)).ids, ElementsAre(greedy({10, 11, 12, 13, 14, 15, 16, 17, 18})));
  EXPECT_THAT(witness_.faults(), IsEmpty());
  EXPECT_EQ(witness_.steps(), 4);
}

TEST_F(WitnessTest, ASampleOfThePreviousForwardCanBeFed) {
  const int32_t first = witness_.run(plan({10, 11, 12}, 0, false)).ids[0];
  EXPECT_THAT(witness_.run(plan({-1}, 3, true)).ids, ElementsAre(greedy({10, 11, 12, first})));
  witness_.run(plan({-3}, 4, true));
  EXPECT_THAT(witness_.faults(), ElementsAre(HasSubstr("sample 2 of 1")));
}

TEST_F(WitnessTest, PaddingIsStoredNowhereAndSeesNothing) {
  EXPECT_THAT(witness_.run(plan({10, 11, 12}, 0, false, {.pad_to = 8})).ids, ElementsAre(greedy({10, 11, 12})));
  EXPECT_THAT(witness_.run(plan({13}, 3, true, {.pad_to = 4})).ids, ElementsAre(greedy({10, 11, 12, 13})));
  EXPECT_THAT(witness_.faults(), IsEmpty());
  StepPlan sees = plan({14}, 4, true, {.pad_to = 4});
  sees.edit(sees->ctx_end)[3] = 1;
  sees.seal();
  witness_.run(sees);
  EXPECT_THAT(witness_.faults(), Contains(HasSubstr("padding row 3 sees keys")));
}

TEST_F(WitnessTest, MemoryThatWasNeverWrittenIsNoTokensRow) {
  const int32_t token = witness_.run(plan({13}, 3, true)).ids[0];
  EXPECT_FALSE(witness_.faults().empty());
  EXPECT_NE(token, greedy({0, 0, 0, 13}));
}

TEST_F(WitnessTest, ADamagedPlanIsNoticed) {
  StepPlan damaged = plan({10, 11, 12}, 0, false);
  damaged.edit(damaged->token_src)[1] = 12;
  witness_.run(damaged);
  EXPECT_THAT(witness_.faults(), ElementsAre(HasSubstr("damaged")));
}

TEST_F(WitnessTest, ALostRankIsAnError) {
  witness_.fail_at(1);
  witness_.run(plan({10, 11, 12}, 0, false));
  EXPECT_THROW(witness_.run(plan({13}, 3, true)), SystemError);
}

TEST(WitnessToken, DependsOnEverythingThatHasAnEffectAndOnNothingElse) {
  const PenaltyToken once[] = {{.token = 5, .generated = 1}}, twice[] = {{.token = 5, .generated = 2}};
  const LogitBias bias[] = {{.token = 5, .bias = 1}}, zero[] = {{.token = 5, .bias = 0}};
  const auto token = [](const SamplingRow& row, std::span<const PenaltyToken> penalties = {},
                        std::span<const LogitBias> biases = {}) {
    return witness_token(77, {.row = row, .penalty_tokens = penalties, .biases = biases, .allowed = {}}, 1 << 30);
  };
  const int32_t plain = token({});
  EXPECT_EQ(plain, token({.seed = 9, .choice = 1, .position = 3, .top_k = 4}));
  EXPECT_EQ(plain, token({}, once));
  EXPECT_EQ(plain, token({}, {}, zero));
  EXPECT_NE(plain, token({}, {}, bias));
  EXPECT_NE(plain, token({.frequency_penalty = 0.5f}, once));
  EXPECT_NE(token({.frequency_penalty = 0.5f}, once), token({.frequency_penalty = 0.5f}, twice));
  EXPECT_EQ(token({.presence_penalty = 0.5f}, once), token({.presence_penalty = 0.5f}, twice));
  EXPECT_NE(token({.temperature = 1}), token({.position = 1, .temperature = 1}));
  EXPECT_NE(token({.temperature = 1}), token({.choice = 1, .temperature = 1}));
}

TEST(WitnessToken, IsNeverOneThatMayNotCome) {
  const uint32_t allowed[] = {0b1011};
  const LogitBias biases[] = {{.token = 1, .bias = -std::numeric_limits<float>::infinity()}};
  for (uint64_t hidden = 0; hidden < 100; ++hidden) {
    const int32_t token = witness_token(hidden, {.row = {}, .penalty_tokens = {}, .biases = biases, .allowed = allowed}, 32);
    EXPECT_TRUE(token == 0 || token == 3) << token;
  }
}

}  // namespace
}  // namespace weft::test
