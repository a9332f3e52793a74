#include "layout/block_layout.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

static_assert(BlockLayout{.shard = {.ranks = 4, .interleave = 1}, .block_tokens = 16}.virtual_tokens() == 64);
static_assert(BlockLayout{.shard = {.ranks = 4, .interleave = 1}, .block_tokens = 16}.blocks_for(65) == 2);
static_assert(BlockLayout{}.replicated() == BlockLayout{});

std::vector<BlockId> table_of(std::initializer_list<int> ids) {
  std::vector<BlockId> table;
  for (const int id : ids) table.push_back(BlockId{id});
  return table;
}

std::vector<int64_t> slots(const BlockLayout& layout, const std::vector<BlockId>& table, int64_t begin, int64_t end, int rank) {
  std::vector<int64_t> out;
  for (int64_t pos = begin; pos < end; ++pos) out.push_back(layout.slot(table, pos, rank));
  return out;
}

/// A table of `blocks` distinct ids in random order, with gaps.
std::vector<BlockId> random_table(Gen& gen, int64_t blocks) {
  std::vector<int> ids(static_cast<size_t>(2 * blocks + 1));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<BlockId> table;
  for (int64_t i = 0; i < blocks; ++i) {
    std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(gen.in(i, 2 * blocks))]);
    table.push_back(BlockId{ids[static_cast<size_t>(i)]});
  }
  return table;
}

/// Every position is stored by exactly one rank; no two positions share a row; what a rank owns of a block is a prefix of it.
void expect_partition(const BlockLayout& layout, const std::vector<BlockId>& table, int64_t length) {
  std::vector<int> stored(static_cast<size_t>(length), 0);
  for (int rank = 0; rank < layout.shard.ranks; ++rank) {
    std::set<int64_t> rows;
    std::vector<int64_t> used(table.size(), 0);
    for (int64_t pos = 0; pos < length; ++pos) {
      const int64_t slot = layout.slot(table, pos, rank);
      if (slot == -1) continue;
      ++stored[static_cast<size_t>(pos)];
      const auto ordinal = static_cast<size_t>(layout.block_of(pos));
      ASSERT_TRUE(rows.insert(slot).second) << "row " << slot << " written twice on rank " << rank;
      ASSERT_EQ(slot / layout.block_tokens, static_cast<int>(table[ordinal])) << "position " << pos << " in a foreign block";
      ASSERT_EQ(slot % layout.block_tokens, used[ordinal]) << "rank " << rank << " leaves a hole in block " << ordinal;
      ASSERT_EQ(slot, layout.local_slot(table, layout.shard.local_index(pos)));
      ++used[ordinal];
    }
    ASSERT_EQ(static_cast<int64_t>(rows.size()), layout.shard.local_count(length, rank));
  }
  ASSERT_TRUE(std::all_of(stored.begin(), stored.end(), [](int n) { return n == 1; })) << "a position is not stored once";
}

TEST(BlockLayout, DealsABlockTableAsInTheWorkedExample) {
  const auto table = table_of({7, 3});
  const BlockLayout one{.shard = {.ranks = 2, .interleave = 1}, .block_tokens = 4};
  EXPECT_EQ(slots(one, table, 0, 16, 0),
            (std::vector<int64_t>{28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15, -1}));
  EXPECT_EQ(slots(one, table, 0, 16, 1),
            (std::vector<int64_t>{-1, 28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15}));
  const BlockLayout two{.shard = {.ranks = 2, .interleave = 2}, .block_tokens = 4};
  EXPECT_EQ(slots(two, table, 0, 16, 0),
            (std::vector<int64_t>{28, 29, -1, -1, 30, 31, -1, -1, 12, 13, -1, -1, 14, 15, -1, -1}));
  EXPECT_EQ(slots(two, table, 0, 16, 1),
            (std::vector<int64_t>{-1, -1, 28, 29, -1, -1, 30, 31, -1, -1, 12, 13, -1, -1, 14, 15}));
}

