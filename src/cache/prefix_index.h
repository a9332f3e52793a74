#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cache/block_pool.h"

namespace weft {

/// Names a prefix of whole virtual blocks: a 128-bit keyed hash chain over everything that its KV depends on. The root of a
/// chain stands for model, layout and tenant; each block's tokens lead to the next key.
struct PrefixKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const PrefixKey&) const = default;
};

/// What happened to cached blocks, for whoever keeps a copy of the index (routers, tiers).
struct PrefixEvent {
  enum class Kind : uint8_t { stored, evicted, cleared } kind = Kind::stored;
  BlockId block{};
  PrefixKey parent, key;            ///< stored, evicted; `key` of a partly filled block is that of its tokens so far
  std::span<const int32_t> tokens;  ///< of this block, valid during the call
};

/// Finds cached blocks by their tokens: the longest prefix of a token list whose KV is still somewhere in the pool.
///
/// A node is a block whose first `n` rows hold the KV of n tokens after a parent prefix; n is a whole virtual block, or less
/// for the end of a sequence. Nodes lie in one order, by parent key, then by tokens, so that whole and partial matches are both
/// a search among neighbours and every match compares the tokens themselves. Rows that a node names are never written again, so
/// a node may name the beginning of a block that its sequence still appends to.
///
/// A node whose parent was evicted stays: it is found again once the parent's tokens are published again, never otherwise.
///
/// Thread: engine thread only. Nodes are as many as the pool has blocks and all memory is taken at the start. Owns the marks
/// of the pool: a block is marked exactly while it has a node. Invariants (checked by check_invariants() in tests):
///  1. Every node's block is held, pinned or cached in the pool and marked; no two nodes of one parent hold equal tokens.
///  2. No node's tokens are a beginning of a longer sibling's tokens: the longer one is found wherever the shorter would be.
class PrefixIndex {
 public:
  using Listener = std::function<void(const PrefixEvent&)>;

  /// `virtual_tokens`: tokens of a virtual block. `secret` keys the hash. The pool's on_evict must call forget().
  PrefixIndex(BlockPool& pool, int virtual_tokens, const std::array<uint8_t, 16>& secret, Listener listener = {});
  ~PrefixIndex();

  /// The empty prefix of one model and layout (`fingerprint`) and one tenant (`salt`, empty for none).
  PrefixKey root(std::string_view fingerprint, std::string_view salt) const;
  /// The prefix `parent` followed by one whole virtual block of tokens.
  PrefixKey child(PrefixKey parent, std::span<const int32_t> tokens) const;

  /// A cached prefix: whole blocks, then the first `partial_tokens` rows of one more, which must be copied before use.
  struct Hit {
    int64_t tokens = 0;    ///< in all
    int whole_blocks = 0;  ///< appended to the output of find()
    PrefixKey key;         ///< of the whole blocks
    std::optional<BlockId> partial;
    int partial_tokens = 0;
  };
  /// The longest cached prefix of `tokens`, at most `limit` tokens. Appends the whole blocks to `blocks` without taking
  /// references: the caller shares them before anything is allocated. Allocates nothing where `blocks` has the room.
  Hit find(PrefixKey root, std::span<const int32_t> tokens, int64_t limit, std::vector<BlockId>& blocks) const;

  /// The first `tokens.size()` rows of `block`, held by the caller, are the KV of these tokens after `parent`: 1 to
  /// `virtual_tokens` of them. Replaces the node that the block had; rows that it named hold the same tokens still, which is
  /// checked. Does nothing where a node with these tokens, or one that goes on after them, is there already (its block stays
  /// the one that is found). A shorter sibling that these tokens go on from is dropped.
  void publish(PrefixKey parent, std::span<const int32_t> tokens, BlockId block);

  /// Drops the node of a block that is about to be reused, if it has one: BlockPool's on_evict.
  void forget(BlockId block);
  /// Drops every node.
  void clear();

  int64_t nodes() const;
  void check_invariants() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft
