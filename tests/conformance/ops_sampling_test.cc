// What is drawn from logits, and log probabilities, against references that sort everything and compute in float64.

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>

#include "conformance/backend.h"
#include "ops/uniform.h"
#include "support/prop.h"
#include "support/reference_ops.h"
#include "support/reference_sampling.h"

namespace weft {
namespace {

using test::any_ops;
using test::Array;
using test::Candidate;
using test::for_each_case;
using test::Gen;
using test::ops;
using test::SamplingBatch;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

/// The share of each token in `draws` draws of one row at successive positions.
std::vector<double> shares(SamplingRow row, std::span<const float> logits, int draws) {
  SamplingBatch batch(static_cast<int64_t>(logits.size()));
  const int32_t at = batch.add_logits(logits);
  for (row.position = 0; row.position < draws; ++row.position) batch.add(at, row);
  std::vector<double> result(logits.size());
  for (const int32_t id : batch.sample(ops())) result[static_cast<size_t>(id)] += 1.0 / draws;
  return result;
}

/// The tokens that ever come.
std::vector<int32_t> kept(const SamplingRow& row, std::span<const float> logits) {
  const std::vector<double> all = shares(row, logits, 4000);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i] > 0) tokens.push_back(static_cast<int32_t>(i));
  return tokens;
}

using Tokens = std::vector<int32_t>;

/// Logits of these probabilities.
std::vector<float> logs(std::initializer_list<double> probabilities) {
  std::vector<float> result;
  for (const double p : probabilities) result.push_back(static_cast<float>(std::log(p)));
  return result;
}

// --- random numbers ---------------------------------------------------------------------------------------------------

TEST(Uniform, IsPhiloxAsPublished) {
  // Known answers of Random123's Philox 4x64 with 10 rounds: counter 0 under key 0.
  EXPECT_EQ(uniform(0, 0, 0), static_cast<double>((0x16554d9eca36314cu >> 12) * 2 + 1) * 0x1p-53);
}

TEST(Uniform, DependsOnEachPartOfItsKeyAndFillsTheOpenInterval) {
  EXPECT_NE(uniform(1, 0, 0), uniform(0, 0, 0));
  EXPECT_NE(uniform(uint64_t{1} << 63, 0, 0), uniform(0, 0, 0));
  EXPECT_NE(uniform(0, 1, 0), uniform(0, 0, 0));
  EXPECT_NE(uniform(0, 0, 1), uniform(0, 0, 0));
  EXPECT_EQ(uniform(7, 8, 9), uniform(7, 8, 9));
  double sum = 0, least = 1, most = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(5, 1, i);
    sum += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.004);  // four standard deviations
  EXPECT_GT(least, 0);
  EXPECT_LT(least, 1e-3);
  EXPECT_LT(most, 1);
  EXPECT_GT(most, 1 - 1e-3);
}

// --- greedy -----------------------------------------------------------------------------------------------------------

Tokens greedy(std::span<const float> logits, int64_t vocab) {
  SamplingBatch batch(vocab);
  for (size_t at = 0; at < logits.size(); at += static_cast<size_t>(vocab))
    batch.add(batch.add_logits(logits.subspan(at, static_cast<size_t>(vocab))), {});
  return batch.sample(ops());
}

TEST(Greedy, TakesTheLowestIndexOfTheLargestAndNaNLast) {
  const std::vector<float> logits = {1, 5, 5, 2, kNaN, -kInf, kNaN, -kInf, kNaN, kNaN, kNaN, kNaN, -1, kInf, kNaN, kInf};
  EXPECT_EQ(greedy(logits, 4), (Tokens{1, 1, 0, 1}));
}

TEST(Greedy, OfLongRows) {
  for_each_case([](Gen& gen) {
    const int64_t width = gen.in(1, 9000);
    std::vector<float> logits(static_cast<size_t>(width));
    for (float& x : logits) x = static_cast<float>(gen.normal());
    for (int i = 0; i < 2; ++i) logits[static_cast<size_t>(gen.in(0, width - 1))] = 9;
    EXPECT_EQ(greedy(logits, width),
              (Tokens{static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())}));
  });
}

// --- each step by hand ------------------------------------------------------------------------------------------------

