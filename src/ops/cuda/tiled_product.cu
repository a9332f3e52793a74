#include "ops/cuda/launch_plan.h"
#include "ops/cuda/params.h"
#include "ops/cuda/vectors.cuh"

namespace weft::cuda {
namespace {

// A block multiplies kTileRows rows by kTileColumns rows of a matrix, kTileDepth of their elements at a time; a thread sums up
// every 16th of four columns, and of the rows.
constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kTileColumns = 64, kTileDepth = 64;
constexpr int kThreadColumns = kTileColumns / kSide;

/// Rows that a block has: of which matrix, and which of `out`.
struct TileRows {
  int matrix = 0;
  int64_t first = 0;
  int count = 0;
};

/// Tile number `tile` of those that all experts' rows are cut into, found by every warp for itself.
__device__ TileRows find_tile(const int32_t* offsets, int experts, int tile_rows, int tile) {
  const int lane = threadIdx.x % kWarp;
  for (int first = 0; first < experts; first += kWarp) {
    const int expert = first + lane;
    const int begin = expert < experts ? offsets[expert] : 0, rows = expert < experts ? offsets[expert + 1] - begin : 0;
    const int tiles = (rows + tile_rows - 1) / tile_rows;
    int until = tiles;  // tiles of the experts up to this one
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const int other = __shfl_up_sync(~0u, until, apart);
      if (lane >= apart) until += other;
    }
    const unsigned behind = __ballot_sync(~0u, until > tile);
    if (behind != 0) {
      const int found = __ffs(static_cast<int>(behind)) - 1;
      const int row = (tile - (until - tiles)) * tile_rows;
      const int count = min(tile_rows, rows - row);
      return {first + found, __shfl_sync(~0u, begin + row, found), __shfl_sync(~0u, count, found)};
    }
    tile -= __shfl_sync(~0u, until, kWarp - 1);
  }
  return {};
}

/// The first n of four neighbours, and zeros, of T as they are stored.
template <typename T>
__device__ Four<T> load_some(const T* x, int64_t n) {
  Four<T> four{};
  T* elements = reinterpret_cast<T*>(&four);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < n) elements[i] = x[i];
  return four;
}

/// Four elements of the depth of one row, as columns of a tile.
template <int kWidth>
__device__ void put_four(float4 x, int depth, int at, float (*tile)[kWidth]) {
  tile[depth][at] = x.x;
  tile[depth + 1][at] = x.y;
  tile[depth + 2][at] = x.z;
  tile[depth + 3][at] = x.w;
}

