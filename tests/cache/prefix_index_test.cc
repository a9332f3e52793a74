#include "cache/prefix_index.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <numeric>
#include <string>

#include "cache/block_table.h"
#include "layout/block_layout.h"
#include "support/prop.h"

namespace {
/// Counts what this thread allocates: the index promises to allocate nothing.
thread_local int64_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

constexpr std::array<uint8_t, 16> kSecret{7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2};

Tokens numbers(int32_t first, int32_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
Tokens concat(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::string name(const PrefixEvent& event) {
  if (event.kind == PrefixEvent::Kind::cleared) return "cleared";
  return (event.kind == PrefixEvent::Kind::stored ? "stored " : "evicted ") + std::to_string(static_cast<int>(event.block));
}

/// A pool and an index that know each other, and sequences that are stored whole.
struct Cache {
  Cache(int64_t blocks, int virtual_tokens_in, PrefixIndex::Listener listener = {})
      : virtual_tokens(virtual_tokens_in),
        pool(blocks, [this](BlockId block) { index.forget(block); }),
        index(pool, virtual_tokens_in, kSecret, std::move(listener)) {}

  PrefixKey root() const { return index.root("model", ""); }
  std::span<const int32_t> part(const Tokens& tokens, size_t ordinal) const {
    const auto v = static_cast<size_t>(virtual_tokens);
    return std::span(tokens).subspan(ordinal * v, std::min(v, tokens.size() - ordinal * v));
  }
  /// Publishes all of a sequence's tokens, in blocks that it holds.
  void publish(PrefixKey key, const Tokens& tokens, std::span<const BlockId> blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      index.publish(key, part(tokens, i), blocks[i]);
      key = index.child(key, part(tokens, i));
    }
  }
  /// A sequence that came, was stored without looking for a prefix, and went.
  std::vector<BlockId> store(const Tokens& tokens, std::string_view salt = "", std::string_view fingerprint = "model") {
    BlockTable table(pool);
    EXPECT_TRUE(table.grow_to((static_cast<int64_t>(tokens.size()) + virtual_tokens - 1) / virtual_tokens));
    publish(index.root(fingerprint, salt), tokens, table.blocks());
    return {table.blocks().begin(), table.blocks().end()};
  }
  PrefixIndex::Hit find(const Tokens& tokens, std::string_view salt = "", std::string_view fingerprint = "model") {
    found.clear();
    // One token must be computed, or there would be no logits.
    return index.find(index.root(fingerprint, salt), tokens, static_cast<int64_t>(tokens.size()) - 1, found);
  }
  void check() const {
    pool.check_invariants();
    index.check_invariants();
  }

  const int virtual_tokens;
  BlockPool pool;
  PrefixIndex index;
  std::vector<BlockId> found;
};

TEST(PrefixIndex, AnEmptyIndexFindsNothing) {
  Cache cache(4, 4);
  const auto hit = cache.find(numbers(1, 9));
  EXPECT_EQ(hit.tokens, 0);
  EXPECT_EQ(hit.whole_blocks, 0);
  EXPECT_EQ(hit.partial, std::nullopt);
  EXPECT_EQ(hit.key, cache.root());
  EXPECT_EQ(cache.index.nodes(), 0);
  cache.check();
}

TEST(PrefixIndex, FindsWholeBlocksAndTheBeginningOfOneMore) {
  Cache cache(4, 4);
  const auto blocks = cache.store(numbers(0, 11));  // 4 + 4 + 3
  const auto hit = cache.find(numbers(0, 20));
  EXPECT_EQ(hit.tokens, 11);
  EXPECT_THAT(cache.found, ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(hit.whole_blocks, 2);
  EXPECT_EQ(hit.partial, blocks[2]);
  EXPECT_EQ(hit.partial_tokens, 3);
  EXPECT_EQ(hit.key, cache.index.child(cache.index.child(cache.root(), numbers(0, 4)), numbers(4, 4)));
}

TEST(PrefixIndex, AMatchEndsAtTheFirstDifferentToken) {
  Cache cache(8, 4);
  const auto blocks = cache.store(numbers(0, 12));
  for (int32_t shared = 0; shared < 12; ++shared) {
    const auto hit = cache.find(concat(numbers(0, shared), numbers(100, 12)));
    EXPECT_EQ(hit.tokens, shared);
    EXPECT_EQ(hit.whole_blocks, shared / 4);
    EXPECT_EQ(hit.partial_tokens, shared % 4);
    EXPECT_EQ(hit.partial.has_value(), shared % 4 != 0);
  }
}

TEST(PrefixIndex, ALimitInsideABlockGivesPartOfIt) {
  Cache cache(4, 4);
  const auto blocks = cache.store(numbers(0, 12));
  for (int64_t limit = -1; limit <= 14; ++limit) {
    std::vector<BlockId> found;
    const auto hit = cache.index.find(cache.root(), numbers(0, 12), limit, found);
    EXPECT_EQ(hit.tokens, std::clamp<int64_t>(limit, 0, 12));
    EXPECT_EQ(hit.whole_blocks, hit.tokens / 4);
    EXPECT_EQ(static_cast<int>(found.size()), hit.whole_blocks);
    EXPECT_EQ(hit.partial_tokens, hit.tokens % 4);
  }
}

// Blocks of 16 rows on 4 ranks. A hit counts tokens, not blocks: nothing is lost to the size of a virtual block.
TEST(PrefixIndex, ACopiedBlockSavesTheTokensThatWholeBlocksWouldLose) {
  const BlockLayout layout{.shard = {.ranks = 4, .interleave = 1}, .block_tokens = 16};
  ASSERT_EQ(layout.virtual_tokens(), 64);
  const auto shared = [&](int32_t first_prompt, int32_t in_common, int32_t second_prompt) {
    Cache cache(16, 64);
    cache.store(numbers(0, first_prompt));
    return cache.find(concat(numbers(0, in_common), numbers(5000, second_prompt - in_common))).tokens;
  };
  EXPECT_EQ(layout.blocks_for(200), 4);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(layout.shard.local_count(200, rank), 50);
  EXPECT_EQ(shared(200, 130, 200), 130);
  EXPECT_EQ(shared(200, 200, 200), 199);  // identical: all but the last token
  EXPECT_EQ(shared(128, 128, 128), 127);
  EXPECT_EQ(shared(64, 64, 64), 63);
  EXPECT_EQ(shared(200, 63, 200), 63);
}

TEST(PrefixIndex, TwoPromptsWith150TokensInCommonShare150WithBlocksOf64OnTwoRanks) {
  Cache cache(16, 2 * 64);
  const auto blocks = cache.store(concat(numbers(0, 150), numbers(1000, 400)));
  const auto hit = cache.find(concat(numbers(0, 150), numbers(2000, 400)));
  EXPECT_EQ(hit.tokens, 150);
  EXPECT_THAT(cache.found, ElementsAre(blocks[0]));
  EXPECT_EQ(hit.partial, blocks[1]);
  EXPECT_EQ(hit.partial_tokens, 22);
}

// What a rank may read of a hit is what it holds of that many tokens, whatever else lies in the blocks of the pool.
TEST(PrefixIndex, EveryRankHoldsItsShareOfAHitInTheBlocksThatWereFound) {
  for (const int ranks : {1, 2, 3, 4}) {
    const BlockLayout layout{.shard = {.ranks = ranks, .interleave = 2}, .block_tokens = 4};
    const auto v = static_cast<int32_t>(layout.virtual_tokens());
    Cache cache(64, v);
    cache.store(numbers(9000, 3 * v));  // live data of others in the pool
    cache.store(numbers(0, 3 * v));
    for (int32_t shared = 1; shared <= 3 * v; ++shared) {
      const auto hit = cache.find(concat(numbers(0, shared), {-1}));
      ASSERT_EQ(hit.tokens, shared);
      const int64_t blocks = hit.whole_blocks + (hit.partial ? 1 : 0);
      ASSERT_EQ(blocks, layout.blocks_for(shared));
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t held = layout.shard.local_count(shared, rank);
        ASSERT_LE((held + 3) / 4, blocks);
        ASSERT_EQ(held, hit.whole_blocks * 4 + layout.shard.local_count(hit.partial_tokens, rank));
      }
    }
  }
}

TEST(PrefixIndex, TenantsAndModelsAreApart) {
  Cache cache(8, 4);
  const auto blocks = cache.store(numbers(0, 8), "alice");
  EXPECT_EQ(cache.find(numbers(0, 9), "alice").tokens, 8);
  EXPECT_EQ(cache.find(numbers(0, 9), "bob").tokens, 0);
  EXPECT_EQ(cache.find(numbers(0, 9)).tokens, 0);
  EXPECT_EQ(cache.find(numbers(0, 9), "alice", "other model").tokens, 0);
  // Nothing of one name can pass for a part of the other.
  EXPECT_NE(cache.index.root("a", "bc"), cache.index.root("ab", "c"));
  EXPECT_NE(cache.index.root("a", ""), cache.index.root("", "a"));
}

TEST(PrefixIndex, KeysDependOnTheSecretTheParentAndEveryToken) {
  BlockPool pool(1);
  const PrefixIndex index(pool, 4, kSecret), other(pool, 4, {});
  const PrefixKey root = index.root("model", "");
  EXPECT_NE(root, other.root("model", ""));
  EXPECT_EQ(root, PrefixIndex(pool, 4, kSecret).root("model", ""));
  const PrefixKey key = index.child(root, numbers(0, 4));
  EXPECT_EQ(key, index.child(root, numbers(0, 4)));
  EXPECT_NE(key, index.child(key, numbers(0, 4)));
  EXPECT_NE(key, index.child(root, numbers(0, 3)));
  EXPECT_NE(key, index.child(root, Tokens{0, 1, 2, 4}));
  EXPECT_NE(index.child(root, Tokens{0, 0}), index.child(root, Tokens{0}));
}

// Two prefixes with one key cannot be made here, so the test lies about the parent: tokens decide all the same.
TEST(PrefixIndex, AKeyAloneIsNoMatch) {
  Cache cache(4, 4);
  const auto blocks = cache.store(numbers(0, 4));
  const PrefixKey key = cache.index.child(cache.root(), numbers(0, 4));
  std::vector<BlockId> found;
  EXPECT_EQ(cache.index.find(key, numbers(0, 8), 8, found).tokens, 0);
  EXPECT_EQ(cache.index.find(cache.root(), numbers(100, 8), 8, found).tokens, 0);
  EXPECT_THAT(found, IsEmpty());
}

TEST(PrefixIndex, ALongerNodeOfTheSameBlockReplacesTheShorter) {
  std::vector<std::string> events;
  Cache cache(2, 4, [&](const PrefixEvent& event) { events.push_back(name(event)); });
  BlockTable table(cache.pool);
  ASSERT_TRUE(table.grow_to(1));
  for (int32_t n = 1; n <= 4; ++n) {
    cache.index.publish(cache.root(), numbers(0, n), table.blocks()[0]);
    EXPECT_EQ(cache.find(numbers(0, 9)).tokens, n);
    EXPECT_EQ(cache.index.nodes(), 1);
    cache.check();
  }
  cache.index.publish(cache.root(), numbers(0, 2), table.blocks()[0]);  // already known
  EXPECT_EQ(cache.find(numbers(0, 9)).tokens, 4);
  EXPECT_THAT(events, ElementsAre("stored 0", "evicted 0", "stored 0", "evicted 0", "stored 0", "evicted 0", "stored 0"));
}

TEST(PrefixIndex, ALongerNodeOfAnotherBlockReplacesTheShorter) {
  std::vector<std::string> events;
  Cache cache(3, 4, [&](const PrefixEvent& event) { events.push_back(name(event)); });
  BlockTable a(cache.pool), b(cache.pool);
  ASSERT_TRUE(a.grow_to(1) && b.grow_to(1));
  cache.index.publish(cache.root(), numbers(0, 2), a.blocks()[0]);
  cache.index.publish(cache.root(), numbers(0, 3), b.blocks()[0]);
  EXPECT_THAT(events, ElementsAre("stored 0", "evicted 0", "stored 1"));
  EXPECT_EQ(cache.find(numbers(0, 9)).partial, b.blocks()[0]);
  EXPECT_FALSE(cache.pool.is_marked(a.blocks()[0]));
  cache.check();
  // The first goes another way: it has a node of its own again.
  cache.index.publish(cache.root(), Tokens{0, 1, 7}, a.blocks()[0]);
  EXPECT_EQ(cache.find({0, 1, 7, 0}).partial, a.blocks()[0]);
  EXPECT_EQ(cache.find({0, 1, 2, 0}).partial, b.blocks()[0]);
  cache.check();
}

TEST(PrefixIndex, OfEqualBlocksTheFirstStaysAndTheOtherIsFree) {
  Cache cache(4, 4);
  const auto first = cache.store(numbers(0, 4));
  BlockTable second(cache.pool);
  ASSERT_TRUE(second.grow_to(1));
  const BlockId copy = second.blocks()[0];
  cache.index.publish(cache.root(), numbers(0, 4), copy);
  cache.index.publish(cache.root(), numbers(0, 2), copy);
  cache.find(numbers(0, 9));
  EXPECT_THAT(cache.found, ElementsAre(first[0]));
  second.clear();
  EXPECT_EQ(cache.pool.state(copy), BlockState::free);
  EXPECT_EQ(cache.pool.state(first[0]), BlockState::cached);
  cache.check();
}

TEST(PrefixIndex, AReusedBlockIsForgottenAndItsChildrenAreNotFoundUntilItsTokensAreBack) {
  Cache cache(3, 4);
  const auto blocks = cache.store(numbers(0, 12));
  cache.index.forget(blocks[0]);
  EXPECT_EQ(cache.pool.state(blocks[0]), BlockState::free);
  EXPECT_EQ(cache.index.nodes(), 2);
  EXPECT_EQ(cache.find(numbers(0, 13)).tokens, 0);
  EXPECT_EQ(cache.find(numbers(4, 9)).tokens, 0);  // the orphans' tokens, but at another place
  cache.check();
  // Other tokens in the block: the orphans are not theirs.
  cache.store(numbers(50, 4));
  EXPECT_EQ(cache.find(concat(numbers(50, 4), numbers(4, 9))).tokens, 4);
  cache.index.forget(blocks[0]);
  // The same tokens again: what follows them is what followed them before.
  cache.store(numbers(0, 4));
  EXPECT_EQ(cache.find(numbers(0, 13)).tokens, 12);
  cache.check();
}

TEST(PrefixIndex, TheEndOfASequenceIsEvictedBeforeItsBeginning) {
  Cache cache(3, 4);
  cache.store(numbers(0, 12));
  for (int left = 2; left >= 0; --left) {
    ASSERT_TRUE(cache.pool.allocate().has_value());
    EXPECT_EQ(cache.find(numbers(0, 13)).tokens, 4 * left);
    cache.check();
  }
  EXPECT_EQ(cache.index.nodes(), 0);
}

TEST(PrefixIndex, ClearForgetsEverythingAndSaysSoOnce) {
  std::vector<std::string> events;
  Cache cache(4, 4, [&](const PrefixEvent& event) { events.push_back(name(event)); });
  cache.store(numbers(0, 8));
  BlockTable held(cache.pool);
  ASSERT_TRUE(held.grow_to(1));
  cache.index.publish(cache.root(), numbers(70, 3), held.blocks()[0]);
  cache.index.clear();
  EXPECT_EQ(cache.index.nodes(), 0);
  EXPECT_EQ(cache.find(numbers(0, 9)).tokens, 0);
  EXPECT_EQ(cache.pool.available(), 3);
  EXPECT_EQ(events.back(), "cleared");
  EXPECT_EQ(events.size(), 4u);
  cache.check();
  held.clear();
  EXPECT_EQ(cache.pool.available(), 4);
}

TEST(PrefixIndex, EventsCarryWhatARouterNeedsToFollow) {
  struct Seen {
    std::string what;
    PrefixKey parent, key;
    Tokens tokens;
  };
  std::vector<Seen> seen;
  Cache cache(2, 4, [&](const PrefixEvent& e) {
    seen.push_back({name(e), e.parent, e.key, Tokens(e.tokens.begin(), e.tokens.end())});
  });
  cache.store(numbers(0, 6));
  ASSERT_TRUE(cache.pool.allocate().has_value());
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].parent, cache.root());
  EXPECT_EQ(seen[0].tokens, numbers(0, 4));
  EXPECT_EQ(seen[1].parent, seen[0].key);
  EXPECT_EQ(seen[1].key, cache.index.child(seen[0].key, numbers(4, 2)));
  EXPECT_EQ(seen[2].what, "evicted 1");
  EXPECT_EQ(seen[2].key, seen[1].key);
}

