#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace weft::cpu {

/// The most queries that are attended together. 64 rows share one pass over the keys: enough to hide the conversion of a key
/// behind the arithmetic done with it, few enough that 64 latent queries and results (64 * (576 + 512) * 4 B = 272 KiB) stay in
/// a core's second-level cache.
constexpr int kTileQueries = 64;
/// Keys that are scored before their values are added. 64 latent rows in float32 are 144 KiB.
constexpr int kTileKeys = 64;

/// The most queries of one KV head that are attended in the way that suits few queries, bound by reading keys. Measured with 8
/// KV heads of 128: at 2 queries it takes 0.7 times as long as a panel of 16 lanes, at 4 as long, at 8 1.5 times.
constexpr int kStreamQueries = 4;

/// Keys [begin, end) of one segment that some row of a tile sees.
struct SeenKeys {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Consecutive queries of one sequence that share a KV head, in the order (row, head of the group); `row` and `head` are the
/// first one's. The same tiles serve every KV head.
struct QueryTile {
  int32_t row = 0, head = 0, count = 0;
  int32_t parts = 1;          ///< how many parts its keys are attended in
  bool in_turn = false;       ///< one task attends all parts, one after the other; otherwise each has its own
  int64_t keys = 0;           ///< keys that any of its rows sees, all segments
  int64_t part_keys = 0;      ///< keys of every part but the last; a multiple of kTileKeys
  int64_t first_partial = 0;  ///< of (KV head 0, part 0) if there are several parts; then parts, then KV heads
};

/// One piece of work: the queries of a tile against one part of the keys, under one KV head; or under several, where the
/// queries are so few that reading matters most, and a key's heads lie side by side.
struct AttendTask {
  int32_t tile = 0, part = 0, kv_head = 0, kv_heads = 1;
  int64_t cost = 0;
};

/// How a call of attend is cut into tasks. A pure function of shapes, ranges and sequences.
///
/// The keys of a tile are contiguous in each segment: a row whose keys neither touch nor overlap those before it starts a new
/// tile, so that everything between a tile's first and last key may be read.
///
/// Where the call must be invariant, a tile has queries of one row only, and its keys are cut into parts that follow from their
/// number: then kernel and order of sums follow from the row alone. Rows of one sequence share no pass over their keys, which
/// costs time. Only whether the parts are tasks of their own depends on the call; they are joined in the same order.
class AttendPlan {
 public:
  void build(const Attention& args);
  /// Takes memory for plans of calls within `limits`.
  void reserve(const AttentionLimits& limits);
  /// The most partials() of such a plan.
  static int64_t most_partials(const AttentionLimits& limits);

  std::span<const QueryTile> tiles() const { return tiles_; }
  /// Most expensive first.
  std::span<const AttendTask> tasks() const { return tasks_; }
  /// Tiles whose parts are several tasks.
  std::span<const int32_t> split_tiles() const { return split_tiles_; }
  /// Results of parts that have to be kept until they are joined.
  int64_t partials() const { return partials_; }

 private:
  void cut_queries(const Attention& args, int group);
  void split_keys(int kv_heads, bool adjacent);
  void cut_keys_invariantly(int kv_heads);
  void list_tasks(int kv_heads, bool adjacent);

  std::vector<QueryTile> tiles_;
  std::vector<AttendTask> tasks_;
  std::vector<int32_t> split_tiles_;
  std::vector<SeenKeys> seen_;  ///< of the tile being cut
  int64_t partials_ = 0;
};

/// The keys that rows [first, last] see in `segment`: from the least begin to the greatest end of the rows that see any.
SeenKeys seen_keys(const Attention& args, int segment, int64_t first_row, int64_t last_row);

}  // namespace weft::cpu
