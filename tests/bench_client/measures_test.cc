#include "bench_client/measures.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/prop.h"

namespace weft::bench {
namespace {

using test::for_each_case;
using test::Gen;
using ::testing::ElementsAre;
using ::testing::Pair;

/// An answer of a token in each chunk.
Record answered(double start_s, double ttft_s, const std::vector<double>& itls_s, int64_t input_tokens = 10) {
  Record out{.state = Record::State::answered, .due_s = start_s, .start_s = start_s, .ttft_s = ttft_s};
  out.latency_s = std::accumulate(itls_s.begin(), itls_s.end(), ttft_s);
  out.itls_s = itls_s;
  out.chunk_tokens.assign(itls_s.size() + 1, 1);
  out.input_tokens = input_tokens;
  out.output_tokens = static_cast<int64_t>(itls_s.size()) + 1;
  return out;
}
Record failed() { return {.state = Record::State::failed, .error = "no"}; }
Figures figures(const std::vector<Record>& records, double duration_s, const Objectives& objectives = {}) {
  const std::vector<double> percents = {99};
  return measure(records, duration_s, percents, objectives);
}

TEST(Percentile, IsLinearBetweenNeighboursAsInNumpy) {
  const std::vector<double> values = {1, 2, 3, 10};
  EXPECT_DOUBLE_EQ(percentile_of_sorted(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile_of_sorted(values, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile_of_sorted(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile_of_sorted(values, 99), 9.79);
  EXPECT_DOUBLE_EQ(percentile_of_sorted(values, 100), 10);
  EXPECT_DOUBLE_EQ(percentile_of_sorted(std::vector<double>{7}, 99), 7);
  EXPECT_DOUBLE_EQ(percentile_of_sorted({}, 50), 0);
}

// Two answers: tokens at 0.1, 0.2, 0.4 s, and at 1.3, 1.6 s after the beginning.
TEST(Measures, OfTwoAnswersAreWhatOneCountsByHand) {
  const Figures out = figures({answered(0, 0.1, {0.1, 0.2}, 10), failed(), answered(1, 0.3, {0.3}, 20)}, 2);
  EXPECT_EQ(out.completed, 2);
  EXPECT_EQ(out.failed, 1);
  EXPECT_EQ(out.input_tokens, 30);
  EXPECT_EQ(out.output_tokens, 5);
  EXPECT_DOUBLE_EQ(out.request_throughput, 1);
  EXPECT_DOUBLE_EQ(out.output_throughput, 2.5);
  EXPECT_DOUBLE_EQ(out.token_throughput, 17.5);
  EXPECT_DOUBLE_EQ(out.peak_output_throughput, 3) << "in the first second";
  EXPECT_EQ(out.peak_concurrency, 1);
  EXPECT_FALSE(out.goodput);
  EXPECT_NEAR(out.ttft.mean, 200, 1e-9);
  EXPECT_NEAR(out.ttft.median, 200, 1e-9);
  EXPECT_NEAR(out.ttft.std, 100, 1e-9);
  EXPECT_NEAR(out.ttft.percentile(99), 298, 1e-9);
  EXPECT_NEAR(out.tpot.mean, 225, 1e-9) << "0.3 s for two tokens, 0.3 s for one";
  EXPECT_NEAR(out.itl.mean, 200, 1e-9) << "0.1, 0.2 and 0.3 s";
  EXPECT_NEAR(out.itl.std, 1000 * std::sqrt(0.02 / 3), 1e-9);
  EXPECT_NEAR(out.e2el.mean, 500, 1e-9);
}

TEST(Measures, OfNothingAreZero) {
  const Figures out = figures({failed(), {.state = Record::State::interrupted}}, 1, {.ttft_ms = 5});
  EXPECT_EQ(out.completed, 0);
  EXPECT_EQ(out.interrupted, 1);
  EXPECT_EQ(*out.goodput, 0);
  EXPECT_EQ(out.ttft.mean, 0);
  EXPECT_THAT(out.itl.percentiles, ElementsAre(Pair(99, 0)));
}

TEST(Measures, AnAnswerOfOneTokenHasNoTimePerTokenAndKeepsToAny) {
  const Figures out = figures({answered(0, 0.5, {}), answered(0, 0.5, {0.25})}, 1, {.tpot_ms = 100});
  EXPECT_NEAR(out.tpot.mean, 250, 1e-9);
  EXPECT_DOUBLE_EQ(*out.goodput, 1);
}

TEST(Measures, GoodputCountsWhatKeepsToAllObjectives) {
  const std::vector<Record> records = {answered(0, 0.1, {0.1}), answered(0, 0.1, {0.3}), answered(0, 0.3, {0.1}), failed()};
  EXPECT_DOUBLE_EQ(*figures(records, 1, {.ttft_ms = 200}).goodput, 2);
  EXPECT_DOUBLE_EQ(*figures(records, 1, {.ttft_ms = 200, .tpot_ms = 200}).goodput, 1);
  EXPECT_DOUBLE_EQ(*figures(records, 1, {.e2el_ms = 1000}).goodput, 3);
  EXPECT_DOUBLE_EQ(*figures({answered(0, 0.25, {})}, 1, {.ttft_ms = 250}).goodput, 1) << "a bound is kept by its very value";
}

TEST(Measures, OneThatStartsWhenAnotherEndsIsNotBesideIt) {
  EXPECT_EQ(figures({answered(0, 1, {}), answered(1, 1, {})}, 2).peak_concurrency, 1);
  EXPECT_EQ(figures({answered(0, 1, {}), answered(0.5, 1, {}), answered(0.75, 0.125, {})}, 2).peak_concurrency, 3);
}

TEST(Measures, ChunksOfSeveralTokensCountAsMany) {
  Record record = answered(0, 0.5, {0.25});
  record.chunk_tokens = {4, 3};
  record.output_tokens = 7;
  EXPECT_DOUBLE_EQ(figures({record}, 1).peak_output_throughput, 7);
}

TEST(Measures, WaitingInTheClientIsToldApart) {
  Record record = answered(2, 0.5, {});
  record.due_s = 0.5;
  const Figures out = figures({record}, 3);
  EXPECT_DOUBLE_EQ(out.client_queue.mean, 1500);
  EXPECT_DOUBLE_EQ(out.e2el.mean, 500);
  EXPECT_DOUBLE_EQ(out.e2el_with_queue.mean, 2000);
}

TEST(Measures, CachedTokensAreCountedWhereTheServerTells) {
  Record record = answered(0, 1, {});
  EXPECT_FALSE(figures({record}, 1).cached_tokens);
  record.cached_tokens = 4;
  EXPECT_EQ(figures({record, record}, 1).cached_tokens, 8);
}

// The same from the definitions, the slow way, over times that are whole sixteenths so that sums are exact.
TEST(Measures, OfRandomRunsAreThoseOfTheirDefinitions) {
  for_each_case([](Gen& gen) {
    const auto time = [&](int64_t most) { return static_cast<double>(gen.in(0, most)) / 16; };
    std::vector<Record> records;
    for (int64_t i = gen.in(1, 20); i > 0; --i) {
      std::vector<double> itls;
      for (int64_t k = gen.in(0, 10); k > 0; --k) itls.push_back(time(20));
      records.push_back(gen.chance(0.2) ? failed() : answered(time(100), time(20), itls, gen.in(1, 50)));
    }
    const double percent = static_cast<double>(gen.in(0, 100));
    const std::vector<double> percents = {percent};
    const Figures out = measure(records, 4, percents);

    std::vector<double> itls, tpots;
    std::vector<int64_t> seconds(1000);
    double begin = 1e9;
    int64_t peak = 0;
    for (const Record& record : records)
      if (record.answered()) begin = std::min(begin, record.start_s);
    for (const Record& record : records) {
      if (!record.answered()) continue;
      itls.insert(itls.end(), record.itls_s.begin(), record.itls_s.end());
      if (record.output_tokens > 1)
        tpots.push_back((record.latency_s - record.ttft_s) / static_cast<double>(record.output_tokens - 1));
      double at = record.start_s + record.ttft_s;
      for (size_t k = 0; k <= record.itls_s.size(); ++k) {
        ++seconds[static_cast<size_t>(at - begin)];
        if (k < record.itls_s.size()) at += record.itls_s[k];
      }
      int64_t beside = 0;
      for (const Record& other : records)
        if (other.answered() && other.start_s <= record.start_s && record.start_s < other.start_s + other.latency_s) ++beside;
      peak = std::max(peak, beside);
    }
    EXPECT_EQ(out.peak_concurrency, peak);
    EXPECT_EQ(out.peak_output_throughput, static_cast<double>(*std::max_element(seconds.begin(), seconds.end())));
    // A percentile is the value below which that share of the gaps between sorted values lies.
    for (const auto& [values, spread] : {std::pair(itls, out.itl), std::pair(tpots, out.tpot)}) {
      if (values.empty()) continue;
      std::vector<double> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
      double expected = sorted.front();
      for (size_t k = 1; k < sorted.size(); ++k)
        expected += (sorted[k] - sorted[k - 1]) * std::clamp(place - static_cast<double>(k - 1), 0.0, 1.0);
      EXPECT_NEAR(spread.percentile(percent), 1000 * expected, 1e-6);
      EXPECT_NEAR(spread.mean, 1000 * std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
                  1e-6);
    }
  });
}

}  // namespace
}  // namespace weft::bench