TEST(PrefixIndex, FindPublishAndEvictionAllocateNothing) {
  Cache cache(8, 4);
  cache.found.reserve(8);
  std::vector<Tokens> prompts;
  for (int32_t i = 0; i < 8; ++i) prompts.push_back(concat(numbers(0, 5), numbers(100 * i, 6)));
  BlockTable table(cache.pool);
  table.reserve(8);
  const int64_t before = allocations;
  for (const Tokens& prompt : prompts) {
    cache.find(prompt);
    ASSERT_TRUE(table.grow_to(3));
    cache.publish(cache.root(), prompt, table.blocks());
    table.clear();
  }
  EXPECT_EQ(allocations, before);
  EXPECT_GT(cache.index.nodes(), 0);
  cache.index.clear();
  EXPECT_EQ(allocations, before);
}

TEST(PrefixIndexDeathTest, MisuseIsNamed) {
  Cache cache(2, 4);
  const auto blocks = cache.store(numbers(0, 3));
  EXPECT_DEATH(cache.index.publish(cache.root(), numbers(0, 4), blocks[0]), "publish of block 0");
  cache.pool.share(blocks[0]);
  EXPECT_DEATH(cache.index.publish(cache.root(), numbers(7, 4), blocks[0]), "block 0 was overwritten");
  EXPECT_DEATH(cache.index.publish(cache.root(), {}, blocks[0]), "0 tokens in block 0");
  EXPECT_DEATH(cache.index.publish(cache.root(), numbers(0, 5), blocks[0]), "5 tokens in block 0");
}

