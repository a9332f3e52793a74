#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "comm/thread_group.h"
#include "engine/plan_builder.h"
#include "engine/rank_team.h"
#include "exchange/collective_exchange.h"
#include "ops/make_ops.h"
#include "ops/uniform.h"
#include "support/reference_sampling.h"

namespace weft {
namespace {

// Plans run by decoders directly, without the engine's loop: stages in a chain, copies of blocks, samples fed without the host,
// padding rows.

ModelConfig llama(int layers) {
  return parse_config(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 52,
          "num_hidden_layers": )" +
          std::to_string(layers) +
          R"(, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false, "torch_dtype": "float32",
          "hidden_act": "silu"})",
      "config.json");
}

/// A team of `ranks` = W ranks that hold layers [first, last) each, with seeded weights.
class Team {
 public:
  Team(const ModelConfig& config, int ranks, int first = 0, int last = -1, std::vector<Plane> extra = {})
      : config_(config),
        grid_({.tp = ranks, .dcp = ranks, .q_heads = 4, .kv_heads = 1, .interleave = 1, .block_tokens = 4}),
        first_(first),
        last_(last < 0 ? config.layers : last),
        layout_{.shard = grid_.shard(), .block_tokens = 4},
        tp_(ranks),
        dcp_(ranks),
        ranks_(static_cast<size_t>(ranks)),
        team_(ranks, [this] {
          tp_.abort();
          dcp_.abort();
        }) {
    const StepLimits limits{.dtype = DType::f32,
                            .rows = 64,
                            .sequences = 8,
                            .blocks_per_sequence = 32,
                            .query_rows = 16,
                            .context_rows = 8,
                            .expert_rows = 64,
                            .logit_rows = 4};
    const KvShape shape{.layout = layout_,
                        .kv_heads = 1,
                        .k_dim = 16,
                        .v_dim = 16,
                        .latent = false,
                        .dtype = DType::f32,
                        .first_layer = first_,
                        .last_layer = last_,
                        .extra_planes = std::move(extra)};
    team_.run([&](int index) {
      auto rank = std::make_unique<Rank>();
      rank->ops = make_cpu_ops(1);
      rank->tp = tp_.join(index);
      rank->dcp = dcp_.join(index);
      rank->weights = dummy_weights(
          config_, grid_, 3, {.dtype = DType::f32, .tp_rank = index, .first_layer = first_, .last_layer = last_}, *rank->ops);
      rank->region = std::make_unique<KvRegion>(shape, 32, [&](size_t bytes) { return rank->ops->allocate(bytes); });
      rank->exchange =
          std::make_unique<CollectiveExchange>(*rank->dcp, *rank->tp, *rank->ops, exchange_limits(config_, grid_, limits));
      rank->decoder = std::make_unique<Decoder>(Decoder::Parts{.config = config_,
                                                               .grid = grid_,
                                                               .weights = *rank->weights,
                                                               .limits = limits,
                                                               .region = *rank->region,
                                                               .ops = *rank->ops,
                                                               .exchange = *rank->exchange});
      ranks_[static_cast<size_t>(index)] = std::move(rank);
    });
  }
  ~Team() {
    team_.run([this](int index) { ranks_[static_cast<size_t>(index)].reset(); });
  }

  /// A builder of plans for this team's layers.
  PlanBuilder builder(DcpExchange exchange = DcpExchange::automatic) const {
    return PlanBuilder(config_, grid_,
                       {.layout = layout_,
                        .exchange = exchange,
                        .element_bytes = 4,
                        .context_rows = 8,
                        .first_layer = first_,
                        .last_layer = last_});
  }
  /// Runs the plan; `hidden` [T, H] per rank comes from the stage before or leaves for the one after.
  const StepResult& run(const StepPlan& plan, std::vector<std::vector<float>>* hidden = nullptr) {
    team_.run([&](int index) {
      Rank& rank = *ranks_[static_cast<size_t>(index)];
      View rows;
      if (hidden != nullptr) {
        auto& values = (*hidden)[static_cast<size_t>(index)];
        values.resize(static_cast<size_t>(plan->rows) * 32);
        rows = View(values.data(), DType::f32, {plan->rows, 32});
      }
      rank.decoder->forward(plan, rows, rank.result);
    });
    return ranks_.front()->result;
  }
  const StepResult& result(int rank) const { return ranks_[static_cast<size_t>(rank)]->result; }
  KvRegion& region(int rank) { return *ranks_[static_cast<size_t>(rank)]->region; }

