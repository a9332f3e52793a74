#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>

namespace weft {

/// How fast requests end, over the last half minute in which there were any: what Retry-After is computed from.
///
/// Thread: observe() on one, seconds_for() on any.
class DrainRate {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr int kMostSeconds = 300;

  /// To be called a few times a second. `ended`: requests that have ended so far; `busy`: some are there.
  void observe(TimePoint now, int64_t ended, bool busy);
  /// Whole seconds until so many have ended, 1 to kMostSeconds. Where none has ended yet, as if one were just about to.
  int seconds_for(double requests) const;

 private:
  struct Sample {
    double busy_s = 0;
    int64_t ended = 0;
  };
  std::deque<Sample> samples_;  ///< oldest first, about a second of busy time apart
  double busy_s_ = 0;           ///< time with requests so far; idle time says nothing
  TimePoint last_{};
  bool was_busy_ = false;
  std::atomic<double> per_second_{0};  ///< 0: not known
};

}  // namespace weft
