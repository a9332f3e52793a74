#pragma once

#include <vector>

#include "layout/shard_layout.h"

namespace weft {

/// The heads of a model on `tp` ranks, and the decode-context-parallel groups among them.
///
/// Query heads are dealt in runs of q_heads / tp. With fewer ranks than KV heads each rank holds kv_heads / tp of them; with
/// more, each KV head is copied on tp / kv_heads consecutive ranks. A group is a run of `dcp` consecutive ranks; it replaces
/// copies by shards, so dcp must divide the number of copies. MLA counts as one KV head.
class RankGrid {
 public:
  struct Spec {
    int tp = 1, dcp = 1;    ///< -tp, -dcp
    int q_heads = 1;        ///< query heads of the whole model
    int kv_heads = 1;       ///< KV heads of the whole model; 1 for MLA
    int interleave = 1;     ///< --cp-kv-cache-interleave-size
    int block_tokens = 16;  ///< --block-size
  };

  /// Throws UserError for an impossible grid: names the flags, the numbers, and the values that would be accepted.
  explicit RankGrid(const Spec& spec);

  int tp() const { return spec_.tp; }
  int dcp() const { return spec_.dcp; }
  int q_heads() const { return spec_.q_heads; }
  int kv_heads() const { return spec_.kv_heads; }

  /// Query heads of one rank, and of a whole group.
  int rank_q_heads() const { return spec_.q_heads / spec_.tp; }
  int group_q_heads() const { return rank_q_heads() * spec_.dcp; }
  /// KV heads stored by one rank: more than one only where tp < kv_heads, and then dcp is 1.
  int rank_kv_heads() const { return spec_.tp < spec_.kv_heads ? spec_.kv_heads / spec_.tp : 1; }
  /// Ranks that hold a copy (dcp = 1) or a shard (dcp = copies) of the same KV head.
  int kv_copies() const { return spec_.tp < spec_.kv_heads ? 1 : spec_.tp / spec_.kv_heads; }

  Range q_heads_of(int tp_rank) const;
  Range kv_heads_of(int tp_rank) const;
  int group_of(int tp_rank) const { return tp_rank / spec_.dcp; }
  int dcp_rank_of(int tp_rank) const { return tp_rank % spec_.dcp; }
  int groups() const { return spec_.tp / spec_.dcp; }
  ShardLayout shard() const { return {.ranks = spec_.dcp, .interleave = spec_.interleave}; }

  /// The legal --decode-context-parallel-size values for these heads at this tp: the divisors of the copies of a KV head.
  /// Empty if tp itself is impossible.
  static std::vector<int> legal_dcp(int q_heads, int kv_heads, int tp);
  /// The legal --tensor-parallel-size values up to `limit`.
  static std::vector<int> legal_tp(int q_heads, int kv_heads, int limit);

 private:
  Spec spec_;
};

}  // namespace weft