TEST(Sampling, PenaltiesBiasAndMaskByHand) {
  const std::vector<float> logits = {4, 3, 2, -1};
  const auto pick = [&](const SamplingRow& row, std::vector<PenaltyToken> penalties, std::vector<LogitBias> biases = {},
                        Tokens allowed = {}) {
    SamplingBatch batch(4);
    batch.add(batch.add_logits(logits), row, penalties, biases, allowed);
    return batch.sample(ops()).front();
  };
  // 4 / 1.5 = 2.67 is below 3; 4 / 1.25 = 3.2 is not. A token of the prompt counts like a generated one.
  EXPECT_EQ(pick({.repetition_penalty = 1.5f}, {{.token = 0, .in_prompt = 1}}), 1);
  EXPECT_EQ(pick({.repetition_penalty = 1.5f}, {{.token = 0, .generated = 1}}), 1);
  EXPECT_EQ(pick({.repetition_penalty = 1.25f}, {{.token = 0, .generated = 9}}), 0);
  // -1 * 3 = -3 is below -2: a negative logit is multiplied.
  EXPECT_EQ(pick({.repetition_penalty = 3}, {{.token = 3, .in_prompt = 1}}, {{.token = 2, .bias = -4}}, {2, 3}), 2);
  // 4 - 3 * 0.4 = 2.8 is below 3; two times is not enough; the prompt does not count.
  EXPECT_EQ(pick({.frequency_penalty = 0.4f}, {{.token = 0, .generated = 3}}), 1);
  EXPECT_EQ(pick({.frequency_penalty = 0.4f}, {{.token = 0, .generated = 2, .in_prompt = 1}}), 0);
  EXPECT_EQ(pick({.presence_penalty = 1.1f}, {{.token = 0, .generated = 1}}), 1);
  EXPECT_EQ(pick({.presence_penalty = 1.1f}, {{.token = 0, .in_prompt = 1}}), 0);
  // Bias first: (4 - 5) * 2 = -2, not 4 / 2 - 5 = -3: above token 2's 2 - 4.5.
  EXPECT_EQ(pick({.repetition_penalty = 2}, {{.token = 0, .in_prompt = 1}},
                 {{.token = 0, .bias = -5}, {.token = 2, .bias = -4.5f}}, {0, 2}),
            0);
  // Repetition before frequency: 4 / 2 - 2 = 0, not (4 - 2) / 2 = 1: token 1 has 3 - 2.5 = 0.5.
  EXPECT_EQ(pick({.repetition_penalty = 2, .frequency_penalty = 2}, {{.token = 0, .generated = 1}},
                 {{.token = 1, .bias = -2.5f}}, {0, 1}),
            1);
  // A bias does not bring back a token that is not allowed.
  EXPECT_EQ(pick({}, {}, {{.token = 3, .bias = 100}}, {1, 2}), 1);
  EXPECT_EQ(pick({}, {}, {{.token = 3, .bias = 100}}), 3);
}

TEST(Sampling, EachCutByHand) {
  const std::vector<float> logits = logs({0.1, 0.4, 0.2, 0.3});  // preference: 1, 3, 2, 0
  EXPECT_EQ(kept({.temperature = 1}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 1}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3}, logits), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 4}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 5}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.0f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.39f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.41f}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.71f}, logits), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.74f}, logits), (Tokens{1, 3}));  // 0.3 / 0.4
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.76f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 1}, logits), (Tokens{1}));
  // Temperature comes first: at 0.5 the ratio 0.75 has become 0.5625.
  EXPECT_EQ(kept({.temperature = 0.5f, .min_p = 0.6f}, logits), (Tokens{1}));
  // top_p is a share of what top_k left: 0.4 of 0.7 is 0.571.
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 0.57f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 0.58f}, logits), (Tokens{1, 3}));
  // And of what min_p left: 0.4 and 0.3 of 0.9 are 0.78.
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.77f, .min_p = 0.45f}, logits), (Tokens{1, 3}));
}

