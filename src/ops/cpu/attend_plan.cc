#include "ops/cpu/attend_plan.h"

#include <algorithm>

namespace weft::cpu {
namespace {

// A call is cut into about this many tasks of equal cost, so that up to 16 threads end within a quarter of a task's share of
// each other. A part of fewer keys than kMinPartKeys would spend more on writing and joining its partial than on its keys.
constexpr int64_t kTargetTasks = 64;
constexpr int64_t kMinPartKeys = 256;

// Where the cut may not depend on the rest of the call, a part has at least so many keys, and a row at most so many parts. With
// more tiles than kMostSplitTiles there is work for all threads without splitting any, and partials would need much memory.
constexpr int64_t kInvariantPartKeys = 512, kMostInvariantParts = 16, kMostSplitTiles = 16;
static_assert(kInvariantPartKeys % kTileKeys == 0 && kMostInvariantParts * kMostSplitTiles <= 4 * kTargetTasks);

// A tile costs its keys times its queries; below this many queries reading the keys costs as much as using them.
constexpr int64_t kMemoryBoundQueries = 8;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t cost_of(const QueryTile& tile, int64_t keys) { return keys * std::max<int64_t>(tile.count, kMemoryBoundQueries); }

SeenKeys row_keys(const Attention& args, int segment, int64_t row) {
  const int64_t at = segment * args.q.size(1) + row;
  return {args.begin[at], std::max(args.begin[at], args.end[at])};
}

// KV heads that one task of this tile takes.
int heads_together(const QueryTile& tile, int kv_heads, bool adjacent) {
  return adjacent && tile.count <= kStreamQueries ? std::min(kv_heads, kTileQueries / tile.count) : 1;
}

// True if the heads of a key, and those of a value, lie side by side.
bool heads_are_adjacent(const Attention& args) {
  if (args.paged.kv.k != nullptr) return true;
  const ConstView &k = args.rows.k, &v = args.rows.v;
  return k.stride(1) == k.size(2) && v.stride(1) == v.size(2);
}

// Adds a row's keys to those of a tile; false, and nothing changed, where that would leave a gap.
bool extend(std::span<SeenKeys> seen, const Attention& args, int64_t row) {
  for (size_t s = 0; s < seen.size(); ++s) {
    const SeenKeys keys = row_keys(args, static_cast<int>(s), row);
    if (keys.size() > 0 && seen[s].size() > 0 && (keys.begin > seen[s].end || keys.end < seen[s].begin)) return false;
  }
  for (size_t s = 0; s < seen.size(); ++s) {
    const SeenKeys keys = row_keys(args, static_cast<int>(s), row);
    if (keys.size() == 0) continue;
    if (seen[s].size() == 0) seen[s] = keys;
    seen[s] = {std::min(seen[s].begin, keys.begin), std::max(seen[s].end, keys.end)};
  }
  return true;
}

}  // namespace

SeenKeys seen_keys(const Attention& args, int segment, int64_t first_row, int64_t last_row) {
  SeenKeys seen;
  for (int64_t row = first_row; row <= last_row; ++row) {
    const SeenKeys keys = row_keys(args, segment, row);
    if (keys.size() == 0) continue;
    if (seen.size() == 0) seen = keys;
    seen = {std::min(seen.begin, keys.begin), std::max(seen.end, keys.end)};
  }
  return seen;
}

void AttendPlan::build(const Attention& args) {
  const int kv_heads = args.kv_heads();
  cut_queries(args, static_cast<int>(args.q.size(0) * args.q.size(2)) / kv_heads);
  const bool adjacent = heads_are_adjacent(args);
  args.invariant ? cut_keys_invariantly(kv_heads) : split_keys(kv_heads, adjacent);
  list_tasks(kv_heads, adjacent);
}

namespace {

/// Every row may begin a tile, and one more for each kTileQueries of its queries.
int64_t most_tiles(const AttentionLimits& limits) { return limits.rows * (limits.heads / limits.kv_heads / kTileQueries + 2); }

/// Parts of tiles with several, for each KV head. Such a tile costs more than a share, and has fewer than cost / share + 2
/// parts, so less than three times its shares. There are little more than kTargetTasks shares in all.
int64_t most_parts(const AttentionLimits& limits) {
  return std::min(4 * kTargetTasks, most_tiles(limits) * (limits.keys / kMinPartKeys + 1));
}

}  // namespace

int64_t AttendPlan::most_partials(const AttentionLimits& limits) {
  return limits.keys < 2 * kMinPartKeys ? 0 : most_parts(limits) * limits.kv_heads;
}

void AttendPlan::reserve(const AttentionLimits& limits) {
  const int64_t tiles = most_tiles(limits);
  tiles_.reserve(static_cast<size_t>(tiles));
  split_tiles_.reserve(static_cast<size_t>(std::min(tiles, most_parts(limits))));
  tasks_.reserve(static_cast<size_t>((tiles + most_parts(limits)) * limits.kv_heads));
  seen_.reserve(static_cast<size_t>(limits.segments));
}

void AttendPlan::cut_queries(const Attention& args, int group) {
  tiles_.clear();
  seen_.assign(static_cast<size_t>(args.segments), SeenKeys{});
  bool open = false;
  const auto close = [&] {
    if (!open) return;
    for (SeenKeys& keys : seen_) tiles_.back().keys += keys.size(), keys = SeenKeys{};
    open = false;
  };
  for (int32_t row = 0; row < args.q.size(1); ++row) {
    if (args.invariant) close();
    if (open && (args.seq_of[row] != args.seq_of[row - 1] || !extend(seen_, args, row))) close();
    for (int32_t head = 0; head < group;) {
      if (!open) {
        tiles_.push_back({.row = row, .head = head});
        extend(seen_, args, row);
        open = true;
      }
      const int32_t taken = std::min(group - head, kTileQueries - tiles_.back().count);
      tiles_.back().count += taken;
      head += taken;
      if (tiles_.back().count == kTileQueries) close();
    }
  }
  close();
}

void AttendPlan::split_keys(int kv_heads, bool adjacent) {
  int64_t total = 0;
  for (const QueryTile& tile : tiles_) total += kv_heads * cost_of(tile, tile.keys);
  const int64_t share = std::max<int64_t>(1, total / kTargetTasks);

  split_tiles_.clear();
  partials_ = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    QueryTile& tile = tiles_[i];
    const int64_t cost = heads_together(tile, kv_heads, adjacent) * cost_of(tile, tile.keys);
    const int64_t wanted = std::min((cost + share - 1) / share, tile.keys / kMinPartKeys);
    tile.part_keys = round_up(tile.keys / std::max<int64_t>(1, wanted), kTileKeys);
    tile.parts = tile.keys == 0 ? 1 : static_cast<int32_t>((tile.keys + tile.part_keys - 1) / tile.part_keys);
    if (tile.parts == 1) continue;
    tile.first_partial = partials_;
    partials_ += int64_t{tile.parts} * kv_heads;
    split_tiles_.push_back(static_cast<int32_t>(i));
  }
}

