#include "support/invariance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "model/config.h"
#include "support/checkpoint_writer.h"
#include "support/synthetic_models.h"

namespace weft::test {
namespace {

// How the KV cache is spread must not change what is computed: for every architecture, with W = 3, 6 and 8 and sizes that tp
// does not divide. A few points here; the grid is weft_goldens' business.

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const SyntheticModel& model : synthetic_models()) out.push_back(model.name);
  return out;
}

/// A model by name, written into `folder`.
void write_synthetic(const std::string& name, const TemporaryFolder& folder) {
  for (const SyntheticModel& model : synthetic_models()) {
    if (model.name == name) return write_checkpoint(folder.path(), model.config);
  }
  FAIL() << "no model " << name;
}

class InvarianceOf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::warn);  // No banner of every engine.
    write_synthetic(GetParam(), folder_);
    const ModelConfig config = load_config(folder_.path());
    ranks_ = legal_ranks({.q_heads = config.q_heads, .kv_heads = config.grid_kv_heads()});
  }
  bool allows(Ranks ranks) const { return std::find(ranks_.begin(), ranks_.end(), ranks) != ranks_.end(); }

  TemporaryFolder folder_;
  std::vector<Ranks> ranks_;
};

TEST_P(InvarianceOf, SpreadCachesGiveWhatOneRankGives) {
  Invariance invariance(folder_.path());
  int runs = 0;
  for (const auto& [tp, dcp] : {Ranks{3, 3}, Ranks{6, 3}, Ranks{6, 6}, Ranks{8, 8}}) {
    if (!allows({tp, dcp})) continue;
    const GridPoint queries{.tp = tp, .dcp = dcp, .interleave = 1, .budget = 50, .exchange = DcpExchange::queries};
    const GridPoint keys{.tp = tp,
                         .dcp = dcp,
                         .interleave = 4,
                         .block_size = 8,
                         .budget = 37,
                         .exchange = DcpExchange::keys,
                         .gather_tokens = 24};
    const GridPoint& point = runs % 2 == 0 ? keys : queries;
    EXPECT_LT(invariance.against_one_rank(point), 1e-4) << to_string(point);
    ++runs;
  }
  EXPECT_GT(runs, 0);
}

TEST_P(InvarianceOf, TheMostRanksGiveWhatTheReferenceModelGives) {
  const auto& [tp, dcp] = ranks_.back();
  const GridPoint point{.tp = tp, .dcp = dcp, .interleave = 4, .budget = 64};
  EXPECT_LT(Invariance(folder_.path()).against_reference(point), 1e-3) << to_string(point);
}

INSTANTIATE_TEST_SUITE_P(Written, InvarianceOf, testing::ValuesIn(names()), [](const auto& test) { return test.param; });

TEST(LongPrompts, RunInPiecesOfQueriesExpertsAndLogits) {
  // 1400 tokens are more than one query exchange, one pass through the experts and one block of logit rows take. In chunks of
  // 700 the second has 700 rows over 700 cached tokens, beside the decode rows of the short prompt.
  spdlog::set_level(spdlog::level::warn);
  for (const char* name : {"glm4_moe_24_over_1", "deepseek_v3_24_heads"}) {
    const TemporaryFolder folder;
    write_synthetic(name, folder);
    Invariance invariance(folder.path());
    for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
      const GridPoint point{.tp = 3, .dcp = 3, .interleave = 4, .budget = 700, .exchange = exchange};
      EXPECT_LT(invariance.against_one_rank(point, {40, 1400}), 1e-4) << name << " " << to_string(point);
    }
    EXPECT_LT(invariance.against_reference({.tp = 3, .dcp = 3, .budget = 4096}, {1400}), 1e-3) << name;
  }
}

TEST(EdgeLengths, StandOnBothSidesOfATurn) { EXPECT_EQ(edge_lengths(3, 4), (std::vector<int>{1, 2, 11, 12, 13, 61, 150})); }

}  // namespace
}  // namespace weft::test
