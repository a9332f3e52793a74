#include "engine/plan_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "support/allocations.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

/// A GQA model with one KV head, so that any dcp that divides tp is legal.
ModelConfig gqa_config() {
  ModelConfig config;
  config.hidden = 64;
  config.layers = 1;
  config.q_heads = 48;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.max_positions = 4096;
  return config;
}

std::vector<BlockId> blocks(std::initializer_list<int32_t> ids) {
  std::vector<BlockId> out;
  for (const int32_t id : ids) out.push_back(BlockId{id});
  return out;
}

struct Fixture {
  Fixture(int ranks, int interleave, int block_tokens, DcpExchange exchange = DcpExchange::automatic,
          int64_t context_rows = 1024)
      : config(gqa_config()),
        grid({.tp = ranks,
              .dcp = ranks,
              .q_heads = config.q_heads,
              .kv_heads = 1,
              .interleave = interleave,
              .block_tokens = block_tokens}),
        layout{.shard = grid.shard(), .block_tokens = block_tokens},
        builder(config, grid,
                {.layout = layout, .exchange = exchange, .element_bytes = 4, .context_rows = context_rows, .last_layer = 1}) {}
  ModelConfig config;
  RankGrid grid;
  BlockLayout layout;
  PlanBuilder builder;
};

std::vector<int32_t> as_vector(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

// Two ranks, one token each in turn, blocks of four: the numbers can be followed by hand.
TEST(PlanBuilder, PrefillChunkAfterCachedTokens) {
  Fixture f(2, 1, 4, DcpExchange::queries);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> tokens = {103, 104};
  const SequenceStep step{.sequence = 5, .cached = 3, .tokens = tokens, .table = table, .logits = SequenceStep::Logits::last};
  const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {});
  EXPECT_EQ(as_vector(plan[plan->positions]), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(as_vector(plan.slots_of(0, 0)), (std::vector<int32_t>{-1, 30}));
  EXPECT_EQ(as_vector(plan.slots_of(0, 1)), (std::vector<int32_t>{29, -1}));
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 0)), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 1)), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(as_vector(plan[plan->fresh_begin]), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(as_vector(plan[plan->fresh_end]), (std::vector<int32_t>{1, 2}));
  ASSERT_EQ(plan[plan->sampling].size(), 1u);
  EXPECT_EQ(plan[plan->sampling][0].row, 1);
  EXPECT_EQ(plan[plan->sampling][0].position, 5);  // of the token that is sampled
}

TEST(PlanBuilder, DecodeRowSeesItselfThroughTheCache) {
  Fixture f(2, 1, 4);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> token = {42};
  const SequenceStep step{.sequence = 0, .cached = 8, .tokens = token, .table = table, .decode = true};
  const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {});
  EXPECT_EQ(as_vector(plan.slots_of(0, 0)), std::vector<int32_t>{12});
  EXPECT_EQ(as_vector(plan.slots_of(0, 1)), std::vector<int32_t>{-1});
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 0)), std::vector<int32_t>{5});
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 1)), std::vector<int32_t>{4});
  // The replicated layout keeps the token on both ranks: row 0 of block 3, which has eight rows there.
  EXPECT_EQ(as_vector(plan.slots_of(1, 0)), std::vector<int32_t>{24});
  EXPECT_EQ(as_vector(plan.slots_of(1, 1)), std::vector<int32_t>{24});
}

// The bound of each row follows from its own position; the last row's bound minus something would give 3, 4, 5 on rank 1.
TEST(PlanBuilder, MultiTokenRowsAreLocalisedOneByOne) {
  Fixture f(2, 1, 4);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> tokens = {1, 2, 3};
  const SequenceStep step{.sequence = 0, .cached = 7, .tokens = tokens, .table = table, .decode = true};
  const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {});
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 0)), (std::vector<int32_t>{4, 5, 5}));
  EXPECT_EQ(as_vector(plan.of_rank(plan->ctx_end, 1)), (std::vector<int32_t>{4, 4, 5}));
}

TEST(PlanBuilder, RowsComeInRunsOfOneKind) {
  Fixture f(2, 1, 4, DcpExchange::keys);
  const auto table = blocks({0, 1, 2, 3});
  const std::vector<int32_t> one = {9}, two = {1, 2};
  const std::vector<SequenceStep> steps = {
      {.sequence = 0, .cached = 0, .tokens = two, .table = table},
      {.sequence = 1, .cached = 6, .tokens = one, .table = table, .decode = true},
      {.sequence = 2, .cached = 5, .tokens = two, .table = table},
      {.sequence = 3, .cached = 9, .tokens = one, .table = table, .decode = true},
  };
  const StepPlan& plan = f.builder.build(steps, {}, {}, {});
  EXPECT_EQ(as_vector(plan[plan->seq_of]), (std::vector<int32_t>{1, 3, 2, 2, 0, 0}));
  EXPECT_EQ(as_vector(f.builder.first_rows()), (std::vector<int32_t>{4, 0, 2, 1}));
  const auto groups = plan[plan->groups];
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].via, ContextVia::queries);
  EXPECT_FALSE(groups[0].fresh);
  EXPECT_EQ(groups[1].via, ContextVia::keys);
  EXPECT_EQ(groups[2].via, ContextVia::none);
  EXPECT_EQ(groups[2].end, 6);
}

