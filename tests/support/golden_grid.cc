#include "support/golden_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "base/check.h"
#include "layout/rank_grid.h"

namespace weft::test {
namespace {

const char* to_string(DcpExchange exchange) {
  switch (exchange) {
    case DcpExchange::automatic:
      return "auto";
    case DcpExchange::queries:
      return "queries";
    case DcpExchange::keys:
      return "keys";
  }
  return "?";
}

/// A pair of (factor, value), the lower factor first.
using Pair = std::tuple<size_t, int, size_t, int>;

Pair pair_of(size_t f, int v, size_t g, int w) { return f < g ? Pair{f, v, g, w} : Pair{g, w, f, v}; }

constexpr int kFree = -1;

/// How many pairs of `open` the row gains if factor `f` takes value `v`; kFree if the row forbids it.
int gain(const std::vector<int>& row, size_t f, int v, const std::set<Pair>& open, const PairAllowed& allowed) {
  int pairs = 0;
  for (size_t g = 0; g < row.size(); ++g) {
    if (g == f || row[g] == kFree) continue;
    if (!allowed(f, v, g, row[g])) return kFree;
    pairs += open.contains(pair_of(f, v, g, row[g])) ? 1 : 0;
  }
  return pairs;
}

}  // namespace

std::string to_string(const GridPoint& p) {
  std::string text = fmt::format("tp {} W {} S {} B {} budget {} {} {}", p.tp, p.dcp, p.interleave, p.block_size, p.budget,
                                 to_string(p.exchange), p.alone ? "alone" : "batch");
  if (p.tight_pool) text += " tight";
  if (p.gather_tokens != 0) text += fmt::format(" gather {}", p.gather_tokens);
  return text;
}

std::vector<std::pair<int, int>> legal_ranks(const GridHeads& heads, int limit) {
  std::vector<std::pair<int, int>> out;
  for (const int tp : RankGrid::legal_tp(heads.q_heads, heads.kv_heads, limit)) {
    for (const int dcp : RankGrid::legal_dcp(heads.q_heads, heads.kv_heads, tp)) out.emplace_back(tp, dcp);
  }
  return out;
}

std::vector<GridPoint> full_grid(const GridHeads& heads) {
  constexpr int kBlock = 16;
  std::vector<GridPoint> points;
  for (const auto& [tp, dcp] : legal_ranks(heads)) {
    for (const int interleave : {1, 4, kBlock}) {
      for (const int budget : {16, 64, 4096}) {
        for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
          for (const bool alone : {false, true}) {
            points.push_back({.tp = tp,
                              .dcp = dcp,
                              .interleave = interleave,
                              .block_size = kBlock,
                              .budget = budget,
                              .exchange = exchange,
                              .alone = alone});
          }
        }
      }
    }
  }
  return points;
}

std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, const PairAllowed& allowed) {
  std::set<Pair> open;
  for (size_t f = 0; f < sizes.size(); ++f) {
    for (size_t g = f + 1; g < sizes.size(); ++g) {
      for (int v = 0; v < sizes[f]; ++v) {
        for (int w = 0; w < sizes[g]; ++w) {
          if (allowed(f, v, g, w)) open.insert({f, v, g, w});
        }
      }
    }
  }
  std::mt19937 ties(1);  // Which of several equally good values a row takes: without it, rows would be much alike.
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> row(sizes.size(), kFree);
    const auto [f0, v0, g0, w0] = *open.begin();
    row[f0] = v0;
    row[g0] = w0;
    for (size_t f = 0; f < sizes.size(); ++f) {
      if (row[f] != kFree) continue;
      int best = kFree, best_value = kFree;
      const int first = static_cast<int>(ties() % static_cast<uint32_t>(sizes[f]));
      for (int i = 0; i < sizes[f]; ++i) {
        const int v = (first + i) % sizes[f];
        const int pairs = gain(row, f, v, open, allowed);
        if (pairs > best) best = pairs, best_value = v;
      }
      WEFT_CHECK(best_value != kFree) << "no value of factor " << f << " fits the row";
      row[f] = best_value;
    }
    for (size_t f = 0; f < row.size(); ++f) {
      for (size_t g = f + 1; g < row.size(); ++g) open.erase({f, row[f], g, row[g]});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::vector<GridPoint>> sample_grid(const std::vector<GridHeads>& models) {
  std::vector<std::vector<std::pair<int, int>>> legal;
  std::set<std::pair<int, int>> every;
  for (const GridHeads& heads : models) {
    legal.push_back(legal_ranks(heads));
    every.insert(legal.back().begin(), legal.back().end());
  }
  const std::vector<std::pair<int, int>> ranks(every.begin(), every.end());

  enum Factor : size_t { kModel, kRanks, kInterleave, kBudget, kExchange, kBlock, kAlone, kPool, kGather, kFactors };
  constexpr int kBudgets[] = {16, 64, 4096}, kBlocks[] = {16, 8}, kGathers[] = {0, 24};
  std::vector<int> sizes(kFactors, 2);
  sizes[kModel] = static_cast<int>(models.size());
  sizes[kRanks] = static_cast<int>(ranks.size());
  sizes[kInterleave] = 3;
  sizes[kBudget] = 3;
  const auto allowed = [&](size_t f, int v, size_t g, int w) {
    if (f > g) std::swap(f, g), std::swap(v, w);
    if (f != kModel || g != kRanks) return true;
    const auto& of_model = legal[static_cast<size_t>(v)];
    return std::find(of_model.begin(), of_model.end(), ranks[static_cast<size_t>(w)]) != of_model.end();
  };

  std::vector<std::vector<GridPoint>> points(models.size());
  for (const std::vector<int>& row : pairwise_cover(sizes, allowed)) {
    const auto& [tp, dcp] = ranks[static_cast<size_t>(row[kRanks])];
    const int block = kBlocks[row[kBlock]], interleaves[] = {1, 4, block};
    points[static_cast<size_t>(row[kModel])].push_back(
        {.tp = tp,
         .dcp = dcp,
         .interleave = interleaves[row[kInterleave]],
         .block_size = block,
         .budget = kBudgets[row[kBudget]],
         .exchange = row[kExchange] == 0 ? DcpExchange::queries : DcpExchange::keys,
         .alone = row[kAlone] == 1,
         .tight_pool = row[kPool] == 1,
         .gather_tokens = kGathers[row[kGather]]});
  }
  return points;
}

}  // namespace weft::test
