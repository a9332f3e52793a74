#include "server/drain_rate.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

constexpr double kWindow_s = 30, kSample_s = 1;

}  // namespace

void DrainRate::observe(TimePoint now, int64_t ended, bool busy) {
  if (was_busy_) busy_s_ += std::chrono::duration<double>(now - last_).count();
  last_ = now;
  was_busy_ = busy;
  if (samples_.empty() || busy_s_ - samples_.back().busy_s >= kSample_s)
    samples_.push_back({.busy_s = busy_s_, .ended = ended});
  while (samples_.size() > 1 && samples_[1].busy_s <= busy_s_ - kWindow_s) samples_.pop_front();
  const double seconds = busy_s_ - samples_.front().busy_s;
  const auto count = static_cast<double>(std::max<int64_t>(ended - samples_.front().ended, 1));
  per_second_ = seconds > 0 ? count / seconds : 0;
}

int DrainRate::seconds_for(double requests) const {
  const double rate = per_second_;
  if (rate <= 0) return 1;
  return static_cast<int>(std::clamp(std::ceil(requests / rate - 1e-9), 1.0, double{kMostSeconds}));
}

}  // namespace weft
