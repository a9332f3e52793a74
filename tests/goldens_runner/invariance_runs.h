#pragma once

#include <functional>
#include <string>

namespace weft::test {

/// Counts of runs, for the summary.
struct RunCounts {
  int runs = 0, failed = 0;
  double seconds = 0;
};

/// Runs the synthetic models (every architecture, W = 3, 6 and 8 among others) over their grid: each run against W = 1 at the
/// same tp, and each model once against the reference model. Prints a table. `wanted` chooses by name.
RunCounts run_invariance(bool full, bool list, const std::function<bool(const std::string&)>& wanted);

}  // namespace weft::test