 private:
  struct Rank {
    std::unique_ptr<Communicator> tp, dcp;
    std::unique_ptr<Ops> ops;
    std::optional<Weights> weights;
    std::unique_ptr<KvRegion> region;
    std::unique_ptr<Exchange> exchange;
    std::unique_ptr<Decoder> decoder;
    StepResult result;
  };
  ModelConfig config_;
  RankGrid grid_;
  int first_, last_;
  BlockLayout layout_;
  ThreadGroup tp_, dcp_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  RankTeam team_;
};

std::vector<BlockId> some_blocks(int32_t first, int count) {
  std::vector<BlockId> out;
  for (int i = 0; i < count; ++i) out.push_back(BlockId{first + i});
  return out;
}

std::vector<TableUpdate> whole_table(int32_t sequence, const std::vector<BlockId>& table) {
  std::vector<TableUpdate> out;
  for (size_t i = 0; i < table.size(); ++i)
    out.push_back({.sequence = sequence, .ordinal = static_cast<int32_t>(i), .block = static_cast<int32_t>(table[i])});
  return out;
}

std::vector<int32_t> some_tokens(int count, int32_t salt) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back((salt + 7 * i * i + 3 * i) % 67);
  return out;
}

float worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

using Logits = SequenceStep::Logits;

TEST(Decoder, TwoStagesInAChainEqualOneDecoder) {
  const ModelConfig config = llama(4);
  for (const int ranks : {1, 2}) {
    Team whole(config, ranks), front(config, ranks, 0, 2), back(config, ranks, 2, 4);
    PlanBuilder for_whole = whole.builder(), for_front = front.builder(), for_back = back.builder();
    const auto table = some_blocks(3, 4);
    const auto updates = whole_table(1, table);
    const auto prompt = some_tokens(11, 5), next = some_tokens(1, 9);
    const std::vector<SequenceStep> steps = {
        {.sequence = 1, .cached = 0, .tokens = prompt, .table = table, .logits = Logits::last},
        {.sequence = 1, .cached = 11, .tokens = next, .table = table, .decode = true, .logits = Logits::last}};
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::span<const TableUpdate> first_only = i == 0 ? std::span(updates) : std::span<const TableUpdate>();
      const PlanBuilder::Flags flags{.want_logits = true};
      const std::vector<float> wanted = whole.run(for_whole.build({&steps[i], 1}, first_only, {}, flags)).logits;
      std::vector<std::vector<float>> hidden(static_cast<size_t>(ranks));
      front.run(for_front.build({&steps[i], 1}, first_only, {}, flags), &hidden);
      const std::vector<float> got = back.run(for_back.build({&steps[i], 1}, first_only, {}, flags), &hidden).logits;
      EXPECT_LT(worst_difference(got, wanted), 1e-5f) << "step " << i << ", ranks " << ranks;
    }
  }
}

