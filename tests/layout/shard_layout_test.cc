#include "layout/shard_layout.h"

#include <algorithm>
#include <vector>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

// Usable where a constant is needed, and inside a kernel.
static_assert(ShardLayout{.ranks = 4, .interleave = 2}.owner(11) == 1);
static_assert(ShardLayout{.ranks = 4, .interleave = 2}.local_index(11) == 3);
static_assert(ShardLayout{.ranks = 4, .interleave = 2}.position(1, 3) == 11);
static_assert(ShardLayout{.ranks = 4, .interleave = 2}.visible_keys(10, ShardLayout::kNoWindow, 1) == Range{0, 3});
static_assert(ShardLayout{} == ShardLayout{.ranks = 1, .interleave = 1});

std::vector<int64_t> local_counts(const ShardLayout& layout, int64_t length) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < layout.ranks; ++rank) counts.push_back(layout.local_count(length, rank));
  return counts;
}

/// The positions below `length` of each rank, by dealing them out one by one.
std::vector<std::vector<int64_t>> deal(const ShardLayout& layout, int64_t length) {
  std::vector<std::vector<int64_t>> shards(static_cast<size_t>(layout.ranks));
  for (int64_t pos = 0, rank = 0; pos < length; rank = (rank + 1) % layout.ranks)
    for (int i = 0; i < layout.interleave && pos < length; ++i) shards[static_cast<size_t>(rank)].push_back(pos++);
  return shards;
}

/// Everything that a layout says about a sequence of `length` tokens, against the dealt shards.
void expect_laws(const ShardLayout& layout, int64_t length) {
  const auto shards = deal(layout, length);
  int64_t total = 0, most = 0;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const auto& shard = shards[static_cast<size_t>(rank)];
    const auto count = static_cast<int64_t>(shard.size());
    ASSERT_EQ(layout.local_count(length, rank), count) << "rank " << rank;
    for (int64_t local = 0; local < count; ++local) {
      const int64_t pos = shard[static_cast<size_t>(local)];
      ASSERT_EQ(layout.owner(pos), rank) << "position " << pos;
      ASSERT_EQ(layout.local_index(pos), local) << "position " << pos;
      ASSERT_EQ(layout.position(rank, local), pos) << "rank " << rank << " local " << local;
    }
    total += count;
    most = std::max(most, count);
  }
  ASSERT_EQ(total, length);
  ASSERT_EQ(layout.local_count(length, 0), most) << "rank 0 has the most";
  const int64_t padded = layout.padded_count(length), turn = int64_t{layout.ranks} * layout.interleave;
  ASSERT_GE(padded, most);
  ASSERT_LT((padded - most) * layout.ranks, turn) << "padded by less than a turn";
  ASSERT_EQ(padded * layout.ranks % turn, 0);
}

TEST(ShardLayout, DealsTokensAsInTheTable) {
  EXPECT_EQ(local_counts({.ranks = 4, .interleave = 1}, 10), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(local_counts({.ranks = 4, .interleave = 1}, 11), (std::vector<int64_t>{3, 3, 3, 2}));
  EXPECT_EQ(local_counts({.ranks = 4, .interleave = 2}, 11), (std::vector<int64_t>{4, 3, 2, 2}));
  EXPECT_EQ(local_counts({.ranks = 2, .interleave = 4}, 21), (std::vector<int64_t>{12, 9}));
  EXPECT_EQ(local_counts({.ranks = 8, .interleave = 16}, 100), (std::vector<int64_t>{16, 16, 16, 16, 16, 16, 4, 0}));
  EXPECT_EQ(local_counts({.ranks = 8, .interleave = 64}, 200), (std::vector<int64_t>{64, 64, 64, 8, 0, 0, 0, 0}));
}

TEST(ShardLayout, LawsHoldForEverySmallLayoutAndLength) {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const int interleave : {1, 2, 3, 4, 5, 8})
      for (int64_t length = 0; length <= 5 * ranks * interleave; ++length) {
        SCOPED_TRACE(::testing::Message() << "W " << ranks << " S " << interleave << " length " << length);
        expect_laws({.ranks = ranks, .interleave = interleave}, length);
        if (HasFatalFailure()) return;
      }
}

