#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace weft::bench {

/// How requests are spread over time.
struct ArrivalPlan {
  enum class Ramp : uint8_t { linear, exponential };
  struct RampUp {
    Ramp kind = Ramp::linear;
    double from = 0, to = 0;  ///< requests a second of the first and the last request
  };

  double rate = std::numeric_limits<double>::infinity();  ///< requests a second; infinite: all at once
  /// Intervals are gamma distributed with this shape: 1 is a Poisson process, less has bursts, infinity is a metronome.
  double burstiness = 1;
  std::optional<RampUp> ramp_up = {};  ///< instead of the rate
};

/// When each of `count` requests starts, in seconds, ascending. Without a ramp the last one starts at exactly count / rate,
/// whatever was drawn, so that runs with other seeds offer the same load. Requires: rate > 0, burstiness > 0.
std::vector<double> arrival_times(int64_t count, const ArrivalPlan& plan, uint64_t seed);

}  // namespace weft::bench
