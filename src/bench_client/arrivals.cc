#include "bench_client/arrivals.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "bench_client/dice.h"

namespace weft::bench {
namespace {

double rate_of(int64_t index, int64_t count, const ArrivalPlan& plan) {
  if (!plan.ramp_up) return plan.rate;
  const auto& ramp = *plan.ramp_up;
  const double progress = static_cast<double>(index) / static_cast<double>(std::max<int64_t>(count - 1, 1));
  return ramp.kind == ArrivalPlan::Ramp::linear ? ramp.from + (ramp.to - ramp.from) * progress
                                                : ramp.from * std::pow(ramp.to / ramp.from, progress);
}

}  // namespace

std::vector<double> arrival_times(int64_t count, const ArrivalPlan& plan, uint64_t seed) {
  WEFT_CHECK_GT(plan.burstiness, 0.0);
  Dice dice(seed, Dice::For::arrivals);
  std::vector<double> out;
  out.reserve(static_cast<size_t>(count));
  double now = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double rate = rate_of(i, count, plan);
    WEFT_CHECK_GT(rate, 0.0);
    if (std::isfinite(rate)) now += (std::isinf(plan.burstiness) ? 1 : dice.gamma(plan.burstiness)) / rate;
    out.push_back(now);
  }
  if (!plan.ramp_up && now > 0) {
    const double scale = static_cast<double>(count) / plan.rate / now;
    for (double& time : out) time *= scale;
  }
  return out;
}

}  // namespace weft::bench