template <typename T, typename Out, int kTileRows>
__global__ void __launch_bounds__(kThreads) tiled_product(const __grid_constant__ TiledProductParams p, bool x_by_fours) {
  constexpr int kThreadRows = kTileRows / kSide, kFours = kTileDepth / 4;
  // One column more, so that what a warp puts and takes lies in different banks.
  __shared__ float x_tile[kTileDepth][kTileRows + 1], w_tile[kTileDepth][kTileColumns + 1];
  TileRows rows;
  if (p.offsets != nullptr) {
    rows = find_tile(p.offsets, p.count, kTileRows, static_cast<int>(blockIdx.y));
  } else {
    rows = {static_cast<int>(blockIdx.z), int64_t{blockIdx.y} * kTileRows, 0};
    rows.count = static_cast<int>(min(int64_t{kTileRows}, p.rows - rows.first));
  }
  if (rows.count <= 0) return;
  const int64_t first_column = int64_t{blockIdx.x} * kTileColumns;
  const T* matrix = static_cast<const T*>(p.matrices[rows.matrix]);
  const T* x = static_cast<const T*>(p.x) + blockIdx.z * p.x_head_stride;

  // What a thread fetches of each tile: the next tile's numbers are on their way while this one's are used.
  constexpr int kXFours = (kTileRows * kFours + kThreads - 1) / kThreads, kWFours = kTileColumns * kFours / kThreads;
  Four<T> next_x[kXFours], next_w[kWFours];
  const auto fetch = [&](int64_t depth) {
#pragma unroll
    for (int n = 0; n < kXFours; ++n) {
      const int i = threadIdx.x + n * kThreads, row = i / kFours;
      const int64_t at = depth + i % kFours * 4, left = p.depth - at;
      next_x[n] = {};
      if (row >= rows.count || left <= 0) continue;
      const int64_t from = p.source != nullptr ? p.source[rows.first + row] : rows.first + row;
      const T* elements = x + from * p.x_stride + at;
      next_x[n] = x_by_fours && left >= 4 ? load_four(elements) : load_some(elements, left);
    }
#pragma unroll
    for (int n = 0; n < kWFours; ++n) {
      const int i = threadIdx.x + n * kThreads;
      const int64_t column = first_column + i / kFours, at = depth + i % kFours * 4;
      next_w[n] = {};
      if (column < p.columns && at < p.depth)  // rows of a matrix end in zeros
        next_w[n] = load_four(matrix + column * p.matrix_stride + at);
    }
  };

  float sums[kThreadRows][kThreadColumns] = {};
  fetch(0);
  for (int64_t depth = 0; depth < p.depth; depth += kTileDepth) {
    __syncthreads();  // the tiles before have been used
#pragma unroll
    for (int n = 0; n < kXFours; ++n) {
      const int i = threadIdx.x + n * kThreads;
      if (i < kTileRows * kFours) put_four(widen(next_x[n]), i % kFours * 4, i / kFours, x_tile);
    }
#pragma unroll
    for (int n = 0; n < kWFours; ++n) {
      const int i = threadIdx.x + n * kThreads;
      put_four(widen(next_w[n]), i % kFours * 4, i / kFours, w_tile);
    }
    __syncthreads();
    fetch(depth + kTileDepth);
    const int row = threadIdx.x / kSide, column = threadIdx.x % kSide;
#pragma unroll 8
    for (int d = 0; d < kTileDepth; ++d) {
      float w[kThreadColumns];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) w[j] = w_tile[d][column + j * kSide];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float value = x_tile[d][row + i * kSide];
#pragma unroll
        for (int j = 0; j < kThreadColumns; ++j) sums[i][j] = fmaf(value, w[j], sums[i][j]);
      }
    }
  }

  Out* out = static_cast<Out*>(p.out) + blockIdx.z * p.out_head_stride;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kSide + i * kSide;
    if (row >= rows.count) continue;
#pragma unroll
    for (int j = 0; j < kThreadColumns; ++j) {
      const int64_t column = first_column + threadIdx.x % kSide + j * kSide;
      if (column >= p.columns) continue;
      const float bias = p.bias != nullptr ? p.bias[column] : 0.0f;
      out[(rows.first + row) * p.out_stride + column] = Out(sums[i][j] + bias);
    }
  }
}

template <typename T, typename Out>
void launch(const TiledProductParams& p, int tile_rows, dim3 grid, bool x_by_fours, cudaStream_t stream) {
  if (tile_rows == kFewTileRows)
    tiled_product<T, Out, kFewTileRows><<<grid, kThreads, 0, stream>>>(p, x_by_fours);
  else
    tiled_product<T, Out, kManyTileRows><<<grid, kThreads, 0, stream>>>(p, x_by_fours);
}

}  // namespace

cudaError_t launch_tiled_product(const TiledProductParams& p, int tile_rows, int64_t row_tiles, cudaStream_t stream) {
  if (p.rows == 0 || p.columns == 0 || p.count == 0) return cudaSuccess;
  const bool heads = p.offsets == nullptr && p.count > 1;
  const dim3 grid(blocks_for(p.columns, kTileColumns), static_cast<unsigned>(row_tiles),
                  heads ? static_cast<unsigned>(p.count) : 1u);
  const auto size = static_cast<int64_t>(size_of(p.in_dtype));
  const bool by_fours = p.x_stride % 4 == 0 && p.x_head_stride % 4 == 0 && reinterpret_cast<int64_t>(p.x) % (4 * size) == 0;
  if (p.in_dtype == DType::f32)
    launch<float, float>(p, tile_rows, grid, by_fours, stream);
  else if (p.out_dtype == DType::f32)
    launch<bf16, float>(p, tile_rows, grid, by_fours, stream);
  else
    launch<bf16, bf16>(p, tile_rows, grid, by_fours, stream);
  return cudaGetLastError();
}

}  // namespace weft::cuda
