#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "layout/shard_layout.h"

namespace weft {

/// Identifies one virtual block: `block_tokens` rows on *every* rank of the group, at the same place.
enum class BlockId : int32_t {};

/// Where the tokens of a sequence lie in blocks. A virtual block is `block_tokens * ranks` consecutive tokens; it is physical
/// block `id` on every rank, so one block table serves the whole group. Requires block_tokens % interleave == 0: then the
/// tokens that a rank owns in a block are always a prefix of it.
struct BlockLayout {
  ShardLayout shard;
  int block_tokens = 16;

  /// Tokens of one virtual block.
  constexpr int64_t virtual_tokens() const { return int64_t{block_tokens} * shard.ranks; }
  /// Virtual blocks that hold `length` tokens.
  constexpr int64_t blocks_for(int64_t length) const { return (length + virtual_tokens() - 1) / virtual_tokens(); }
  /// Index in the block table of the block that holds `pos`, the same on all ranks.
  constexpr int64_t block_of(int64_t pos) const { return pos / virtual_tokens(); }

  /// Row of the KV planes where `rank` stores `pos`, or -1 if another rank stores it.
  constexpr int64_t slot(std::span<const BlockId> table, int64_t pos, int rank) const {
    if (shard.owner(pos) != rank) return -1;
    return local_slot(table, shard.local_index(pos));
  }
  /// Row of the KV planes of the rank's token number `local`.
  constexpr int64_t local_slot(std::span<const BlockId> table, int64_t local) const {
    return int64_t{static_cast<int32_t>(table[static_cast<size_t>(local / block_tokens)])} * block_tokens +
           local % block_tokens;
  }

  /// The layout of a plane that every rank holds whole: the same virtual block, one rank, `virtual_tokens` rows in it.
  constexpr BlockLayout replicated() const {
    return {.shard = {.ranks = 1, .interleave = 1}, .block_tokens = static_cast<int>(virtual_tokens())};
  }

  friend constexpr bool operator==(const BlockLayout&, const BlockLayout&) = default;
};

}  // namespace weft