TEST(ShardLayout, LawsHoldForRandomLayouts) {
  for_each_case([](Gen& gen) {
    const ShardLayout layout{.ranks = static_cast<int>(gen.in(1, 100)), .interleave = static_cast<int>(gen.in(1, 200))};
    expect_laws(layout, gen.in(0, 20'000));
  });
}

TEST(ShardLayout, PositionsPastTwoToThe31AreExact) {
  for_each_case([](Gen& gen) {
    const ShardLayout layout{.ranks = static_cast<int>(gen.in(1, 64)), .interleave = gen.pick({1, 2, 16, 64})};
    const int64_t pos = gen.in(int64_t{1} << 31, int64_t{1} << 50);
    EXPECT_EQ(layout.position(layout.owner(pos), layout.local_index(pos)), pos);
    EXPECT_EQ(layout.local_count(pos, layout.owner(pos)), layout.local_index(pos));
    EXPECT_EQ(layout.local_count(pos + 1, layout.owner(pos)), layout.local_index(pos) + 1);
  });
}

TEST(ShardLayout, APrefixOfTheSequenceIsAPrefixOfEveryShard) {
  for_each_case([](Gen& gen) {
    const ShardLayout layout{.ranks = static_cast<int>(gen.in(1, 16)), .interleave = static_cast<int>(gen.in(1, 16))};
    const auto longer = deal(layout, gen.in(0, 500)), shorter = deal(layout, gen.in(0, 500));
    for (size_t rank = 0; rank < longer.size(); ++rank) {
      const size_t common = std::min(longer[rank].size(), shorter[rank].size());
      EXPECT_TRUE(std::equal(longer[rank].begin(), longer[rank].begin() + static_cast<int64_t>(common), shorter[rank].begin()));
    }
  });
}

TEST(ShardLayout, VerifyRowsEachSeeTheirOwnPrefix) {
  // Three query rows 7, 8, 9 at length 10 over two ranks: the bounds are 4, 5, 5 on rank 0 and 4, 4, 5 on rank 1.
  const ShardLayout layout{.ranks = 2, .interleave = 1};
  const auto bound = [&](int64_t pos, int rank) { return layout.visible_keys(pos, ShardLayout::kNoWindow, rank).end; };
  EXPECT_EQ(bound(7, 0), 4);
  EXPECT_EQ(bound(8, 0), 5);
  EXPECT_EQ(bound(9, 0), 5);
  EXPECT_EQ(bound(7, 1), 4);
  EXPECT_EQ(bound(8, 1), 4);
  EXPECT_EQ(bound(9, 1), 5);
}

TEST(ShardLayout, VisibleKeysAreTheWindowsTokensOfTheRank) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (const int interleave : {1, 2, 3})
      for (int64_t pos = 0; pos < 4 * ranks * interleave; ++pos)
        for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{7}, pos, pos + 1, pos + 2, ShardLayout::kNoWindow}) {
          if (window < 1) continue;
          const ShardLayout layout{.ranks = ranks, .interleave = interleave};
          for (int rank = 0; rank < ranks; ++rank) {
            std::vector<int64_t> wanted, seen;
            for (int64_t key = 0; key <= pos; ++key)
              if (layout.owner(key) == rank && pos - key < window) wanted.push_back(key);
            const Range keys = layout.visible_keys(pos, window, rank);
            for (int64_t local = keys.begin; local < keys.end; ++local) seen.push_back(layout.position(rank, local));
            ASSERT_EQ(seen, wanted) << "W " << ranks << " S " << interleave << " pos " << pos << " window " << window;
          }
        }
}

TEST(ShardLayout, GrowingByOneTokenGrowsTheOwnersShardAlone) {
  for_each_case([](Gen& gen) {
    const ShardLayout layout{.ranks = static_cast<int>(gen.in(1, 16)), .interleave = static_cast<int>(gen.in(1, 16))};
    const int64_t pos = gen.in(0, 1000);
    for (int rank = 0; rank < layout.ranks; ++rank)
      EXPECT_EQ(layout.local_count(pos + 1, rank) - layout.local_count(pos, rank), layout.owner(pos) == rank ? 1 : 0);
  });
}

}  // namespace
}  // namespace weft