void AttendPlan::cut_keys_invariantly(int kv_heads) {
  split_tiles_.clear();
  partials_ = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    QueryTile& tile = tiles_[i];
    const int64_t least = (tile.keys + kMostInvariantParts - 1) / kMostInvariantParts;
    tile.part_keys = std::max(kInvariantPartKeys, round_up(least, kTileKeys));
    tile.parts = static_cast<int32_t>(std::max<int64_t>(1, (tile.keys + tile.part_keys - 1) / tile.part_keys));
    tile.in_turn = tile.parts > 1 && static_cast<int64_t>(tiles_.size()) > kMostSplitTiles;
    if (tile.parts == 1 || tile.in_turn) continue;
    tile.first_partial = partials_;
    partials_ += int64_t{tile.parts} * kv_heads;
    split_tiles_.push_back(static_cast<int32_t>(i));
  }
}

void AttendPlan::list_tasks(int kv_heads, bool adjacent) {
  tasks_.clear();
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const QueryTile& tile = tiles_[i];
    const int32_t together = heads_together(tile, kv_heads, adjacent);
    for (int32_t kv_head = 0; kv_head < kv_heads; kv_head += together) {
      const int32_t heads = std::min(together, kv_heads - kv_head);
      for (int32_t part = 0; part < (tile.in_turn ? 1 : tile.parts); ++part) {
        const int64_t keys = tile.in_turn ? tile.keys : std::min(tile.part_keys, tile.keys - part * tile.part_keys);
        tasks_.push_back({static_cast<int32_t>(i), part, kv_head, heads, heads * cost_of(tile, keys)});
      }
    }
  }
  // Long tasks first, so that no thread is left with one at the end.
  std::sort(tasks_.begin(), tasks_.end(), [](const AttendTask& a, const AttendTask& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    if (a.tile != b.tile) return a.tile < b.tile;
    if (a.kv_head != b.kv_head) return a.kv_head < b.kv_head;
    return a.part < b.part;
  });
}

}  // namespace weft::cpu
