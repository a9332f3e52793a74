#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace weft {

/// How many prefill rows a step with decodes may have, so that its time stays under a target. Learns from the times of steps: a
/// step takes what a step of decodes alone takes, and so much for each prefill row.
///
/// Thread: engine thread only.
class ChunkSizer {
 public:
  /// `target_us` 0: no target. Answers lie in [min_rows, max_rows].
  ChunkSizer(double target_us, int64_t min_rows, int64_t max_rows)
      : target_us_(target_us), min_rows_(std::min(min_rows, max_rows)), max_rows_(max_rows) {}

  int64_t rows_beside_decodes() const {
    if (target_us_ == 0) return max_rows_;
    if (!row_us_) return min_rows_;
    const double left = std::max(target_us_ - decodes_us_.value_or(0), 0.0);
    if (left >= *row_us_ * static_cast<double>(max_rows_)) return max_rows_;
    return std::max(min_rows_, static_cast<int64_t>(left / *row_us_));
  }

  void observe(int64_t step_us, int64_t prefill_rows, bool decodes) {
    const auto us = static_cast<double>(step_us);
    if (prefill_rows == 0) {
      learn(decodes_us_, us);
    } else {
      // Where no step of decodes alone was seen yet, all is put down to the prefill: chunks are then rather too small.
      const double of_decodes = decodes ? decodes_us_.value_or(0) : 0;
      learn(row_us_, std::max(us - of_decodes, 0.0) / static_cast<double>(prefill_rows));
    }
  }

 private:
  /// The last few steps count: contexts and batches change from step to step, but not by much.
  static void learn(std::optional<double>& estimate, double value) {
    estimate = estimate ? *estimate + 0.25 * (value - *estimate) : value;
  }

  double target_us_;
  int64_t min_rows_, max_rows_;
  std::optional<double> decodes_us_;  ///< of a step of decodes alone
  std::optional<double> row_us_;      ///< of one prefill row more
};

}  // namespace weft
