#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config.h"

namespace weft::test {

/// One way to run a model: what may change without changing what the model computes.
struct GridPoint {
  int tp = 1, dcp = 1;
  int interleave = 1;
  int block_size = 16;
  int budget = 2048;  ///< max_num_batched_tokens
  DcpExchange exchange = DcpExchange::automatic;
  bool alone = false;       ///< one run per prompt instead of all in one batch
  bool tight_pool = false;  ///< blocks for the longest prompt and slots for two, so that prompts wait and both are reused
  int gather_tokens = 0;    ///< context_gather_tokens; 0: chosen by the engine

  friend bool operator==(const GridPoint&, const GridPoint&) = default;
};

/// e.g. "tp 4 W 2 S 16 B 16 budget 64 keys batch".
std::string to_string(const GridPoint& point);

/// The heads that decide which (tp, W) a model allows.
struct GridHeads {
  int q_heads = 1, kv_heads = 1;  ///< kv_heads 1 for MLA
};
/// Ranks and the size of their groups: (tp, W).
using Ranks = std::pair<int, int>;
/// Every legal (tp, W) with tp up to `limit`, ascending.
std::vector<Ranks> legal_ranks(const GridHeads& heads, int limit = 8);

/// Values that a grid takes beside (tp, W), S in {1, 4, B}, both exchanges, and prompts in one batch or alone.
struct GridValues {
  std::vector<int> budgets = {16, 64, 4096};
  std::vector<int> blocks = {16, 8};   ///< full_grid takes the first
  std::vector<int> gathers = {0, 24};  ///< full_grid takes the first
};

/// The whole product. Points that differ only in `alone` are neighbours, so that one engine serves both.
std::vector<GridPoint> full_grid(const std::vector<Ranks>& ranks, const GridValues& values = {});

/// A sample over several models, given by their ranks, in which every pair of values occurs that can occur: (model, ranks),
/// (model, S), (ranks, budget), ... It also varies block size, pool and gather bound. Result [i] is of models[i].
std::vector<std::vector<GridPoint>> sample_grid(const std::vector<std::vector<Ranks>>& models, const GridValues& values = {});

/// Rows of value numbers, one per factor, such that every pair of values of two factors that `allowed` permits occurs in some
/// row, and no row holds a pair that it forbids. Greedy and deterministic. Requires that a permitted pair can be completed by
/// filling the factors in order.
using PairAllowed = std::function<bool(size_t factor_a, int value_a, size_t factor_b, int value_b)>;
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, const PairAllowed& allowed);

}  // namespace weft::test
