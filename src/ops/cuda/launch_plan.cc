#include "ops/cuda/launch_plan.h"

#include <algorithm>

namespace weft::cuda {
namespace {

int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// A part of fewer keys than this would spend more on starting and on being joined than on its keys.
constexpr int64_t kLeastPartKeys = 128;
// Where the cut may not depend on the rest of the call, a part has at least so many keys, and a row at most so many parts.
constexpr int64_t kInvariantPartKeys = 512;
constexpr int kInvariantParts = 16;

// A processor holds 64 warps. Parts are made until its warps or its shared memory are used up.
constexpr int kProcessorWarps = 64;
// Queries whose partial results are kept at once: what all processors can work at. 132 * 256 latent queries of 514 floats are
// 70 MB.
constexpr int64_t kProcessorQueries = kProcessorWarps * kQueriesPerWarp;

/// The fewest warps, a power of two, whose queries are all those that there are, or kMostWarps.
int warps_for(int64_t queries) {
  int warps = 1;
  while (warps < kMostWarps && warps * kQueriesPerWarp < queries) warps *= 2;
  return warps;
}

int columns_per_lane_for(int columns) {
  int each = 1;
  while (each * 32 < columns) each *= 2;
  return each;
}

/// Rows whose partials fit into the memory that most_partials speaks of.
int64_t rows_at_once(int64_t partials_per_row, const DeviceTraits& device) {
  return std::max<int64_t>(1, kProcessorQueries * device.processors / partials_per_row);
}

}  // namespace

TiledShape plan_tiled(int64_t rows) {
  const int tile_rows = rows <= 2 * kFewTileRows ? kFewTileRows : kManyTileRows;
  return {.tile_rows = tile_rows, .row_tiles = ceil_div(rows, tile_rows)};
}

TiledShape plan_tiled_experts(int64_t rows, int64_t experts) {
  const int tile_rows = rows <= 2 * kFewTileRows * experts ? kFewTileRows : kManyTileRows;
  return {.tile_rows = tile_rows, .row_tiles = std::min(rows, rows / tile_rows + experts)};
}

AttendShape plan_attend(const AttendSizes& sizes, const DeviceTraits& device) {
  const int group = sizes.heads / sizes.kv_heads, columns = std::min(sizes.v_dim, kMostColumns);
  AttendShape shape;
  shape.whole_rows = sizes.paged || sizes.invariant;
  shape.columns_per_lane = columns_per_lane_for(columns);
  shape.warps = warps_for(shape.whole_rows ? group : group * sizes.rows);
  const auto bytes = [&] {
    return static_cast<size_t>(attend_tile_memory(shape.warps, sizes.k_dim, sizes.v_is_k, shape.columns_per_lane).end) *
           sizeof(float);
  };
  while (shape.warps > 1 && bytes() > device.shared_bytes) shape.warps /= 2;
  while (shape.columns_per_lane > 1 && bytes() > device.shared_bytes) shape.columns_per_lane /= 2;
  shape.column_blocks = static_cast<int>(ceil_div(sizes.v_dim, shape.columns_per_lane * 32));
  shape.shared_bytes = bytes();
  shape.tiles_per_row = ceil_div(group, shape.queries());

  const int64_t blocks = shape.tiles(sizes.rows, group) * sizes.kv_heads * shape.column_blocks;
  shape.launch_rows = sizes.rows;
  if (sizes.invariant) {
    shape.cut = kInvariantParts;
    shape.least_part_keys = kInvariantPartKeys;
    // Parts that no row can have need no blocks: an empty part changes no bit.
    shape.parts = static_cast<int>(std::clamp<int64_t>(ceil_div(sizes.keys, kInvariantPartKeys), 1, kInvariantParts));
    if (shape.parts > 1) shape.launch_rows = std::min(sizes.rows, rows_at_once(int64_t{shape.parts} * sizes.heads, device));
    return shape;
  }
  const auto fitting = static_cast<int64_t>(device.shared_bytes / std::max<size_t>(1, shape.shared_bytes));
  const int64_t per_processor = std::clamp<int64_t>(fitting, 1, kProcessorWarps / shape.warps);
  const int64_t wanted = per_processor * device.processors / std::max<int64_t>(1, blocks);
  shape.parts = static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, ceil_div(sizes.keys, kLeastPartKeys))));
  shape.cut = shape.parts;
  shape.least_part_keys = kLeastPartKeys;
  return shape;
}

int64_t most_partials(int64_t heads, const DeviceTraits& device) {
  // Where there are parts, tiles * parts are at most the blocks that all processors hold, and a tile has as many queries as its
  // block's warps. An invariant call goes by rows, one at least.
  return std::max(kProcessorQueries * device.processors, heads * kInvariantParts);
}

size_t sample_scratch_bytes(int64_t vocab) {
  const auto padded = static_cast<size_t>((vocab + 1) / 2 * 2);
  return padded * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t));
}

int sample_blocks(int64_t logit_rows) {
  // Some choices of one prompt go at the same time, and no more rows than fill a device.
  return static_cast<int>(std::clamp<int64_t>(logit_rows, 8, 128));
}

}  // namespace weft::cuda
