#include "bench_client/arrivals.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/prop.h"

namespace weft::bench {
namespace {

using test::for_each_case;
using test::Gen;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kMany = 20000;

std::vector<double> intervals(const std::vector<double>& times) {
  std::vector<double> out(times.size());
  std::adjacent_difference(times.begin(), times.end(), out.begin());
  return out;
}
double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
/// The standard deviation in units of the mean.
double variation(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += std::pow(value - mean(values), 2);
  return std::sqrt(squares / static_cast<double>(values.size())) / mean(values);
}

TEST(Arrivals, AtAnInfiniteRateAllStartAtOnce) { EXPECT_THAT(arrival_times(5, {}, 1), Each(0.0)); }

TEST(Arrivals, OfInfiniteBurstinessAreAMetronome) {
  EXPECT_THAT(arrival_times(4, {.rate = 4, .burstiness = kInfinite}, 1), ElementsAre(0.25, 0.5, 0.75, 1.0));
}

TEST(Arrivals, HaveExactlyTheRateAndAscend) {
  for_each_case([](Gen& gen) {
    const int64_t count = gen.in(1, 300);
    const double rate = std::exp(gen.normal() * 3), burstiness = std::exp(gen.normal());
    const auto times = arrival_times(count, {.rate = rate, .burstiness = burstiness}, gen.bits());
    ASSERT_EQ(times.size(), static_cast<size_t>(count));
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GE(times.front(), 0);
    EXPECT_NEAR(times.back(), static_cast<double>(count) / rate, 1e-9 * static_cast<double>(count) / rate);
  });
}

// Of n numbers of a law of variation v, the mean is within 5 v / sqrt(n) of the truth but once in a million times, and so is
// the variation, roughly. The seed is fixed.
TEST(Arrivals, BurstinessIsTheShapeOfTheIntervals) {
  for (const double burstiness : {0.25, 1.0, 4.0, 100.0}) {
    const auto gaps = intervals(arrival_times(kMany, {.rate = 10, .burstiness = burstiness}, 7));
    EXPECT_NEAR(variation(gaps), 1 / std::sqrt(burstiness), 5 / std::sqrt(burstiness) / std::sqrt(kMany) * 2) << burstiness;
  }
}

TEST(Arrivals, OfBurstinessOneAreAPoissonProcess) {
  auto gaps = intervals(arrival_times(kMany, {.rate = 10}, 3));
  std::sort(gaps.begin(), gaps.end());
  double largest = 0;  // The distance of Kolmogorov and Smirnov from the exponential law; 1.95 / sqrt(n) once in a thousand.
  for (size_t i = 0; i < gaps.size(); ++i)
    largest = std::max(largest, std::abs(1 - std::exp(-10 * gaps[i]) - (static_cast<double>(i) + 0.5) / kMany));
  EXPECT_LT(largest, 1.95 / std::sqrt(kMany));
}

TEST(Arrivals, FollowTheSeed) {
  const ArrivalPlan plan{.rate = 5};
  EXPECT_EQ(arrival_times(50, plan, 1), arrival_times(50, plan, 1));
  EXPECT_NE(arrival_times(50, plan, 1), arrival_times(50, plan, 2));
}

TEST(Arrivals, ARampChangesTheRateFromTheFirstToTheLast) {
  using Ramp = ArrivalPlan::Ramp;
  ArrivalPlan plan{.burstiness = kInfinite, .ramp_up = ArrivalPlan::RampUp{.kind = Ramp::linear, .from = 1, .to = 4}};
  EXPECT_THAT(arrival_times(4, plan, 1),
              ElementsAre(1.0, 1.5, DoubleNear(1.5 + 1.0 / 3, 1e-12), DoubleNear(1.75 + 1.0 / 3, 1e-12)));
  plan.ramp_up->kind = Ramp::exponential;
  EXPECT_THAT(arrival_times(3, plan, 1), ElementsAre(1.0, 1.5, 1.75));
}

}  // namespace
}  // namespace weft::bench
