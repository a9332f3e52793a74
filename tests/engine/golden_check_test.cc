#include "support/golden_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace weft::test {
namespace {

// The checks must be able to fail: a perfect run passes, and every kind of blemish is seen.

template <typename T>
std::vector<float> floats(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

/// Two prompts over a vocabulary of 4: one with everything recorded, one that knows its last logits only.
Golden small_golden() {
  Golden golden{.name = "small",
                .dir = {},
                .architecture = "LlamaForCausalLM",
                .sparse_mlp = true,
                .vocab = 4,
                .logit_std = 1,
                .prompts = {}};
  GoldenPrompt full;
  full.name = "prompt2";
  full.input_ids = {2, 3};
  full.gen_ids = {1, 0};
  full.gen_margin = {1, 1};
  full.last_logits = {0, 2, 1, 0};
  full.gen_logits = {0, 2, 1, 0, 3, 2, 1, 0};
  full.logits = {5, 2, 1, 0, 0, 2, 1, 0};
  full.hidden = {{1, 2, 3, 4}, {2, 3, 4, 6}};
  full.router = {{.layer = 1, .top_k = 1, .experts = {0, 3}, .weights = {0.5, 0.25}}};
  GoldenPrompt plain;
  plain.name = "prompt3";
  plain.input_ids = {2, 3, 2};
  plain.gen_ids = {3, 3};
  plain.gen_margin = {1, 0.01};
  plain.last_logits = {0, 0, 0, 1};
  golden.prompts = {full, plain};
  return golden;
}

std::vector<Result> perfect_results(const Golden& golden) {
  std::vector<Result> results;
  for (const GoldenPrompt& prompt : golden.prompts) {
    Result result;
    result.gen_ids = prompt.gen_ids;
    result.captured.last_logits = floats(prompt.last_logits);
    result.captured.logits = floats(prompt.logits);
    result.captured.gen_logits = floats(prompt.gen_logits);
    for (const auto& rows : prompt.hidden) result.captured.hidden.push_back(floats(rows));
    for (const auto& router : prompt.router) {
      result.captured.router.push_back(
          {.layer = router.layer, .top_k = router.top_k, .experts = router.experts, .weights = floats(router.weights)});
    }
    results.push_back(std::move(result));
  }
  return results;
}

TEST(GoldenCheck, APerfectRunPassesBothLimits) {
  const Golden golden = small_golden();
  const ExactReport exact = check_exact(golden, perfect_results(golden));
  EXPECT_TRUE(exact.failures.empty());
  EXPECT_EQ(exact.tokens_equal, 4);
  EXPECT_EQ(exact.experts_equal, 2);
  EXPECT_EQ(exact.worst_logit, 0);
  const RoundedReport rounded = check_rounded(golden, perfect_results(golden));
  EXPECT_TRUE(rounded.failures.empty());
  EXPECT_EQ(rounded.same_argmax, 1);
}

TEST(GoldenCheck, EveryBlemishOfAnExactRunIsSeen) {
  const Golden golden = small_golden();
  const std::vector<std::function<void(std::vector<Result>&)>> blemishes = {
      [](auto& r) { r[1].captured.last_logits[2] += 0.002f; },
      [](auto& r) { r[0].captured.logits[7] -= 0.002f; },
      [](auto& r) { r[0].captured.gen_logits[4] = std::numeric_limits<float>::quiet_NaN(); },
      [](auto& r) { r[0].captured.gen_logits.resize(4); },
      [](auto& r) { r[0].gen_ids[1] = 2; },
      [](auto& r) { r[1].gen_ids.pop_back(); },
      [](auto& r) { r[0].captured.hidden[1][0] += 0.01f; },
      [](auto& r) { r[0].captured.hidden.pop_back(); },
      [](auto& r) { r[0].captured.router[0].experts[1] = 2; },
      [](auto& r) { r[0].captured.router[0].weights[0] += 0.001f; },
      [](auto& r) { r[0].captured.router[0].layer = 0; },
      [](auto& r) { r[0].captured.router.clear(); },
      [](auto& r) { r.pop_back(); },
  };
  for (size_t i = 0; i < blemishes.size(); ++i) {
    std::vector<Result> results = perfect_results(golden);
    blemishes[i](results);
    EXPECT_FALSE(check_exact(golden, results).failures.empty()) << "blemish " << i;
  }
}

TEST(GoldenCheck, RoundingIsJudgedByMediansAndShares) {
  const Golden golden = small_golden();
  // One row of the four may be far off: the median stays.
  std::vector<Result> results = perfect_results(golden);
  results[0].captured.logits[2] += 0.4f;
  EXPECT_TRUE(check_rounded(golden, results).failures.empty());
  // All rows a little too far.
  results = perfect_results(golden);
  for (float& value : results[0].captured.logits) value += 0.2f;
  for (float& value : results[0].captured.gen_logits) value += 0.2f;
  const RoundedReport shifted = check_rounded(golden, results);
  EXPECT_NEAR(shifted.median_row_error, 0.2, 1e-6);
  EXPECT_NEAR(shifted.rms, 0.2, 1e-6);
  EXPECT_FALSE(shifted.failures.empty());
  // The first choice of a row changed: 3 of 4 agree.
  results = perfect_results(golden);
  results[0].captured.gen_logits[5] = 3.05f;
  EXPECT_DOUBLE_EQ(check_rounded(golden, results).same_argmax, 0.75);
  EXPECT_FALSE(check_rounded(golden, results).failures.empty());
  results[0].captured.gen_logits[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(check_rounded(golden, results).failures.empty());
}

TEST(GoldenCheck, AMissedTokenCountsOnlyWhereTheGoldenIsClear) {
  const Golden golden = small_golden();
  std::vector<Result> results = perfect_results(golden);
  results[1].gen_ids = {3, 0};  // margin 0.01 s
  EXPECT_EQ(check_rounded(golden, results).clear_misses, 0);
  results[1].gen_ids = {0, 3};  // margin 1 s
  EXPECT_EQ(check_rounded(golden, results).clear_misses, 1);
}

}  // namespace
}  // namespace weft::test
