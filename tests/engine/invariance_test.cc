#include "support/invariance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
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

class InvarianceOf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::warn);  // No banner of every engine.
    const auto models = synthetic_models();
    const auto model = std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == GetParam(); });
    write_checkpoint(folder_.path(), model->config);
    ranks_ = legal_ranks(model->heads);
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

TEST(EdgePrompts, StandOnBothSidesOfATurn) {
  std::vector<size_t> lengths;
  for (const Prompt& prompt : edge_prompts(3, 4, 100)) lengths.push_back(prompt.input_ids.size());
  EXPECT_EQ(lengths, (std::vector<size_t>{1, 2, 11, 12, 13, 61, 150}));
}

}  // namespace
}  // namespace weft::test
