#pragma once

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "support/golden_check.h"
#include "support/golden_grid.h"

namespace weft::test {

/// Prompt lengths on the edges of a layout of W ranks and interleave S: 1 token, fewer than W, S * W and one less and one more,
/// a few blocks, and a longer one.
std::vector<int> edge_lengths(int dcp, int interleave);
/// Requests of these lengths with seeded tokens. Each feeds `generate` given tokens and wants all logits.
std::vector<Request> seeded_requests(const std::vector<int>& lengths, int64_t vocab, int generate = 5);

/// Holds the runs of one model against each other: how its KV cache is spread must not change what it computes. float32.
class Invariance {
 public:
  explicit Invariance(std::filesystem::path model_dir);

  /// Largest difference of any logit at `point` to W = 1 at the same tp, in standard deviations of the logits.
  double against_one_rank(const GridPoint& point) { return against_one_rank(point, edge_lengths(point.dcp, point.interleave)); }
  double against_one_rank(const GridPoint& point, const std::vector<int>& lengths);
  /// Largest difference of any logit at `point` to the float64 reference model, likewise.
  double against_reference(const GridPoint& point) const {
    return against_reference(point, edge_lengths(point.dcp, point.interleave));
  }
  double against_reference(const GridPoint& point, const std::vector<int>& lengths) const;

 private:
  std::vector<Result> run(const GridPoint& point, const std::vector<Request>& requests) const;

  std::filesystem::path model_dir_;
  int64_t vocab_ = 0;
  std::map<std::pair<int, std::vector<int>>, std::vector<Result>> base_;  ///< W = 1, by tp and prompt lengths
};

}  // namespace weft::test
