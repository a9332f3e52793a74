#include "support/golden_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace weft::test {
namespace {

// The sample is only worth its name if every pair of values really occurs; the whole product only if nothing is missing.

bool holds(const std::vector<std::vector<int>>& rows, size_t f, int v, size_t g, int w) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[f] == v && row[g] == w; });
}

TEST(PairwiseCover, HoldsEveryPairOfThreeBinaryFactorsInFourRows) {
  const auto rows = pairwise_cover({2, 2, 2}, [](size_t, int, size_t, int) { return true; });
  for (size_t f = 0; f < 3; ++f) {
    for (size_t g = f + 1; g < 3; ++g) {
      for (int v = 0; v < 2; ++v) {
        for (int w = 0; w < 2; ++w) EXPECT_TRUE(holds(rows, f, v, g, w)) << f << v << g << w;
      }
    }
  }
  EXPECT_LE(rows.size(), 5u);
}

TEST(PairwiseCover, NeverHoldsAForbiddenPair) {
  // Value v of factor 0 goes with values of factor 1 that are at least v.
  const auto allowed = [](size_t f, int v, size_t g, int w) {
    if (f > g) std::swap(f, g), std::swap(v, w);
    return f != 0 || g != 1 || w >= v;
  };
  const std::vector<int> sizes = {3, 4, 2, 2};
  const auto rows = pairwise_cover(sizes, allowed);
  for (const auto& row : rows) EXPECT_GE(row[1], row[0]);
  for (size_t f = 0; f < sizes.size(); ++f) {
    for (size_t g = f + 1; g < sizes.size(); ++g) {
      for (int v = 0; v < sizes[f]; ++v) {
        for (int w = 0; w < sizes[g]; ++w) EXPECT_EQ(holds(rows, f, v, g, w), allowed(f, v, g, w)) << f << v << g << w;
      }
    }
  }
}

TEST(GoldenGrid, RanksAreThoseThatTheHeadsAllow) {
  using List = std::vector<Ranks>;
  EXPECT_EQ(legal_ranks({.q_heads = 4, .kv_heads = 1}), (List{{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}}));
  EXPECT_EQ(legal_ranks({.q_heads = 6, .kv_heads = 3}), (List{{1, 1}, {3, 1}, {6, 1}, {6, 2}}));
  EXPECT_EQ(legal_ranks({.q_heads = 24, .kv_heads = 1}).back(), (std::pair{8, 8}));
}

TEST(GoldenGrid, TheWholeProductIsWhole) {
  const auto points = full_grid(legal_ranks({.q_heads = 4, .kv_heads = 2}));
  EXPECT_EQ(points.size(), 4u * 3 * 3 * 2 * 2);  // (1, 1), (2, 1), (4, 1), (4, 2)
  std::set<std::string> distinct;
  for (const GridPoint& point : points) distinct.insert(to_string(point));
  EXPECT_EQ(distinct.size(), points.size());
}

/// The values of a point, as numbers that tell them apart.
std::array<int, 9> values_of(int model, const GridPoint& p) {
  const int interleave = p.interleave == p.block_size ? -1 : p.interleave;
  return {model,        p.tp * 100 + p.dcp, interleave,           p.budget,       static_cast<int>(p.exchange),
          p.block_size, p.alone ? 1 : 0,    p.tight_pool ? 1 : 0, p.gather_tokens};
}

TEST(GoldenGrid, InTheSampleEveryPairOfValuesOccurs) {
  const std::vector<std::vector<Ranks>> models = {
      legal_ranks({.q_heads = 4, .kv_heads = 1}), legal_ranks({.q_heads = 6, .kv_heads = 3}),
      legal_ranks({.q_heads = 4, .kv_heads = 2}), legal_ranks({.q_heads = 2, .kv_heads = 1})};
  const auto sample = sample_grid(models);
  ASSERT_EQ(sample.size(), models.size());

  std::vector<std::array<int, 9>> rows;
  std::array<std::set<int>, 9> values;
  for (size_t m = 0; m < models.size(); ++m) {
    for (const GridPoint& point : sample[m]) {
      rows.push_back(values_of(static_cast<int>(m), point));
      for (size_t f = 0; f < values.size(); ++f) values[f].insert(rows.back()[f]);
    }
  }
  for (size_t f = 2; f < values.size(); ++f) EXPECT_EQ(values[f].size(), f <= 3 ? 3u : 2u);
  const auto occurs = [&](size_t f, int v, size_t g, int w) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[f] == v && row[g] == w; });
  };
  for (size_t f = 0; f < values.size(); ++f) {
    for (size_t g = std::max<size_t>(f + 1, 2); g < values.size(); ++g) {
      for (const int v : values[f]) {
        for (const int w : values[g]) EXPECT_TRUE(occurs(f, v, g, w)) << f << " " << v << " " << g << " " << w;
      }
    }
  }
  for (size_t m = 0; m < models.size(); ++m) {
    const std::vector<Ranks>& legal = models[m];
    for (const auto& [tp, dcp] : legal) EXPECT_TRUE(occurs(0, static_cast<int>(m), 1, tp * 100 + dcp));
    for (const GridPoint& point : sample[m]) {
      EXPECT_NE(std::find(legal.begin(), legal.end(), std::pair(point.tp, point.dcp)), legal.end()) << to_string(point);
      EXPECT_EQ(point.block_size % point.interleave, 0) << to_string(point);
    }
  }
}

}  // namespace
}  // namespace weft::test
