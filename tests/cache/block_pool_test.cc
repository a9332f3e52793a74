#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "cache/block_table.h"
#include "support/prop.h"

namespace weft {
namespace {

constexpr BlockId operator""_b(unsigned long long id) { return BlockId{static_cast<int32_t>(id)}; }

/// Everything that allocate() gives until it gives nothing.
std::vector<BlockId> drain(BlockPool& pool) {
  std::vector<BlockId> blocks;
  while (const auto block = pool.allocate()) blocks.push_back(*block);
  return blocks;
}

TEST(BlockPool, GivesEachBlockOnceAndThenNone) {
  BlockPool pool(3);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(drain(pool), (std::vector{0_b, 1_b, 2_b}));
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.state(1_b), BlockState::held);
  EXPECT_EQ(BlockPool(0).allocate(), std::nullopt);
}

TEST(BlockPool, ABlockIsFreeWhenItsLastReferenceGoes) {
  BlockPool pool(1);
  const BlockId block = *pool.allocate();
  pool.share(block);
  pool.release(block);
  EXPECT_EQ(pool.state(block), BlockState::held);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(block);
  EXPECT_EQ(pool.state(block), BlockState::free);
  EXPECT_EQ(pool.allocate(), block);
}

TEST(BlockPool, EvictsCachedBlocksLastAndOldestFirst) {
  std::vector<BlockId> evicted;
  BlockPool pool(4, [&](BlockId block) { evicted.push_back(block); });
  drain(pool);
  pool.mark(2_b);
  pool.mark(0_b);
  for (const BlockId block : {2_b, 1_b, 0_b, 3_b}) pool.release(block);
  EXPECT_EQ(pool.state(2_b), BlockState::cached);
  EXPECT_EQ(pool.available(), 4);
  pool.check_invariants();
  EXPECT_EQ(drain(pool), (std::vector{3_b, 1_b, 2_b, 0_b}));
  EXPECT_EQ(evicted, (std::vector{2_b, 0_b}));
  EXPECT_FALSE(pool.is_marked(2_b));
}

TEST(BlockPool, ACachedBlockComesBackByShare) {
  BlockPool pool(2);
  drain(pool);
  pool.mark(0_b);
  pool.release(0_b);
  pool.share(0_b);
  EXPECT_EQ(pool.state(0_b), BlockState::held);
  EXPECT_EQ(pool.available(), 0);
  pool.release(0_b);
  EXPECT_EQ(pool.state(0_b), BlockState::cached);
}

TEST(BlockPool, ABlockWhoseMarkGoesIsReusedFirst) {
  BlockPool pool(2);
  drain(pool);
  for (const BlockId block : {0_b, 1_b}) {
    pool.mark(block);
    pool.release(block);
  }
  pool.unmark(1_b);
  EXPECT_EQ(pool.state(1_b), BlockState::free);
  EXPECT_EQ(drain(pool), (std::vector{1_b, 0_b}));
}

TEST(BlockPool, APinnedBlockIsNotReusedBeforeTheLastUnpin) {
  BlockPool pool(1);
  const BlockId block = *pool.allocate();
  pool.pin(block);
  pool.pin(block);
  pool.release(block);
  EXPECT_EQ(pool.state(block), BlockState::pinned);
  pool.unpin(block);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.unpin(block);
  EXPECT_EQ(pool.state(block), BlockState::free);
  EXPECT_EQ(pool.allocate(), block);
}

TEST(BlockPool, ACachedBlockCanBePinnedAndSharedMeanwhile) {
  BlockPool pool(1);
  const BlockId block = *pool.allocate();
  pool.mark(block);
  pool.release(block);
  pool.pin(block);
  EXPECT_EQ(pool.state(block), BlockState::pinned);
  EXPECT_EQ(pool.available(), 0);
  pool.share(block);
  pool.unpin(block);
  EXPECT_EQ(pool.state(block), BlockState::held);
  pool.release(block);
  EXPECT_EQ(pool.state(block), BlockState::cached);
}

TEST(BlockPoolDeathTest, MisuseNamesTheBlock) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(1_b), "release of block 1");
  EXPECT_DEATH(pool.share(1_b), "content is lost, block 1");
  EXPECT_DEATH(pool.pin(0_b), "pin of a free block, block 0");
  EXPECT_DEATH(pool.unpin(0_b), "unpin of block 0");
  EXPECT_DEATH(pool.mark(0_b), "mark of block 0");
  EXPECT_DEATH(pool.release(2_b), "block 2 of 2");
}

/// The same contract as plainly as it can be said: counts in maps, two lists.
struct NaivePool {
  std::map<BlockId, int> refs, pins;
  std::map<BlockId, bool> marked;
  std::deque<BlockId> free, cached;
  std::vector<BlockId> evicted;