TEST(Decoder, SamplesFeedTheNextStepWithoutTheHost) {
  const ModelConfig config = llama(2);
  Team team(config, 2);
  PlanBuilder builder = team.builder();
  const auto table_a = some_blocks(0, 4), table_b = some_blocks(8, 4);
  auto updates = whole_table(0, table_a);
  for (const TableUpdate& update : whole_table(1, table_b)) updates.push_back(update);
  const auto prompt_a = some_tokens(7, 1), prompt_b = some_tokens(5, 2);
  const std::vector<SequenceStep> prefill = {
      {.sequence = 0, .cached = 0, .tokens = prompt_a, .table = table_a, .logits = Logits::last},
      {.sequence = 1, .cached = 0, .tokens = prompt_b, .table = table_b, .logits = Logits::last}};
  const std::vector<int32_t> ids = team.run(builder.build(prefill, updates, {}, {})).ids;
  ASSERT_EQ(ids.size(), 2u);

  // Sequence 1 comes first this time: its token is the sample of logit row 1.
  const std::vector<int32_t> by_row[] = {{-1 - 1}, {-1 - 0}}, by_id[] = {{ids[1]}, {ids[0]}};
  std::vector<float> logits[2];
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) team.run(builder.build(prefill, {}, {}, {}));  // the same samples again
    const auto& tokens = pass == 0 ? by_id : by_row;
    const std::vector<SequenceStep> decode = {
        {.sequence = 1, .cached = 5, .tokens = tokens[0], .table = table_b, .decode = true, .logits = Logits::last},
        {.sequence = 0, .cached = 7, .tokens = tokens[1], .table = table_a, .decode = true, .logits = Logits::last}};
    logits[pass] = team.run(builder.build(decode, {}, {}, {.want_logits = true})).logits;
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(Decoder, ACopiedPartOfABlockServesAnotherSequence) {
  const ModelConfig config = llama(2);
  for (const int ranks : {1, 2, 4}) {
    const std::vector<Plane> extra = {
        {.role = PlaneRole::test_replicated, .layer = 0, .row_elements = 1, .dtype = DType::i32, .replicated = true}};
    Team team(config, ranks, 0, -1, extra);
    PlanBuilder builder = team.builder();
    const int shared = 3 * ranks + 1;  // tokens, all in the first virtual block, not a multiple of anything
    const auto table_a = some_blocks(4, 2), table_b = some_blocks(9, 2);
    const auto prompt = some_tokens(shared, 4), rest = some_tokens(3, 8);
    std::vector<int32_t> whole = prompt;
    whole.insert(whole.end(), rest.begin(), rest.end());

    const SequenceStep cold{.sequence = 0, .cached = 0, .tokens = whole, .table = table_a, .logits = Logits::last};
    const std::vector<float> wanted =
        team.run(builder.build({&cold, 1}, whole_table(0, table_a), {}, {.want_logits = true})).logits;
    // The replicated plane travels with its block: every token of it on every rank.
    for (int rank = 0; rank < ranks; ++rank) {
      const View plane = team.region(rank).plane(PlaneRole::test_replicated, 0);
      for (int64_t i = 0; i < plane.count(); ++i) plane.as<int32_t>()[i] = static_cast<int32_t>(i);
    }
    const std::vector<BlockCopy> copies = {{.source = 4, .target = 9, .tokens = shared}};
    const SequenceStep warm{.sequence = 1, .cached = shared, .tokens = rest, .table = table_b, .logits = Logits::last};
    const std::vector<float> got =
        team.run(builder.build({&warm, 1}, whole_table(1, table_b), copies, {.want_logits = true})).logits;
    EXPECT_LT(worst_difference(got, wanted), 1e-4f) << ranks << " ranks";
    for (int rank = 0; rank < ranks; ++rank) {
      const int32_t rows = 4 * ranks;  // of a block in a replicated plane
      const int32_t* plane = team.region(rank).plane(PlaneRole::test_replicated, 0).as<int32_t>();
      for (int32_t i = 0; i < rows; ++i) EXPECT_EQ(plane[9 * rows + i], i < shared ? 4 * rows + i : 9 * rows + i);
    }
  }
}