TEST(Sampling, TiesGoToTheLowerId) {
  const std::vector<float> equal(10, 2.5f);
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3}, equal), (Tokens{0, 1, 2}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.5f}, equal), (Tokens{0, 1, 2, 3, 4}));  // exactly half: no token more
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.51f}, equal), (Tokens{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 1}, equal).size(), 10u);
  const std::vector<float> zeros = {-1, 0.0f, -0.0f, 0.0f, -0.0f};
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2}, zeros), (Tokens{1, 2}));
}

TEST(Sampling, NaNAndInfinitiesAreNeverChosenBeforeANumber) {
  EXPECT_EQ(kept({.temperature = 1}, std::vector<float>{kNaN, 1, -kInf, 1, kNaN}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 4}, std::vector<float>{kNaN, 1, -kInf, 1, kNaN}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1}, std::vector<float>{3, kInf, -kInf, kInf}), (Tokens{1, 3}));
}

TEST(Sampling, WhereNothingIsLeftTheLowestAllowedTokenComes) {
  for (const float temperature : {0.0f, 1.0f}) {
    const auto pick = [&](std::vector<float> logits, std::vector<LogitBias> biases = {}, Tokens allowed = {}) {
      SamplingBatch batch(static_cast<int64_t>(logits.size()));
      batch.add(batch.add_logits(logits), {.temperature = temperature, .top_k = 2, .top_p = 0.5f}, {}, biases, allowed);
      return batch.sample(ops()).front();
    };
    EXPECT_EQ(pick({kNaN, kNaN, kNaN}), 0);
    EXPECT_EQ(pick({-kInf, -kInf, -kInf}), 0);
    EXPECT_EQ(pick({kNaN, -kInf, -kInf}), 1);
    EXPECT_EQ(pick({-kInf, -kInf, -kInf}, {}, {1, 2}), 1);
    EXPECT_EQ(pick({kNaN, kNaN, kNaN}, {}, {1, 2}), 1);
    EXPECT_EQ(pick({1, 2, 3}, {{0, -kInf}, {1, -kInf}, {2, -kInf}}), 0);
    EXPECT_EQ(pick({1, 2, 3}, {{2, -kInf}}, {2}), 2);
    EXPECT_EQ(pick({1, 2, 3}, {}, {-1}), 0);  // nothing is allowed
  }
}

// --- laws -------------------------------------------------------------------------------------------------------------

TEST(Sampling, AgreesWithSortingEverything) {
  for_each_case(
      [](Gen& gen) {
        SamplingBatch batch(gen.chance(0.2) ? gen.in(1, 3) : gen.in(4, 1500));
        for (int64_t i = gen.in(1, 6); i > 0; --i) add_any_row(gen, batch);
        const Tokens ids = batch.sample(any_ops(gen));
        for (size_t r = 0; r < batch.size(); ++r) {
          const SamplingRow& row = batch.row(r);
          const auto candidates = test::reference_candidates(batch.view(), r);
          EXPECT_EQ(ids[r], test::reference_draw(candidates, uniform(row.seed, row.choice, row.position)))
              << "row " << r << " of vocabulary " << batch.vocab() << ", temperature " << row.temperature << ", top_k "
              << row.top_k << ", top_p " << row.top_p << ", min_p " << row.min_p;
        }
      },
      600);
}

TEST(Sampling, OfALargeVocabularyAgreesWithSortingEverything) {
  for_each_case(
      [](Gen& gen) {
        SamplingBatch batch(150001);
        std::vector<float> logits(150001);
        const double size = gen.pick({0.001, 1.0, 3.0});
        for (float& x : logits) x = static_cast<float>(size * gen.normal());
        const int32_t at = batch.add_logits(logits);
        for (int32_t i = 0; i < 12; ++i)
          batch.add(at, {.seed = gen.bits(),
                         .temperature = gen.pick({0.5f, 1.0f}),
                         .top_k = gen.pick({0, 0, 50, 20000}),
                         .top_p = gen.pick({1.0f, 0.95f, 0.3f}),
                         .min_p = gen.pick({0.0f, 0.0f, 0.02f})});
        const Tokens ids = batch.sample(ops());
        for (size_t r = 0; r < batch.size(); ++r)
          EXPECT_EQ(ids[r],
                    test::reference_draw(test::reference_candidates(batch.view(), r), uniform(batch.row(r).seed, 0, 0)));
      },
      4);
}