/// The same contract as plainly as it can be said: a list of what each block holds, searched from end to end.
struct NaiveIndex {
  struct Named {
    std::string root;
    Tokens before, tokens;  ///< the whole prefix, and the block's own
  };
  std::map<BlockId, Named> named;
  size_t virtual_tokens;

  std::pair<int64_t, int> find(const std::string& root, const Tokens& tokens, int64_t limit) const {
    int64_t found = 0;
    for (;;) {
      const Tokens before(tokens.begin(), tokens.begin() + found);
      int64_t best = 0;
      for (const auto& [block, node] : named) {
        if (node.root != root || node.before != before) continue;
        int64_t n = 0;
        while (n < static_cast<int64_t>(node.tokens.size()) && found + n < limit && node.tokens[n] == tokens[found + n]) ++n;
        best = std::max(best, n);
      }
      found += best;
      if (best < static_cast<int64_t>(virtual_tokens)) return {found, static_cast<int>(best)};
    }
  }
  void publish(const std::string& root, const Tokens& before, const Tokens& tokens, BlockId block) {
    const auto goes_on = [](const Tokens& longer, const Tokens& shorter) {
      return longer.size() >= shorter.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
    };
    const auto sibling = [&](const Named& node) { return node.root == root && node.before == before; };
    for (const auto& [other, node] : named)
      if (sibling(node) && goes_on(node.tokens, tokens)) return;
    std::erase_if(named, [&](const auto& entry) { return sibling(entry.second) && goes_on(tokens, entry.second.tokens); });
    named[block] = {root, before, tokens};
  }
};