TEST(Decoder, PaddingRowsChangeNothing) {
  const ModelConfig config = llama(2);
  for (const int ranks : {1, 2}) {
    Team team(config, ranks);
    PlanBuilder builder = team.builder();
    const auto table = some_blocks(0, 4);
    const auto prompt = some_tokens(9, 3), next = some_tokens(1, 6);
    const SequenceStep prefill{.sequence = 0, .cached = 0, .tokens = prompt, .table = table, .logits = Logits::last};
    const SequenceStep decode{
        .sequence = 0, .cached = 9, .tokens = next, .table = table, .decode = true, .logits = Logits::last};
    std::vector<float> plain[2], padded[2];
    for (const int32_t pad : {0, 16}) {
      auto& out = pad == 0 ? plain : padded;
      const PlanBuilder::Flags flags{.want_logits = true, .pad_to = pad};
      out[0] = team.run(builder.build({&prefill, 1}, whole_table(0, table), {}, flags)).logits;
      out[1] = team.run(builder.build({&decode, 1}, {}, {}, flags)).logits;
    }
    EXPECT_LT(worst_difference(plain[0], padded[0]), 1e-5f);
    EXPECT_LT(worst_difference(plain[1], padded[1]), 1e-5f);
  }
}

TEST(Decoder, AStepWithoutRequestsRuns) {
  const ModelConfig config = llama(1);
  for (const int ranks : {1, 2, 4}) {
    Team team(config, ranks);
    PlanBuilder builder = team.builder();
    EXPECT_TRUE(team.run(builder.build({}, {}, {}, {})).ids.empty());
    EXPECT_TRUE(team.run(builder.build({}, {}, {}, {.pad_to = 5})).ids.empty());
  }
}

TEST(Decoder, LogProbabilitiesFollowFromTheLogits) {
  const ModelConfig config = llama(2);
  Team team(config, 2);
  PlanBuilder builder = team.builder();
  const auto table = some_blocks(0, 4);
  const auto prompt = some_tokens(10, 3);
  const std::vector<int32_t> targets(prompt.begin() + 1, prompt.end());
  const SequenceStep step{
      .sequence = 0, .cached = 0, .tokens = prompt, .table = table, .logits = Logits::all, .targets = targets};
  const StepResult& result =
      team.run(builder.build({&step, 1}, whole_table(0, table), {}, {.want_logits = true, .want_log_probs = true}));
  ASSERT_EQ(result.log_probs.size(), 10u);
  for (size_t row = 0; row < 10; ++row) {
    const float* logits = result.logits.data() + row * 67;
    double sum = 0;
    for (int i = 0; i < 67; ++i) sum += std::exp(static_cast<double>(logits[i]));
    const double norm = std::log(sum);
    EXPECT_NEAR(result.log_probs[row], logits[result.ids[row]] - norm, 1e-4);
    EXPECT_NEAR(result.target_log_probs[row], row < 9 ? logits[targets[row]] - norm : 0.0, 1e-4);
  }
}

/// What the sampling rows of a plan should give for the logits that came of it.
std::vector<int32_t> expected_ids(const StepPlan& plan, const std::vector<float>& logits, int64_t vocab) {
  const std::span<const SamplingRow> rows = plan[plan->sampling];
  std::vector<int32_t> logit_row(rows.size());
  std::iota(logit_row.begin(), logit_row.end(), 0);
  const SampledLogits in{.logits = ConstView(logits.data(), DType::f32, {static_cast<int64_t>(rows.size()), vocab}),
                         .rows = rows,
                         .logit_row = logit_row.data(),
                         .penalty_tokens = plan[plan->penalty_tokens],
                         .biases = plan[plan->biases],
                         .token_masks = plan[plan->token_masks]};
  std::vector<int32_t> ids;
  for (size_t r = 0; r < rows.size(); ++r)
    ids.push_back(
        test::reference_draw(test::reference_candidates(in, r), uniform(rows[r].seed, rows[r].choice, rows[r].position)));
  return ids;
}

