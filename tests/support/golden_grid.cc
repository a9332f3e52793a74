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

std::vector<Ranks> legal_ranks(const GridHeads& heads, int limit) {
  std::vector<Ranks> out;
  for (const int tp : RankGrid::legal_tp(heads.q_heads, heads.kv_heads, limit)) {
    for (const int dcp : RankGrid::legal_dcp(heads.q_heads, heads.kv_heads, tp)) out.emplace_back(tp, dcp);
  }
  return out;
}

std::vector<GridPoint> full_grid(const std::vector<Ranks>& ranks, const GridValues& values) {
  const int block = values.blocks.front();
  std::vector<GridPoint> points;
  for (const auto& [tp, dcp] : ranks) {
    for (const int interleave : {1, 4, block}) {
      for (const int budget : values.budgets) {
        for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
          for (const bool alone : {false, true}) {
            points.push_back({.tp = tp,
                              .dcp = dcp,
                              .interleave = interleave,
                              .block_size = block,
                              .budget = budget,
                              .exchange = exchange,
                              .alone = alone,
                              .gather_tokens = values.gathers.front()});
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

std::vector<std::vector<GridPoint>> sample_grid(const std::vector<std::vector<Ranks>>& models, const GridValues& values) {
  if (models.empty()) return {};
  std::set<Ranks> every;
  for (const std::vector<Ranks>& legal : models) every.insert(legal.begin(), legal.end());
  const std::vector<Ranks> ranks(every.begin(), every.end());

  enum Factor : size_t { kModel, kRanks, kInterleave, kBudget, kExchange, kBlock, kAlone, kPool, kGather, kFactors };
  std::vector<int> sizes(kFactors, 2);
  sizes[kModel] = static_cast<int>(models.size());
  sizes[kRanks] = static_cast<int>(ranks.size());
  sizes[kInterleave] = 3;
  sizes[kBudget] = static_cast<int>(values.budgets.size());
  sizes[kBlock] = static_cast<int>(values.blocks.size());
  sizes[kGather] = static_cast<int>(values.gathers.size());
  const auto allowed = [&](size_t f, int v, size_t g, int w) {
    if (f > g) std::swap(f, g), std::swap(v, w);
    if (f != kModel || g != kRanks) return true;
    const std::vector<Ranks>& legal = models[static_cast<size_t>(v)];
    return std::find(legal.begin(), legal.end(), ranks[static_cast<size_t>(w)]) != legal.end();
  };
  const auto value = [](const std::vector<int>& of, int number) { return of[static_cast<size_t>(number)]; };

  std::vector<std::vector<GridPoint>> points(models.size());
  for (const std::vector<int>& row : pairwise_cover(sizes, allowed)) {
    const auto& [tp, dcp] = ranks[static_cast<size_t>(row[kRanks])];
    const int block = value(values.blocks, row[kBlock]);
    points[static_cast<size_t>(row[kModel])].push_back(
        {.tp = tp,
         .dcp = dcp,
         .interleave = value({1, 4, block}, row[kInterleave]),
         .block_size = block,
         .budget = value(values.budgets, row[kBudget]),
         .exchange = row[kExchange] == 0 ? DcpExchange::queries : DcpExchange::keys,
         .alone = row[kAlone] == 1,
         .tight_pool = row[kPool] == 1,
         .gather_tokens = value(values.gathers, row[kGather])});
  }
  return points;
}

}  // namespace weft::test