TEST(Sampling, TokensComeAsOftenAsTheirProbabilitiesSay) {
  for_each_case(
      [](Gen& gen) {
        constexpr int kDraws = 20000;
        std::vector<float> logits(static_cast<size_t>(gen.in(5, 60)));
        for (float& x : logits) x = static_cast<float>(gen.normal());
        SamplingRow row{.seed = gen.bits(),
                        .temperature = gen.pick({0.5f, 1.0f, 2.0f}),
                        .top_k = gen.pick({0, 4, 20}),
                        .top_p = gen.pick({1.0f, 0.8f}),
                        .min_p = gen.pick({0.0f, 0.1f})};
        SamplingBatch batch(static_cast<int64_t>(logits.size()));
        batch.add(batch.add_logits(logits), row);
        const auto candidates = test::reference_candidates(batch.view(), 0);
        const std::vector<double> got = shares(row, logits, kDraws);
        double chi_square = 0, total = 0;
        int cells = 0;
        for (const Candidate& candidate : candidates) {
          const double share = got[static_cast<size_t>(candidate.token)];
          total += share;
          if (candidate.probability * kDraws < 5) continue;
          const double difference = (share - candidate.probability) * kDraws;
          chi_square += difference * difference / (candidate.probability * kDraws);
          ++cells;
        }
        EXPECT_NEAR(total, 1, 1e-9) << "a token came that is cut";
        // Mean and variance of chi-square are cells and twice cells: five standard deviations above.
        EXPECT_LT(chi_square, cells + 5 * std::sqrt(2.0 * cells)) << cells << " tokens";
      },
      30);
}

TEST(Sampling, DependsNeitherOnTheBatchNorOnItsOrderNorOnThreads) {
  for_each_case(
      [](Gen& gen) {
        SamplingBatch batch(gen.in(10, 3000));
        for (int64_t i = gen.in(2, 9); i > 0; --i) add_any_row(gen, batch);
        const Tokens ids = batch.sample(any_ops(gen));
        EXPECT_EQ(batch.sample(ops()), ids);
        const SampledLogits all = batch.view();
        const Array<SamplingRow> backwards(all.rows.rbegin(), all.rows.rend());
        Array<int32_t> logit_row;
        for (size_t r = batch.size(); r-- > 0;) logit_row.push_back(all.logit_row[r]);
        const size_t bytes = ops().sampling_workspace_bytes(all.logits.size(0), batch.vocab());
        const Buffer work = ops().allocate(bytes);
        const View workspace(work.data(), DType::u8, {static_cast<int64_t>(bytes)});
        for (size_t r = 0; r < batch.size(); ++r) {
          SampledLogits alone = all;
          alone.rows = all.rows.subspan(r, 1);
          alone.logit_row = all.logit_row + r;
          Array<int32_t> id(1, -1);
          ops().sample(alone, workspace, id.data());
          EXPECT_EQ(id[0], ids[r]);
        }
        SampledLogits turned = all;
        turned.rows = backwards;
        turned.logit_row = logit_row.data();
        Array<int32_t> turned_ids(batch.size());
        ops().sample(turned, workspace, turned_ids.data());
        EXPECT_EQ(turned_ids, Array<int32_t>(ids.rbegin(), ids.rend()));
      },
      100);
}

TEST(Sampling, ChoicesOfOneRowDifferAndComeAgain) {
  const std::vector<float> flat(1000, 0.5f);
  const auto draw = [&](uint64_t seed) {
    SamplingBatch batch(1000);
    const int32_t at = batch.add_logits(flat);
    for (int32_t choice = 0; choice < 8; ++choice)
      batch.add(at, {.seed = seed, .choice = choice, .position = 17, .temperature = 1});
    return batch.sample(ops());
  };
  const Tokens ids = draw(3);
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 8u);
  EXPECT_EQ(draw(3), ids);
  EXPECT_NE(draw(4), ids);
}

// --- log probabilities ------------------------------------------------------------------------------------------------