TEST(Decoder, SamplesAsTheRowsSayTheSameOnEveryRank) {
  const ModelConfig config = llama(2);
  const std::vector<PenaltyToken> penalties = {{.token = 3, .generated = 2}, {.token = 40, .in_prompt = 1}};
  const std::vector<LogitBias> biases = {{.token = 5, .bias = 2}, {.token = 9, .bias = -1}};
  const std::vector<uint32_t> allowed = {0xfffffff0, 0x0fffffff, 0x7};
  for (const int ranks : {1, 2, 4}) {
    Team team(config, ranks);
    PlanBuilder builder = team.builder();
    const auto table_a = some_blocks(0, 4), table_b = some_blocks(8, 4);
    auto updates = whole_table(0, table_a);
    for (const TableUpdate& update : whole_table(1, table_b)) updates.push_back(update);
    const auto prompt_a = some_tokens(10, 3), prompt_b = some_tokens(7, 4);
    // Choices of the last row, among more logit rows than are computed at once.
    std::vector<RowSampling> choices(6);
    for (size_t i = 0; i < choices.size(); ++i) {
      choices[i].row.temperature = 1;
      choices[i].row.seed = 77;
      choices[i].row.choice = static_cast<int32_t>(i);
    }
    std::vector<RowSampling> other(1);
    other[0] = {.row = {.seed = 5, .temperature = 0.7f, .top_k = 30, .top_p = 0.9f, .repetition_penalty = 1.2f},
                .penalty_tokens = penalties,
                .biases = biases,
                .allowed = allowed};
    const std::vector<SequenceStep> steps = {
        {.sequence = 0, .cached = 0, .tokens = prompt_a, .table = table_a, .logits = Logits::all, .sampling = choices},
        {.sequence = 1, .cached = 0, .tokens = prompt_b, .table = table_b, .logits = Logits::last, .sampling = other}};
    const StepPlan& plan = builder.build(steps, updates, {}, {.want_logits = true});
    const StepResult first = team.run(plan);
    ASSERT_EQ(first.ids.size(), 9u + 6u + 1u);
    EXPECT_EQ(first.ids, expected_ids(plan, first.logits, 67)) << ranks << " ranks";
    EXPECT_GT(std::set<int32_t>(first.ids.begin() + 9, first.ids.begin() + 15).size(), 1u) << "choices are draws of their own";
    for (int rank = 1; rank < ranks; ++rank) {
      EXPECT_EQ(team.result(rank).ids, first.ids);
      EXPECT_EQ(team.result(rank).checksum, first.checksum);
    }
    // Choices look at the same logits, to the bit; and the same plan gives the same tokens.
    for (size_t choice = 1; choice < 6; ++choice)
      EXPECT_TRUE(std::equal(first.logits.begin() + 9 * 67, first.logits.begin() + 10 * 67,
                             first.logits.begin() + static_cast<int64_t>(9 + choice) * 67));
    EXPECT_EQ(team.run(plan).ids, first.ids);
  }
}

TEST(Decoder, TheMostProbableTokensComeWithTheirLogProbabilities) {
  const ModelConfig config = llama(2);
  for (const int ranks : {1, 2}) {
    Team team(config, ranks);
    PlanBuilder builder = team.builder();
    const auto table = some_blocks(0, 4);
    const auto prompt = some_tokens(6, 3);
    std::vector<RowSampling> choices(3);
    for (size_t i = 0; i < choices.size(); ++i) choices[i].row.top_log_probs = static_cast<int32_t>(2 * i);
    const SequenceStep step{
        .sequence = 0, .cached = 0, .tokens = prompt, .table = table, .logits = Logits::last, .sampling = choices};
    const StepResult& result =
        team.run(builder.build({&step, 1}, whole_table(0, table), {}, {.want_logits = true, .want_log_probs = true}));
    ASSERT_EQ(result.top_ids.size(), 3u * 4u);
    std::vector<int32_t> order(67);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return result.logits[static_cast<size_t>(a)] > result.logits[static_cast<size_t>(b)];
    });
    for (size_t row = 0; row < 3; ++row) {
      for (size_t j = 0; j < 4; ++j) EXPECT_EQ(result.top_ids[row * 4 + j], j < 2 * row ? order[j] : -1);
      if (row > 0) {
        EXPECT_EQ(result.top_log_probs[row * 4], result.log_probs[row]);
      }
    }
  }
}

}  // namespace
}  // namespace weft