TEST(PlanBuilder, ColdPrefillHasNoContextAndNoWave) {
  for (const DcpExchange exchange : {DcpExchange::automatic, DcpExchange::queries, DcpExchange::keys}) {
    Fixture f(4, 2, 4, exchange);
    const auto table = blocks({0});
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
    const SequenceStep step{.sequence = 0, .cached = 0, .tokens = tokens, .table = table};
    const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {});
    ASSERT_EQ(plan[plan->groups].size(), 1u);
    EXPECT_EQ(plan[plan->groups][0].via, ContextVia::none);
    EXPECT_TRUE(plan[plan->waves].empty());
  }
}

TEST(PlanBuilder, PaddingRowsAreStoredNowhereAndSeeNothing) {
  Fixture f(2, 1, 4);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> token = {42};
  const SequenceStep step{.sequence = 3, .cached = 5, .tokens = token, .table = table, .decode = true};
  const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {.pad_to = 4});
  EXPECT_EQ(plan->rows, 4);
  for (int rank = 0; rank < 2; ++rank) {
    for (size_t row = 1; row < 4; ++row) {
      EXPECT_EQ(plan.slots_of(0, rank)[row], -1);
      EXPECT_EQ(plan.slots_of(1, rank)[row], -1);
      EXPECT_EQ(plan.of_rank(plan->ctx_end, rank)[row], 0);
    }
  }
  EXPECT_EQ(plan[plan->groups].back().end, 4);
}

TEST(PlanBuilder, AStepWithoutSequencesIsAllPadding) {
  Fixture f(2, 1, 4);
  const StepPlan& plan = f.builder.build({}, {}, {}, {.pad_to = 3});
  EXPECT_EQ(plan->rows, 3);
  EXPECT_EQ(plan[plan->groups].back().end, 3);
  EXPECT_TRUE(plan[plan->sampling].empty());
}

