#include "support/reference_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/golden_files.h"

namespace weft::test {
namespace {

// The reference model is only a judge if it was judged itself: here by every golden of the architectures it knows.

const char* const kGoldens = WEFT_SOURCE_DIR "/tests/goldens";
constexpr double kBound = 1e-3;  // of the standard deviation of what is compared

/// Largest difference to the golden rows, which may be fewer than ours from `offset` on.
double worst(const std::vector<double>& ours, const std::vector<double>& golden, size_t offset = 0) {
  EXPECT_LE(offset + golden.size(), ours.size());
  double most = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double difference = std::abs(ours[offset + i] - golden[i]);
    most = std::isfinite(difference) ? std::max(most, difference) : HUGE_VAL;
  }
  return most;
}

std::vector<int32_t> argmax_rows(const std::vector<double>& logits, int64_t first_row, int64_t width) {
  std::vector<int32_t> out;
  for (auto row = logits.begin() + first_row * width; row != logits.end(); row += width) {
    out.push_back(static_cast<int32_t>(std::max_element(row, row + width) - row));
  }
  return out;
}

void compare(const ReferenceModel& model, const Golden& golden, const GoldenPrompt& prompt) {
  std::vector<int32_t> ids = prompt.input_ids;
  ids.insert(ids.end(), prompt.gen_ids.begin(), prompt.gen_ids.end() - 1);
  const ReferenceModel::Output out = model.forward(ids);
  const int64_t last = static_cast<int64_t>(prompt.input_ids.size()) - 1;
  const auto last_at = static_cast<size_t>(last * golden.vocab);
  const double bound = kBound * golden.logit_std;

  EXPECT_EQ(argmax_rows(out.logits, last, golden.vocab), prompt.gen_ids);
  EXPECT_LT(worst(out.logits, prompt.last_logits, last_at), bound);
  EXPECT_LT(worst(out.logits, prompt.gen_logits, last_at), bound);
  EXPECT_LT(worst(out.logits, prompt.logits), bound);
  for (size_t i = 0; i < prompt.hidden.size(); ++i) {
    SCOPED_TRACE("hidden" + std::to_string(i));
    const double spread = mean_row_std(prompt.hidden[i], static_cast<int64_t>(prompt.hidden[i].size()));
    EXPECT_LT(worst(out.hidden.at(i), prompt.hidden[i]), kBound * spread);
  }
  ASSERT_TRUE(prompt.router.empty() || prompt.router.size() == out.router.size());
  for (size_t i = 0; i < prompt.router.size(); ++i) {
    SCOPED_TRACE("sparse layer " + std::to_string(i));
    const GoldenPrompt::Router& theirs = prompt.router[i];
    std::vector<int32_t> experts = out.router[i].experts;
    experts.resize(theirs.experts.size());
    EXPECT_EQ(out.router[i].layer, theirs.layer);
    EXPECT_EQ(experts, theirs.experts);
    EXPECT_LT(worst(out.router[i].weights, theirs.weights), kBound);
  }
}

class ReferenceModelOn : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceModelOn, ReproducesLogitsTokensHiddenRowsAndExperts) {
  const Golden golden = load_golden(std::filesystem::path(kGoldens) / GetParam());
  const ReferenceModel model(golden.dir);
  EXPECT_EQ(model.vocab(), golden.vocab);
  ASSERT_EQ(golden.prompts.size(), 5u);
  for (const GoldenPrompt& prompt : golden.prompts) {
    SCOPED_TRACE(prompt.name);
    compare(model, golden, prompt);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, ReferenceModelOn,
                         testing::Values("llama_tied", "llama_bias", "qwen3", "qwen3_f32", "qwen3_moe", "deepseek_v2_lite",
                                         "deepseek_v2_group", "deepseek_v3", "deepseek_v3_fp8", "deepseek_v3_mtp"),
                         [](const auto& test) { return std::string(test.param); });

TEST(GoldenFiles, EveryFolderIsFoundAndUnknownArchitecturesAreNamed) {
  const auto folders = golden_folders(kGoldens);
  EXPECT_EQ(folders.size(), 12u);
  EXPECT_EQ(stored_architecture(std::filesystem::path(kGoldens) / "glm_moe_dsa"), "GlmMoeDsaForCausalLM");
  EXPECT_THROW(ReferenceModel(std::filesystem::path(kGoldens) / "glm_moe_dsa"), std::runtime_error);
  EXPECT_THROW(load_golden(WEFT_SOURCE_DIR "/tests/model"), std::exception);
}

TEST(GoldenFiles, AFolderIsNamedByTheLastPartOfItsPath) {
  EXPECT_EQ(folder_name("a/b"), "b");
  EXPECT_EQ(folder_name("a/b/"), "b");
  EXPECT_EQ(folder_name("a/b/."), "b");
}

TEST(GoldenFiles, StandardDeviationIsTakenRowByRow) { EXPECT_DOUBLE_EQ(mean_row_std({1, 3, 10, 16}, 2), (1 + 3) / 2.0); }

}  // namespace
}  // namespace weft::test
