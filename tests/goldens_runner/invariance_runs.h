#pragma once

#include <functional>
#include <string>

#include "goldens_runner/done_file.h"

namespace weft::test {

/// Counts of runs, for the summary.
struct RunCounts {
  int runs = 0, failed = 0;
  double seconds = 0;

  void add(const DoneModel& model) {
    runs += model.runs;
    failed += model.failed;
    seconds += model.seconds;
  }
};

/// What to run: `wanted` chooses models by name.
struct RunChoice {
  bool full = false, list = false;
  std::function<bool(const std::string&)> wanted;
};

/// Runs the synthetic models (every architecture, W = 3, 6 and 8 among others) over their grid: each run against W = 1 at the
/// same tp, and each model once against the reference model. Prints a table.
RunCounts run_invariance(const RunChoice& choice, DoneFile& done);

}  // namespace weft::test
