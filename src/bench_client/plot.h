#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::bench {

/// A run under one load, as the plot shows it.
struct PlotPoint {
  double load = 0;  ///< requests a second, possibly infinite, or requests at once
  double ttft_median_ms = 0, ttft_p99_ms = 0;
  double tpot_median_ms = 0, tpot_p99_ms = 0;
  double output_throughput = 0;  ///< tokens a second
};

struct LatencyPlot {
  std::string title, subtitle;
  std::string load_name;  ///< "requests per second"
  std::vector<PlotPoint> points;
};

/// An SVG picture of three panels over the load: time to first token, time per output token, output tokens a second. The load
/// has a logarithmic axis, latencies one where they span more than a factor of 20. Readable on light and on dark pages.
/// Requires: a point, loads above 0.
std::string plot_svg(const LatencyPlot& plot);

}  // namespace weft::bench
