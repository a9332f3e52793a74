#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::cuda {

// How calls become launches: tiles, parts, grids and shared memory. Pure functions of sizes and of what the device is, so that
// a recorded launch stays right for other arrays; no CUDA in here.

/// What plans depend on.
struct DeviceTraits {
  int processors = 1;              ///< streaming multiprocessors
  size_t shared_bytes = 48 << 10;  ///< the most shared memory of one block
};

// --- products ---------------------------------------------------------------------------------------------------------

/// Rows of a tile of tiled_product.cu: few where a matrix meets few rows and is waited for, many where there are.
constexpr int kFewTileRows = 16, kManyTileRows = 64;

struct TiledShape {
  int tile_rows = 0;
  int64_t row_tiles = 0;
};
/// Tiles for `rows` rows, all of one matrix.
TiledShape plan_tiled(int64_t rows);
/// Tiles for `rows` rows of `experts` matrices, however many each has: each may end in a tile that is not full.
TiledShape plan_tiled_experts(int64_t rows, int64_t experts);

// --- attention --------------------------------------------------------------------------------------------------------

constexpr int kQueriesPerWarp = 4;
constexpr int kMostWarps = 8;
/// Keys of a tile: one for each lane.
constexpr int kTileKeys = 32;
/// Numbers of a value that a block sums up at most; larger values take several blocks, which score the same keys.
constexpr int kMostColumns = 512;

/// The sizes of a call of attend that shape its launches.
struct AttendSizes {
  int64_t rows = 0;  ///< T
  int heads = 1;     ///< P * h
  int kv_heads = 1;
  int k_dim = 1, v_dim = 1;
  bool v_is_k = false;  ///< values are part of the keys
  int64_t keys = 0;     ///< no row sees more, of all segments together
  bool paged = false;
  bool invariant = false;
};

/// How a call of attend is cut. A tile is some queries of one KV head; its keys are attended in parts, by blocks of their own.
///
/// Paged calls and invariant ones have tiles of one row, since rows that decode are of different sequences; calls over rows are
/// chunks of prefill, whose neighbours share their keys. Parts: enough for several blocks on each processor, where the keys
/// allow; in an invariant call they follow from a row's own number of keys.
struct AttendShape {
  int warps = 1;  ///< of a block; each has kQueriesPerWarp queries
  bool whole_rows = false;
  int columns_per_lane = 1;  ///< 1, 2, 4, 8 or 16
  int column_blocks = 1;
  int64_t tiles_per_row = 1;  ///< if whole_rows
  int parts = 1;              ///< of a tile's keys
  int cut = 1;                ///< a part has a cut-th of the keys, and at least
  int64_t least_part_keys = kTileKeys;
  int64_t launch_rows = 0;  ///< rows of one launch: fewer than all where partial results would take too much memory
  size_t shared_bytes = 0;

  constexpr int queries() const { return warps * kQueriesPerWarp; }
  /// Tiles of each KV head that `rows` rows with `group` queries each are cut into.
  constexpr int64_t tiles(int64_t rows, int group) const {
    return whole_rows ? rows * tiles_per_row : (rows * group + queries() - 1) / queries();
  }
};

/// Shared memory of a block, in floats: where what begins. The kernel and the plan both count with it.
struct AttendTileMemory {
  int k_stride = 0, v_stride = 0;                  ///< from one key's numbers to the next one's; a query's lie as a key's
  int keys = 0, values = 0, weights = 0, end = 0;  ///< queries begin at 0
};
constexpr AttendTileMemory attend_tile_memory(int warps, int k_dim, bool v_is_k, int columns_per_lane) {
  AttendTileMemory m;
  // Four floats more than a multiple of 32 let eight lanes read four neighbours of eight keys from different banks.
  m.k_stride = (k_dim + 3) / 4 * 4 + 4;
  m.v_stride = v_is_k ? m.k_stride : columns_per_lane * 32;
  m.keys = warps * kQueriesPerWarp * m.k_stride;
  m.values = v_is_k ? m.keys : m.keys + kTileKeys * m.k_stride;
  m.weights = m.values + kTileKeys * m.v_stride;
  // The last lanes of the last key look past its end where v_dim is no multiple of 32; nobody uses what they find.
  m.end = m.weights + warps * kTileKeys * kQueriesPerWarp + columns_per_lane * 32;
  return m;
}

/// Throws nothing: where no block fits, shared_bytes says how much one warp would need.
AttendShape plan_attend(const AttendSizes& sizes, const DeviceTraits& device);

/// The most partial results, each of one query, that a call with so many heads keeps at once, whatever its rows and keys.
int64_t most_partials(int64_t heads, const DeviceTraits& device);

// --- sampling ---------------------------------------------------------------------------------------------------------

/// Bytes that the search for one token works in: weights, changed logits and a list of tokens.
size_t sample_scratch_bytes(int64_t vocab);
/// Blocks that search at the same time, each with scratch of its own, when at most so many logit rows are sampled at once.
int sample_blocks(int64_t logit_rows);

}  // namespace weft::cuda