TEST(PlanBuilder, ChoicesShareTheLastRowAndOneAddressOneList) {
  Fixture f(2, 1, 4);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> prompt = {10, 11, 12}, token = {42};
  const std::vector<PenaltyToken> penalties = {{.token = 10, .in_prompt = 1}, {.token = 12, .in_prompt = 1}},
                                  other = {{.token = 5}};
  const std::vector<LogitBias> biases = {{.token = 3, .bias = 1.5f}};
  const std::vector<uint32_t> mask = {6, 0};
  std::vector<RowSampling> choices(2);
  for (int32_t k = 0; k < 2; ++k) {
    RowSampling& choice = choices[static_cast<size_t>(k)];
    choice = {
        .row = {.seed = 9, .choice = k, .temperature = 0.5f}, .penalty_tokens = penalties, .biases = biases, .allowed = mask};
  }
  const RowSampling decode{.row = {.target = 77, .top_log_probs = 4}, .penalty_tokens = other, .allowed = mask};
  const std::vector<SequenceStep> steps = {
      {.sequence = 0,
       .cached = 0,
       .tokens = prompt,
       .table = table,
       .logits = SequenceStep::Logits::all,
       .targets = std::span(prompt).subspan(1),
       .top_log_probs = 2,
       .sampling = choices},
      {.sequence = 1,
       .cached = 5,
       .tokens = token,
       .table = table,
       .decode = true,
       .logits = SequenceStep::Logits::last,
       .sampling = {&decode, 1}},
  };
  const StepPlan& plan = f.builder.build(steps, {}, {}, {});
  EXPECT_EQ(as_vector(f.builder.first_logit_rows()), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(plan->max_top_log_probs, 4);
  const auto rows = plan[plan->sampling];
  ASSERT_EQ(rows.size(), 5u);
  const auto column = [&](auto member) {
    std::vector<int32_t> out;
    for (const SamplingRow& row : rows) out.push_back(row.*member);
    return out;
  };
  EXPECT_EQ(column(&SamplingRow::row), (std::vector<int32_t>{0, 1, 2, 3, 3}));
  EXPECT_EQ(column(&SamplingRow::position), (std::vector<int32_t>{6, 1, 2, 3, 3}));
  EXPECT_EQ(column(&SamplingRow::target), (std::vector<int32_t>{77, 11, 12, -1, -1}));
  EXPECT_EQ(column(&SamplingRow::choice), (std::vector<int32_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(column(&SamplingRow::top_log_probs), (std::vector<int32_t>{4, 2, 2, 0, 0}));
  EXPECT_EQ(column(&SamplingRow::allowed_mask), (std::vector<int32_t>{0, -1, -1, 0, 0}));
  EXPECT_EQ(plan[plan->token_masks].size(), 2u);
  ASSERT_EQ(plan[plan->penalty_tokens].size(), 3u);
  EXPECT_EQ(rows[0].penalty_tokens.begin, 0);
  EXPECT_EQ(rows[0].penalty_tokens.count, 1);
  for (const size_t choice : {3u, 4u}) {
    EXPECT_EQ(rows[choice].penalty_tokens.begin, 1);
    EXPECT_EQ(rows[choice].penalty_tokens.count, 2);
    EXPECT_EQ(rows[choice].biases.begin, 0);
    EXPECT_EQ(rows[choice].biases.count, 1);
    EXPECT_EQ(rows[choice].seed, 9u);
    EXPECT_EQ(rows[choice].temperature, 0.5f);
  }
  EXPECT_EQ(plan[plan->biases].size(), 1u);
}

/// More context by keys than memory was taken for: four sequences of the greatest length fit, the fifth sends its queries.
TEST(PlanBuilder, AReservedBuilderTakesNoMoreMemory) {
  Fixture f(2, 1, 4, DcpExchange::keys, 16);
  f.builder.reserve({.rows = 20,
                     .sequences = 5,
                     .max_length = 64,
                     .sampling_rows = 25,
                     .table_updates = 80,
                     .penalty_tokens = 10,
                     .biases = 10,
                     .vocab = 100});
  const std::vector<BlockId> table(8, BlockId{1});
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  std::vector<SequenceStep> steps;
  for (int32_t i = 0; i < 5; ++i)
    steps.push_back({.sequence = i, .cached = 60, .tokens = tokens, .table = table, .logits = SequenceStep::Logits::all});
  const std::vector<TableUpdate> updates(80);
  const std::vector<BlockCopy> copies(5);
  const size_t capacity = f.builder.build({}, {}, {}, {.pad_to = 1}).capacity();
  const int64_t before = test::allocations_of_this_thread();
  const StepPlan& plan = f.builder.build(steps, updates, copies, {});
  EXPECT_EQ(test::allocations_of_this_thread(), before);
  EXPECT_EQ(plan.capacity(), capacity);
  EXPECT_LE(plan.bytes().size(), capacity);
  ASSERT_EQ(plan[plan->groups].size(), 2u);
  EXPECT_EQ(plan[plan->groups][0].via, ContextVia::queries);
  EXPECT_EQ(plan[plan->groups][0].end, 4);
  EXPECT_EQ(plan[plan->groups][1].via, ContextVia::keys);
  EXPECT_EQ(plan[plan->waves].size(), 4u * 30 / 16 + 1);
}

TEST(PlanBuilder, PlansSurviveTransportAndDamageIsSeen) {
  Fixture f(2, 1, 4);
  const auto table = blocks({7, 3});
  const std::vector<int32_t> token = {42};
  const SequenceStep step{.sequence = 3, .cached = 5, .tokens = token, .table = table, .decode = true};
  const StepPlan& plan = f.builder.build({&step, 1}, {}, {}, {});
  const StepPlan copy = StepPlan::from_bytes(plan.bytes());
  EXPECT_EQ(copy[copy->token_src][0], 42);
  for (size_t at = 0; at < plan.bytes().size(); at += 7) {
    std::vector<std::byte> damaged(plan.bytes().begin(), plan.bytes().end());
    damaged[at] ^= std::byte{4};
    EXPECT_THROW(StepPlan::from_bytes(damaged), SystemError) << "byte " << at;
  }
  EXPECT_THROW(StepPlan::from_bytes(plan.bytes().first(plan.bytes().size() - 1)), SystemError);
}

/// Random batches; what every row can see, written out position by position, must be exactly what causal attention asks for.
TEST(PlanBuilder, EveryRowSeesEveryEarlierPositionOnce) {
  for_each_case([](Gen& gen) {
    const int ranks = gen.pick({1, 2, 3, 4, 6, 8}), block_tokens = gen.pick({2, 4, 12});
    const int interleave = gen.pick({1, 2, block_tokens});
    const int64_t context_rows = gen.pick<int64_t>({1, 2, 5, 16, 1000});
    Fixture f(ranks, interleave, block_tokens, gen.pick({DcpExchange::automatic, DcpExchange::queries, DcpExchange::keys}),
              context_rows);

    struct Case {
      std::vector<BlockId> table;
      std::vector<int32_t> tokens;
    };
    const auto count = static_cast<size_t>(gen.in(1, 6));
    std::vector<Case> cases(count);
    std::vector<SequenceStep> steps(count);
    std::vector<int32_t> ids(1000);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[static_cast<size_t>(gen.in(0, static_cast<int64_t>(i)))]);
    size_t next_id = 0;
    for (size_t i = 0; i < count; ++i) {
      const int64_t cached = gen.chance(0.3) ? 0 : gen.in(1, 6 * block_tokens * ranks / 2);
      cases[i].tokens.assign(static_cast<size_t>(gen.in(1, 9)), 1);
      const int64_t length = cached + static_cast<int64_t>(cases[i].tokens.size());
      for (int64_t b = 0; b < f.layout.blocks_for(length); ++b) cases[i].table.push_back(BlockId{ids[next_id++]});
      steps[i] = {.sequence = static_cast<int32_t>(i),
                  .cached = cached,
                  .tokens = cases[i].tokens,
                  .table = cases[i].table,
                  .decode = gen.chance(0.4)};
    }
    const StepPlan& plan = f.builder.build(steps, {}, {}, {});

    // Which position lies in which row of the cache of which rank, by brute force.
    std::map<std::pair<int, int64_t>, std::pair<size_t, int64_t>> stored;
    for (size_t i = 0; i < count; ++i) {
      for (int64_t pos = 0; pos < steps[i].cached + static_cast<int64_t>(steps[i].tokens.size()); ++pos) {
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t slot = f.layout.slot(cases[i].table, pos, rank);
          if (slot >= 0) {
            ASSERT_TRUE(stored.emplace(std::pair{rank, slot}, std::pair{i, pos}).second) << "two tokens in one row";
          }
        }
      }
    }
    int32_t first_fresh = plan->rows;
    std::vector<const RowGroup*> group_of(static_cast<size_t>(plan->rows));
    for (const RowGroup& group : plan[plan->groups]) {
      for (int32_t row = group.begin; row < group.end; ++row) group_of[static_cast<size_t>(row)] = &group;
      if (group.fresh) first_fresh = std::min(first_fresh, group.begin);
    }
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < steps[i].tokens.size(); ++k) {
        const auto row = static_cast<size_t>(f.builder.first_rows()[i]) + k;
        const int64_t pos = steps[i].cached + static_cast<int64_t>(k);
        const RowGroup& group = *group_of[row];
        std::multiset<int64_t> seen;
        if (group.via == ContextVia::queries) {
          for (int rank = 0; rank < ranks; ++rank) {
            for (int64_t j = plan.of_rank(plan->ctx_begin, rank)[row]; j < plan.of_rank(plan->ctx_end, rank)[row]; ++j) {
              const auto [sequence, position] = stored.at({rank, f.layout.local_slot(cases[i].table, j)});
              ASSERT_EQ(sequence, i);
              seen.insert(position);
            }
          }
        }
        for (const ContextWave& wave : plan[plan->waves]) {
          ASSERT_LE(wave.rows, context_rows);
          if (static_cast<int32_t>(row) < wave.row_begin || static_cast<int32_t>(row) >= wave.row_end) continue;
          ASSERT_EQ(group.via, ContextVia::keys);
          const size_t n = static_cast<size_t>(wave.row_end - wave.row_begin);
          for (int rank = 0; rank < ranks; ++rank) {
            const size_t at =
                static_cast<size_t>(wave.ranges_at) + static_cast<size_t>(rank) * n + row - static_cast<size_t>(wave.row_begin);
            for (int32_t j = plan[plan->wave_begin][at]; j < plan[plan->wave_end][at]; ++j) {
              ASSERT_EQ(j / wave.rows, rank);
              const int32_t slot = plan.of_rank(plan->gather_slots, rank)[static_cast<size_t>(wave.slots_at + j % wave.rows)];
              ASSERT_GE(slot, 0) << "padding is visible";
              const auto [sequence, position] = stored.at({rank, slot});
              ASSERT_EQ(sequence, i);
              seen.insert(position);
            }
          }
        }
        if (group.fresh) {
          for (int32_t j = plan[plan->fresh_begin][row]; j < plan[plan->fresh_end][row]; ++j) {
            const auto other = static_cast<size_t>(first_fresh + j);
            ASSERT_EQ(plan[plan->seq_of][other], static_cast<int32_t>(i));
            seen.insert(plan[plan->positions][other]);
          }
        }
        std::multiset<int64_t> wanted;
        for (int64_t p = 0; p <= pos; ++p) wanted.insert(p);
        EXPECT_EQ(seen, wanted) << "row " << row << " at position " << pos;
      }
    }
  });
}

}  // namespace
}  // namespace weft