TEST(BlockLayout, FollowsASequenceStepByStep) {
  // W = 2, S = 1, B = 4, table [7, 3]: a prompt of five tokens, then one token after the other.
  const auto table = table_of({7, 3});
  const BlockLayout layout{.shard = {.ranks = 2, .interleave = 1}, .block_tokens = 4};
  const auto counts = [&](int64_t length) {
    return std::vector<int64_t>{layout.shard.local_count(length, 0), layout.shard.local_count(length, 1)};
  };
  EXPECT_EQ(slots(layout, table, 0, 5, 0), (std::vector<int64_t>{28, -1, 29, -1, 30}));
  EXPECT_EQ(slots(layout, table, 0, 5, 1), (std::vector<int64_t>{-1, 28, -1, 29, -1}));
  EXPECT_EQ(counts(5), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(layout.slot(table, 5, 0), -1);
  EXPECT_EQ(layout.slot(table, 5, 1), 30);
  EXPECT_EQ(counts(6), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(slots(layout, table, 6, 8, 0), (std::vector<int64_t>{31, -1}));
  EXPECT_EQ(slots(layout, table, 6, 8, 1), (std::vector<int64_t>{-1, 31}));
  EXPECT_EQ(counts(8), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(layout.blocks_for(8), 1);
  EXPECT_EQ(layout.slot(table, 8, 0), 12);
  EXPECT_EQ(layout.slot(table, 8, 1), -1);
  EXPECT_EQ(counts(9), (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(layout.blocks_for(9), 2);
}

TEST(BlockLayout, ChunkOfAPromptWithThreeCachedTokens) {
  const auto table = table_of({7, 3});
  const BlockLayout layout{.shard = {.ranks = 2, .interleave = 1}, .block_tokens = 4};
  EXPECT_EQ(slots(layout, table, 3, 5, 0), (std::vector<int64_t>{-1, 30}));
  EXPECT_EQ(slots(layout, table, 3, 5, 1), (std::vector<int64_t>{29, -1}));
  EXPECT_EQ(layout.shard.local_count(3, 0), 2);
  EXPECT_EQ(layout.shard.local_count(3, 1), 1);
}

TEST(BlockLayout, EveryPositionIsStoredOnceForEverySmallLayout) {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const int block_tokens : {1, 2, 4, 6})
      for (int interleave = 1; interleave <= block_tokens; ++interleave) {
        if (block_tokens % interleave != 0) continue;
        const BlockLayout layout{.shard = {.ranks = ranks, .interleave = interleave}, .block_tokens = block_tokens};
        const auto table = table_of({3,  0,  9,  4,  1,  7,  2,  8,  5,  6,  11, 10, 13, 12, 15, 14,
                                     17, 16, 19, 18, 20, 22, 21, 23, 24, 25, 26, 27, 28, 29, 30, 31});
        SCOPED_TRACE(::testing::Message() << "W " << ranks << " S " << interleave << " B " << block_tokens);
        expect_partition(layout, table, 5 * ranks * interleave);
        if (HasFatalFailure()) return;
      }
}

TEST(BlockLayout, EveryPositionIsStoredOnceForRandomLayouts) {
  for_each_case([](Gen& gen) {
    const int interleave = static_cast<int>(gen.in(1, 16));
    const BlockLayout layout{.shard = {.ranks = static_cast<int>(gen.in(1, 24)), .interleave = interleave},
                             .block_tokens = interleave * static_cast<int>(gen.in(1, 8))};
    const int64_t length = gen.in(0, 3000);
    expect_partition(layout, random_table(gen, layout.blocks_for(length)), length);
  });
}

TEST(BlockLayout, PagesOfARankFollowItsOwnTokens) {
  // A rank's page count is ceil(local / B), never the count of the global length.
  for_each_case([](Gen& gen) {
    const int interleave = gen.pick({1, 2, 4});
    const BlockLayout layout{.shard = {.ranks = static_cast<int>(gen.in(1, 8)), .interleave = interleave}, .block_tokens = 4};
    const int64_t length = gen.in(1, 3 * layout.virtual_tokens());
    const auto table = random_table(gen, layout.blocks_for(length));
    for (int rank = 0; rank < layout.shard.ranks; ++rank) {
      std::set<int64_t> pages;
      for (int64_t pos = 0; pos < length; ++pos)
        if (const int64_t slot = layout.slot(table, pos, rank); slot >= 0) pages.insert(slot / layout.block_tokens);
      const int64_t local = layout.shard.local_count(length, rank);
      EXPECT_EQ(static_cast<int64_t>(pages.size()), (local + layout.block_tokens - 1) / layout.block_tokens);
      EXPECT_LE(static_cast<int64_t>(pages.size()), static_cast<int64_t>(table.size()));
    }
  });
}

TEST(BlockLayout, AReplicatedPlaneHoldsAllTokensOfTheSameBlocks) {
  for_each_case([](Gen& gen) {
    const BlockLayout layout{.shard = {.ranks = static_cast<int>(gen.in(1, 8)), .interleave = 1},
                             .block_tokens = static_cast<int>(gen.in(1, 8))};
    const BlockLayout whole = layout.replicated();
    const int64_t length = gen.in(1, 200);
    EXPECT_EQ(whole.virtual_tokens(), layout.virtual_tokens());
    EXPECT_EQ(whole.blocks_for(length), layout.blocks_for(length));
    EXPECT_EQ(whole.block_of(length - 1), layout.block_of(length - 1));
    expect_partition(whole, random_table(gen, whole.blocks_for(length)), length);
  });
}

}  // namespace
}  // namespace weft
