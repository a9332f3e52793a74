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
    const std::optional<double> row_us = row_beside_us_ ? row_beside_us_ : row_alone_us_;
    if (!row_us) return min_rows_;
    const double left = target_us_ - decodes_us_.value_or(0);
    if (left <= 0) return min_rows_;
    if (left >= *row_us * static_cast<double>(max_rows_)) return max_rows_;
    return std::max(min_rows_, static_cast<int64_t>(left / *row_us));
  }

  void observe(int64_t step_us, int64_t prefill_rows, bool decodes) {
    const auto us = static_cast<double>(step_us), rows = static_cast<double>(prefill_rows);
    if (prefill_rows == 0) {
      learn(decodes_us_, us);
    } else if (decodes && us <= decodes_us_.value_or(0)) {
      learn(decodes_us_, us);  // There are fewer of them than there were.
    } else if (decodes) {
      // Where no step of decodes alone was seen yet, all is put down to the prefill: chunks are then rather too small.
      learn(row_beside_us_, (us - decodes_us_.value_or(0)) / rows);
    } else {
      learn(row_alone_us_, us / rows);
    }
  }

 private:
  /// The last few steps count: contexts and batches change from step to step, but not by much.
  static void learn(std::optional<double>& estimate, double value) {
    estimate = estimate ? *estimate + 0.25 * (value - *estimate) : value;
  }

  double target_us_;
  int64_t min_rows_, max_rows_;
  std::optional<double> decodes_us_;     ///< of a step of decodes alone
  std::optional<double> row_beside_us_;  ///< of one prefill row more beside decodes
  std::optional<double> row_alone_us_;   ///< of a prefill row in a step without decodes: stands in while that is not known
};

}  // namespace weft