  explicit NaivePool(int blocks) {
    for (int id = 0; id < blocks; ++id) free.push_back(BlockId{id});
  }
  BlockState state(BlockId block) {
    if (refs[block] > 0) return BlockState::held;
    if (pins[block] > 0) return BlockState::pinned;
    return marked[block] ? BlockState::cached : BlockState::free;
  }
  std::optional<BlockId> allocate() {
    std::deque<BlockId>& from = free.empty() ? cached : free;
    if (from.empty()) return std::nullopt;
    const BlockId block = from.front();
    from.pop_front();
    if (marked[block]) evicted.push_back(block);
    marked[block] = false;
    refs[block] = 1;
    return block;
  }
  void unlist(BlockId block) {
    std::erase(free, block);
    std::erase(cached, block);
  }
  void list_if_unused(BlockId block) {
    unlist(block);
    if (refs[block] > 0 || pins[block] > 0) return;
    if (marked[block]) {
      cached.push_back(block);
    } else {
      free.push_front(block);
    }
  }
};

TEST(BlockPool, AgreesWithANaiveModelUnderRandomEvents) {
  test::for_each_case([](test::Gen& gen) {
    const int blocks = static_cast<int>(gen.in(1, 12));
    NaivePool model(blocks);
    std::vector<BlockId> evicted;
    BlockPool pool(blocks, [&](BlockId block) { evicted.push_back(block); });
    for (int event = 0; event < 200; ++event) {
      const BlockId block{static_cast<int32_t>(gen.in(0, blocks - 1))};
      const bool held = model.refs[block] > 0, marked = model.marked[block];
      switch (gen.in(0, 6)) {
        case 0:
          ASSERT_EQ(pool.allocate(), model.allocate());
          break;
        case 1:
          if (!held && !marked) break;
          pool.share(block);
          ++model.refs[block];
          model.unlist(block);
          break;
        case 2:
          if (!held) break;
          pool.release(block);
          --model.refs[block];
          model.list_if_unused(block);
          break;
        case 3:
          if (!held) break;
          pool.mark(block);
          model.marked[block] = true;
          break;
        case 4:
          pool.unmark(block);
          model.marked[block] = false;
          if (marked) model.list_if_unused(block);
          break;
        case 5:
          if (model.state(block) == BlockState::free) break;
          pool.pin(block);
          ++model.pins[block];
          model.unlist(block);
          break;
        case 6:
          if (model.pins[block] == 0) break;
          pool.unpin(block);
          --model.pins[block];
          if (model.pins[block] == 0) model.list_if_unused(block);
          break;
      }
      pool.check_invariants();
      ASSERT_EQ(pool.available(), static_cast<int64_t>(model.free.size() + model.cached.size()));
      ASSERT_EQ(evicted, model.evicted);
      for (int id = 0; id < blocks; ++id) ASSERT_EQ(pool.state(BlockId{id}), model.state(BlockId{id})) << "block " << id;
    }
  });
}

TEST(BlockTable, GrowsByWholeRequestsOrNotAtAll) {
  BlockPool pool(3);
  BlockTable first(pool), second(pool);
  EXPECT_TRUE(first.grow_to(2));
  EXPECT_TRUE(first.grow_to(1));  // long enough already
  EXPECT_EQ(first.size(), 2);
  EXPECT_FALSE(second.grow_to(2));
  EXPECT_EQ(second.size(), 0);
  EXPECT_EQ(pool.available(), 1);
}

TEST(BlockTable, GivesItsBlocksBackLastFirst) {
  BlockPool pool(3);
  {
    BlockTable table(pool);
    ASSERT_TRUE(table.grow_to(3));
    for (const BlockId block : table.blocks()) pool.mark(block);
  }
  EXPECT_EQ(drain(pool), (std::vector{2_b, 1_b, 0_b}));
}

TEST(BlockTable, MovesWithItsReferences) {
  BlockPool pool(2);
  BlockTable a(pool);
  ASSERT_TRUE(a.grow_to(1));
  BlockTable b(std::move(a));
  EXPECT_EQ(b.size(), 1);
  BlockTable c(pool);
  ASSERT_TRUE(c.grow_to(1));
  c = std::move(b);
  EXPECT_EQ(pool.available(), 1);
  c.clear();
  EXPECT_EQ(pool.available(), 2);
}

TEST(BlockTable, SharesBlocksWithAnother) {
  BlockPool pool(2);
  BlockTable a(pool), b(pool);
  ASSERT_TRUE(a.grow_to(1));
  b.append_shared(a.blocks()[0]);
  a.clear();
  EXPECT_EQ(pool.state(b.blocks()[0]), BlockState::held);
  b.clear();
  EXPECT_EQ(pool.available(), 2);
}

}  // namespace
}  // namespace weft