std::vector<double> doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(LogProbs, AreTheLogOfTheSoftmaxOfRawLogitsAndZeroForNoToken) {
  for_each_case([](Gen& gen) {
    SamplingBatch batch(gen.in(1, 3000));
    Tokens ids;
    for (int64_t i = gen.in(0, 5); i > 0; --i) {
      std::vector<float> logits(static_cast<size_t>(batch.vocab()));
      for (float& x : logits) x = static_cast<float>(5 * gen.normal());
      const std::vector<LogitBias> biases = {{.token = 0, .bias = 3}};
      // Temperature and bias change what is drawn, not the log probabilities.
      batch.add(batch.add_logits(logits), {.target = static_cast<int32_t>(gen.in(-1, batch.vocab() - 1)), .temperature = 0.5f},
                {}, biases);
      ids.push_back(static_cast<int32_t>(gen.in(-1, batch.vocab() - 1)));
    }
    const auto got = batch.log_probs(any_ops(gen), ids, 0);
    for (size_t r = 0; r < batch.size(); ++r) {
      const auto check = [&](float value, int32_t id) {
        const double wanted = id < 0 ? 0 : test::reference_log_prob(doubles(batch.logits_of(r)), id);
        EXPECT_NEAR(value, wanted, 1e-7 * std::abs(wanted) + 1e-12) << "token " << id;
      };
      check(got.of_ids[r], ids[r]);
      check(got.of_targets[r], batch.row(r).target);
    }
  });
}

TEST(LogProbs, OfTheMostProbableAreInOrderAndTheVerySameNumbers) {
  for_each_case([](Gen& gen) {
    SamplingBatch batch(gen.in(1, 2000));
    const auto most = static_cast<int32_t>(gen.in(0, 25));
    for (int64_t i = gen.in(1, 4); i > 0; --i) {
      std::vector<float> logits(static_cast<size_t>(batch.vocab()));
      const bool ties = gen.chance(0.5);
      for (float& x : logits) x = static_cast<float>(ties ? std::round(2 * gen.normal()) : gen.normal());
      if (gen.chance(0.3))
        for (float& x : logits) x = gen.pick({kNaN, -kInf, x});
      batch.add(batch.add_logits(logits), {.top_log_probs = static_cast<int32_t>(gen.in(0, most))});
    }
    const Tokens best = batch.sample(ops());
    const auto got = batch.log_probs(ops(), best, most);
    for (size_t r = 0; r < batch.size(); ++r) {
      const auto logits = batch.logits_of(r);
      Tokens order;
      for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] > -kInf) order.push_back(static_cast<int32_t>(i));
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      for (int32_t j = 0; j < most; ++j) {
        const size_t at = r * static_cast<size_t>(most) + static_cast<size_t>(j);
        if (j >= batch.row(r).top_log_probs || j >= static_cast<int32_t>(order.size())) {
          EXPECT_EQ(got.top_ids[at], -1);
          EXPECT_EQ(got.top_log_probs[at], -kInf);
          continue;
        }
        ASSERT_EQ(got.top_ids[at], order[static_cast<size_t>(j)]);
        Tokens same(batch.size(), got.top_ids[at]);
        EXPECT_EQ(got.top_log_probs[at], batch.log_probs(ops(), same, 0).of_ids[r]);
        if (j == 0) {
          EXPECT_EQ(got.top_log_probs[at], got.of_ids[r]);
        }
      }
    }
  });
}

TEST(LogProbs, InfinitiesAndNaN) {
  SamplingBatch batch(4);
  batch.add(batch.add_logits(std::vector<float>{0, kNaN, 0, -kInf}), {.target = 1, .top_log_probs = 4});
  batch.add(batch.add_logits(std::vector<float>{5, kInf, kInf, 2}), {.target = 0, .top_log_probs = 1});
  batch.add(batch.add_logits(std::vector<float>(4, kNaN)), {.target = 2, .top_log_probs = 1});
  const auto half = static_cast<float>(-std::log(2.0));
  const auto got = batch.log_probs(ops(), Tokens{2, 1, 0}, 4);
  EXPECT_EQ(got.of_ids, (std::vector<float>{half, half, -kInf}));
  EXPECT_EQ(got.of_targets, (std::vector<float>{-kInf, -kInf, -kInf}));
  EXPECT_EQ(got.top_ids, (Tokens{0, 2, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace weft
