#pragma once

#include <cstdint>

namespace weft {

/// A half-open range of indices.
struct Range {
  int64_t begin = 0, end = 0;
  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// How the tokens of a sequence are woven over the ranks of a decode-context-parallel group: `interleave` consecutive tokens
/// to each rank in turn. Every rank keeps its tokens in global order, so a prefix of the sequence is a prefix of every shard.
/// Positions are global, local indices count the owner's own tokens. A plain value, usable inside kernels.
///
/// Requires: ranks >= 1, interleave >= 1, positions and lengths >= 0.
struct ShardLayout {
  int ranks = 1;
  int interleave = 1;

  /// The rank that stores `pos`. A function of the global position only.
  constexpr int owner(int64_t pos) const { return static_cast<int>(pos / interleave % ranks); }

  /// Index of `pos` among its owner's tokens.
  constexpr int64_t local_index(int64_t pos) const {
    return pos / (int64_t{interleave} * ranks) * interleave + pos % interleave;
  }

  /// Tokens of [0, length) that `rank` holds. Ranks differ by at most `interleave`; rank 0 has the most.
  constexpr int64_t local_count(int64_t length, int rank) const {
    const int64_t turn = int64_t{interleave} * ranks;
    const int64_t rest = length % turn - int64_t{rank} * interleave;
    const int64_t extra = rest < 0 ? 0 : rest > interleave ? interleave : rest;
    return length / turn * interleave + extra;
  }

  /// The global position of a rank's token: the inverse of (owner, local_index).
  constexpr int64_t position(int rank, int64_t local) const {
    return (local / interleave * ranks + rank) * interleave + local % interleave;
  }

  /// The most tokens of [0, length) that any rank may be asked for: whole turns, the same on all ranks.
  constexpr int64_t padded_count(int64_t length) const {
    const int64_t turn = int64_t{interleave} * ranks;
    return (length + turn - 1) / turn * interleave;
  }

  /// The keys, as local indices of `rank`, that a query at global position `pos` may see: positions (pos - window, pos].
  /// A window of kNoWindow sees everything up to and including `pos`. Causality needs no further mask.
  static constexpr int64_t kNoWindow = INT64_MAX;
  constexpr Range visible_keys(int64_t pos, int64_t window, int rank) const {
    const int64_t first = window > pos ? 0 : pos + 1 - window;
    return {local_count(first, rank), local_count(pos + 1, rank)};
  }

  friend constexpr bool operator==(const ShardLayout&, const ShardLayout&) = default;
};

}  // namespace weft