TEST(PrefixIndex, AgreesWithANaiveModelUnderRandomEvents) {
  test::for_each_case([](test::Gen& gen) {
    const int v = static_cast<int>(gen.in(1, 5));
    const auto vs = static_cast<size_t>(v);
    NaiveIndex model{.named = {}, .virtual_tokens = vs};
    /// What really lies in a block: the tokens before it, and one after the other its own.
    struct Content {
      std::string root;
      Tokens before, rows;
    };
    std::map<BlockId, Content> content;
    Cache cache(gen.in(1, 10), v, [&](const PrefixEvent& event) {
      if (event.kind == PrefixEvent::Kind::cleared) model.named.clear();
      // Only what the pool reuses is told to the model; other drops it must know by itself.
      if (event.kind == PrefixEvent::Kind::evicted && !content.contains(event.block)) model.named.erase(event.block);
    });
    struct Sequence {
      std::string root;
      Tokens tokens;  ///< stored ones
      std::vector<BlockId> blocks;
    };
    std::vector<Sequence> sequences;
    const auto key_of = [&](const std::string& root, const Tokens& tokens, size_t blocks) {
      PrefixKey key = cache.index.root("model", root);
      for (size_t i = 0; i < blocks; ++i) key = cache.index.child(key, cache.part(tokens, i));
      return key;
    };
    const auto take = [&]() -> std::optional<BlockId> {
      // The block that comes next is not known: let every unheld one count as lost while it is taken.
      std::map<BlockId, Content> kept;
      for (int32_t id = 0; id < cache.pool.size(); ++id)
        if (cache.pool.state(BlockId{id}) != BlockState::held) kept.insert(content.extract(BlockId{id}));
      const auto block = cache.pool.allocate();
      if (block) kept.erase(*block);
      content.merge(kept);
      return block;
    };
    const auto append = [&](Sequence& s, int32_t token) {
      if (s.tokens.size() % vs == 0) {
        const auto block = take();
        if (!block) return;
        content[*block] = {s.root, s.tokens, {}};
        s.blocks.push_back(*block);
      }
      content[s.blocks.back()].rows.push_back(token);
      s.tokens.push_back(token);
    };
    const auto publish = [&](const Sequence& s, size_t ordinal) {
      const auto part = cache.part(s.tokens, ordinal);
      const Tokens before(s.tokens.begin(), s.tokens.begin() + static_cast<int64_t>(ordinal * vs));
      cache.index.publish(key_of(s.root, s.tokens, ordinal), part, s.blocks[ordinal]);
      model.publish(s.root, before, Tokens(part.begin(), part.end()), s.blocks[ordinal]);
    };
    const auto start = [&] {
      Sequence s{.root = gen.pick<std::string>({"", "salt"}), .tokens = {}, .blocks = {}};
      Tokens prompt(static_cast<size_t>(gen.in(1, 4 * v)));
      for (int32_t& token : prompt) token = gen.chance(0.8) ? 0 : 1;
      const int64_t limit = gen.in(0, static_cast<int64_t>(prompt.size()));
      const auto hit = cache.index.find(cache.index.root("model", s.root), prompt, limit, s.blocks);
      const auto [tokens, partial] = model.find(s.root, prompt, limit);
      ASSERT_EQ(hit.tokens, tokens);
      ASSERT_EQ(hit.partial_tokens, partial);
      ASSERT_EQ(hit.key, key_of(s.root, prompt, s.blocks.size()));
      ASSERT_EQ(hit.tokens, static_cast<int64_t>(s.blocks.size() * vs) + hit.partial_tokens);
      for (size_t i = 0; i < s.blocks.size() + (hit.partial ? 1 : 0); ++i) {
        const Content& there = content.at(i < s.blocks.size() ? s.blocks[i] : *hit.partial);
        ASSERT_EQ(there.root, s.root);
        ASSERT_EQ(there.before, Tokens(prompt.begin(), prompt.begin() + static_cast<int64_t>(i * vs)));
        for (size_t row = 0; row < (i < s.blocks.size() ? vs : static_cast<size_t>(hit.partial_tokens)); ++row)
          ASSERT_EQ(there.rows.at(row), prompt[i * vs + row]);
      }
      for (const BlockId block : s.blocks) cache.pool.share(block);
      s.tokens.assign(prompt.begin(), prompt.begin() + static_cast<int64_t>(s.blocks.size() * vs));
      if (hit.partial) cache.pool.share(*hit.partial);  // until it has been copied
      for (int i = 0; i < hit.partial_tokens; ++i) append(s, prompt[s.tokens.size()]);
      if (hit.partial) cache.pool.release(*hit.partial);
      sequences.push_back(std::move(s));
    };

    for (int event = 0; event < 300; ++event) {
      const size_t which = sequences.empty() ? 0 : static_cast<size_t>(gen.in(0, static_cast<int64_t>(sequences.size()) - 1));
      switch (gen.in(0, 9)) {
        case 0:
        case 1:
          if (sequences.size() < 4) start();
          break;
        case 2:
          if (sequences.empty()) break;
          for (const BlockId block : std::vector(sequences[which].blocks.rbegin(), sequences[which].blocks.rend()))
            cache.pool.release(block);
          sequences.erase(sequences.begin() + static_cast<int64_t>(which));
          break;
        case 3: {
          const BlockId block{static_cast<int32_t>(gen.in(0, cache.pool.size() - 1))};
          if (!gen.chance(0.2)) break;
          cache.index.forget(block);
          model.named.erase(block);
          break;
        }
        case 4:
          if (gen.chance(0.02)) cache.index.clear();
          break;
        case 5:
        case 6:
          if (sequences.empty() || sequences[which].blocks.empty()) break;
          publish(sequences[which], static_cast<size_t>(gen.in(0, static_cast<int64_t>(sequences[which].blocks.size()) - 1)));
          break;
        default:
          if (!sequences.empty()) append(sequences[which], gen.chance(0.8) ? 0 : 1);
      }
      cache.check();
      ASSERT_EQ(cache.index.nodes(), static_cast<int64_t>(model.named.size()));
      for (const auto& [block, node] : model.named) ASSERT_TRUE(cache.pool.is_marked(block));
    }
  });
}

}  // namespace
}  // namespace weft
