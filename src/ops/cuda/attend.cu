// Attention of any head size and count, in float32 arithmetic: the portable kernel.

#include "ops/cuda/launch_plan.h"
#include "ops/cuda/params.h"
#include "ops/cuda/vectors.cuh"

namespace weft::cuda {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;
constexpr int kJoinThreads = 256;

struct Keys {
  int begin = 0, end = 0;
};

/// The keys of segment `segment` that any of rows [first, last) sees: those between are looked at, and skipped one by one.
__device__ Keys seen_by_any(const AttendParams& p, int segment, int64_t first, int64_t last) {
  Keys all;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = segment * p.all_rows + row;
    const Keys keys{p.begin[at], p.end[at]};
    if (keys.begin >= keys.end) continue;
    if (all.begin >= all.end) all = keys;
    all = {min(all.begin, keys.begin), max(all.end, keys.end)};
  }
  return all;
}

// --- tiles in shared memory ---------------------------------------------------------------------------------------------

/// Copies numbers [first, first + dim) of the tile's keys; zeros for those that nobody sees. Memory takes long to answer, so a
/// thread asks for several numbers before it uses any.
template <typename T>
__device__ void load_elements(const KeyPlane& plane, int64_t first, int dim, const int64_t* key_rows, float* tile, int stride) {
  const T* data = static_cast<const T*>(plane.data) + first;
  if (!plane.by_fours) {
    for (int i = threadIdx.x; i < kTileKeys * dim; i += blockDim.x) {
      const int key = i / dim, d = i % dim;
      tile[key * stride + d] = key_rows[key] < 0 ? 0.0f : to_float(data[key_rows[key] * plane.row_stride + d]);
    }
    return;
  }
  constexpr int kBatch = 8;
  const int each = dim / 4, all = kTileKeys * each;
  for (int begin = threadIdx.x; begin < all; begin += kBatch * blockDim.x) {
    Four<T> fours[kBatch] = {};
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int i = begin + n * blockDim.x, key = i / each;
      if (i < all && key_rows[key] >= 0) fours[n] = load_four(data + key_rows[key] * plane.row_stride + i % each * 4);
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int i = begin + n * blockDim.x;
      if (i < all) *reinterpret_cast<float4*>(tile + i / each * stride + i % each * 4) = widen(fours[n]);
    }
  }
}

/// Likewise, of rows [e4m3 latents | a float32 scale for every 128 | rope part bfloat16], whole.
__device__ void load_latent_rows(const AttendParams& p, const int64_t* key_rows, float* tile, int stride) {
  const auto* rows = static_cast<const f8_e4m3*>(p.k.data);
  constexpr int kBatch = 8;
  const int each = p.v_dim / 4, all = kTileKeys * each;
  for (int begin = threadIdx.x; begin < all; begin += kBatch * blockDim.x) {
    Four<f8_e4m3> fours[kBatch] = {};
    float scales[kBatch] = {};
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int i = begin + n * blockDim.x, key = i / each, d = i % each * 4;
      if (i >= all || key_rows[key] < 0) continue;
      const f8_e4m3* row = rows + key_rows[key] * p.k.row_stride;
      fours[n] = load_four(row + d);
      scales[n] = reinterpret_cast<const float*>(row + p.v_dim)[d / kLatentScaleGroup];
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int i = begin + n * blockDim.x;
      if (i >= all) continue;
      const float4 x = widen(fours[n]);
      *reinterpret_cast<float4*>(tile + i / each * stride + i % each * 4) = {x.x * scales[n], x.y * scales[n], x.z * scales[n],
                                                                             x.w * scales[n]};
    }
  }
  const int rope_dim = p.k_dim - p.v_dim, rope_at = p.v_dim + p.v_dim / kLatentScaleGroup * static_cast<int>(sizeof(float));
  for (int i = threadIdx.x; i < kTileKeys * rope_dim; i += blockDim.x) {
    const int key = i / rope_dim, d = i % rope_dim;
    const auto* rope = reinterpret_cast<const bf16*>(rows + key_rows[key] * p.k.row_stride + rope_at);
    tile[key * stride + p.v_dim + d] = key_rows[key] < 0 ? 0.0f : to_float(rope[d]);
  }
}

__device__ void load_plane(const AttendParams& p, const KeyPlane& plane, int kv_head, int first, int dim,
                           const int64_t* key_rows, float* tile, int stride) {
  const int64_t at = kv_head * plane.head_stride + first;
  if (p.format == KvFormat::fp8_ds_mla)
    load_latent_rows(p, key_rows, tile, stride);
  else if (p.kv_dtype == DType::f32)
    load_elements<float>(plane, at, dim, key_rows, tile, stride);
  else if (p.kv_dtype == DType::bf16)
    load_elements<bf16>(plane, at, dim, key_rows, tile, stride);
  else
    load_elements<f8_e4m3>(plane, at, dim, key_rows, tile, stride);
}

// --- the queries of a warp ------------------------------------------------------------------------------------------------

/// One query, and what it has found so far; the same in every lane.
struct Query {
  int64_t row = -1;                 ///< -1: there is none
  int head = 0;                     ///< of all P * h
  float max = -kInfinity, sum = 0;  ///< the maximum in units of log 2

  __device__ bool is_in(int64_t first, int64_t last) const { return row >= first && row < last; }
  /// Where it is in a tensor [P, T, h, ...] with these strides.
  __device__ int64_t offset(const int64_t (&strides)[3], int heads_per_block) const {
    return head / heads_per_block * strides[0] + row * strides[1] + head % heads_per_block * strides[2];
  }
};

/// Query number `i` of a block's tile: by (row, head of the group), or of one row.
__device__ Query locate(const AttendParams& p, const AttendShape& shape, int kv_head, int i) {
  const bool whole = shape.whole_rows;
  const int64_t number = int64_t{blockIdx.x} * shape.queries() + i;
  const int64_t row = p.first_row + (whole ? blockIdx.x / shape.tiles_per_row : number / p.group);
  const int64_t head = whole ? blockIdx.x % shape.tiles_per_row * shape.queries() + i : number % p.group;
  Query query;
  if (row < p.first_row + p.rows && head < p.group) query.row = row, query.head = static_cast<int>(kv_head * p.group + head);
  return query;
}

/// The queries that a warp has, with kColumns numbers of each one's values in each lane.
template <int kColumns>
struct Warp {
  Query queries[kQueriesPerWarp];
  Keys seen[kQueriesPerWarp];  ///< of the segment
  float sums[kQueriesPerWarp][kColumns] = {};

  /// Copies the queries' own numbers to rows of `tile`, and zeros behind them.
  __device__ __forceinline__ void load(const AttendParams& p, float* tile, int stride) const {
    constexpr int kBatch = 4;
    int64_t at[kQueriesPerWarp];
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) at[i] = queries[i].offset(p.q_strides, p.heads_per_block);
    for (int begin = threadIdx.x % kWarp; begin < stride; begin += kBatch * kWarp) {
      float numbers[kBatch][kQueriesPerWarp];
#pragma unroll
      for (int n = 0; n < kBatch * kQueriesPerWarp; ++n) {
        const int i = n % kQueriesPerWarp, d = begin + n / kQueriesPerWarp * kWarp;
        numbers[n / kQueriesPerWarp][i] = queries[i].row >= 0 && d < p.k_dim ? load_any(p.q, p.dtype, at[i] + d) : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kBatch * kQueriesPerWarp; ++n) {
        const int i = n % kQueriesPerWarp, d = begin + n / kQueriesPerWarp * kWarp;
        if (d < stride) tile[i * stride + d] = numbers[n / kQueriesPerWarp][i];
      }
    }
  }

  /// Looks up what the queries of rows [first, last) see of a segment; the others see nothing.
  __device__ __forceinline__ void look_at(const AttendParams& p, int segment, int64_t first, int64_t last) {
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      seen[i] = {};
      const int64_t at = segment * p.all_rows + queries[i].row;
      if (queries[i].is_in(first, last)) seen[i] = {p.begin[at], p.end[at]};
    }
  }

  /// Scores a key, this lane's, and weighs it against what the queries have found, which shrinks where a larger score comes.
  __device__ __forceinline__ float4 weigh(const AttendParams& p, int key, const float* tile, int stride,
                                          const float* key_numbers) {
    float scores[kQueriesPerWarp] = {}, weights[kQueriesPerWarp];
#pragma unroll 4
    for (int d = 0; d < p.k_dim; d += 4) {
      const float4 k = *reinterpret_cast<const float4*>(key_numbers + d);
#pragma unroll
      for (int i = 0; i < kQueriesPerWarp; ++i)
        scores[i] = dot(*reinterpret_cast<const float4*>(tile + i * stride + d), k, scores[i]);
    }
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      Query& query = queries[i];
      const bool sees = key >= seen[i].begin && key < seen[i].end;
      const float score = sees ? scores[i] * (p.score_scale * kLog2E) : -kInfinity;
      const float max = fmaxf(query.max, warp_max(score));
      const float keep = max > -kInfinity ? exp2f(query.max - max) : 1.0f;
      weights[i] = sees && max > -kInfinity ? exp2f(score - max) : 0.0f;
      query.max = max;
      query.sum = query.sum * keep + warp_sum(weights[i]);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sums[i][j] *= keep;
    }
    return {weights[0], weights[1], weights[2], weights[3]};
  }

  /// Adds the values of `count` keys, which begin at the lane's first number.
  __device__ __forceinline__ void add_values(const float4* weights, const float* value, int stride, int count) {
#pragma unroll 2
    for (int key = 0; key < count; ++key, value += stride) {
      const float4 w = weights[key];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float v = value[j * kWarp];
        sums[0][j] = fmaf(w.x, v, sums[0][j]);
        sums[1][j] = fmaf(w.y, v, sums[1][j]);
        sums[2][j] = fmaf(w.z, v, sums[2][j]);
        sums[3][j] = fmaf(w.w, v, sums[3][j]);
      }
    }
  }

  /// Leaves numbers [first, first + count) of the results where join_parts finds them.
  __device__ __forceinline__ void store_part(const AttendParams& p, int part, int first, int count) const {
    const int lane = threadIdx.x % kWarp;
    const int64_t heads = int64_t{p.group} * p.kv_heads;
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      if (queries[i].row < 0) continue;
      const int64_t at = (part * p.rows + queries[i].row - p.first_row) * heads + queries[i].head;
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        if (lane + j * kWarp < count) p.part_out[at * p.v_dim + first + lane + j * kWarp] = sums[i][j];
      if (lane == 0 && first == 0) p.part_max[at] = queries[i].max, p.part_sum[at] = queries[i].sum;
    }
  }

  /// Leaves them where they belong in the end.
  __device__ __forceinline__ void store(const AttendParams& p, int first, int count) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      const Query& query = queries[i];
      if (query.row < 0) continue;
      const bool any = query.max > -kInfinity;
      const float scale = any ? p.value_scale / query.sum : 0.0f;
      const int64_t out = query.offset(p.out_strides, p.heads_per_block) + first + lane;
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        if (lane + j * kWarp < count) store_any(sums[i][j] * scale, p.out, p.dtype, out + j * kWarp);
      if (lane == 0 && first == 0)
        p.lse[query.offset(p.lse_strides, p.heads_per_block)] = any ? fmaf(query.max, kLn2, logf(query.sum)) : -kInfinity;
    }
  }
};

// --- the kernels ----------------------------------------------------------------------------------------------------------

/// Rows of a tile that are of one sequence.
struct Run {
  int64_t first, last;
  int sequence;
};

/// Keys of the run, counted over all segments, that are one part's.
struct PartRange {
  int64_t begin, end;
};
__device__ PartRange part_of(const AttendParams& p, const AttendShape& shape, const Run& run, int part) {
  int64_t all = 0;
  for (int s = 0; s < p.segments; ++s) {
    const Keys seen = seen_by_any(p, s, run.first, run.last);
    all += seen.end - seen.begin;
  }
  const int64_t cut = ((all + shape.cut - 1) / shape.cut + kTileKeys - 1) / kTileKeys * kTileKeys;
  const int64_t keys = max(shape.least_part_keys, cut), begin = min(all, part * keys);
  return {begin, min(all, begin + keys)};
}

/// The row that this lane's key is in, or -1 where no row of the run sees it.
__device__ int64_t find_key(const AttendParams& p, const Run& run, int segment, int key) {
  bool seen = false;
  for (int64_t row = run.first; row < run.last && !seen; ++row)
    seen = key >= p.begin[segment * p.all_rows + row] && key < p.end[segment * p.all_rows + row];
  if (!seen) return -1;
  if (p.tables == nullptr) return key;
  return int64_t{p.tables[run.sequence * p.table_stride + key / p.block_tokens]} * p.block_tokens + key % p.block_tokens;
}

/// A block attends a tile of queries over one part of their keys. A warp has kQueriesPerWarp of the queries: it scores a tile
/// of keys with one key in each lane, then adds their values with kColumns numbers of a value in each lane.
///
/// The rows of a tile are taken in runs of one sequence each. What a row gets does not depend on the others of its run but for
/// the order of sums, which follows from where the run's keys begin.
template <int kColumns>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1) attend(const __grid_constant__ AttendParams p, AttendShape shape) {
  extern __shared__ float4 shared_fours[];
  __shared__ int64_t key_rows[kTileKeys];
  float* shared = reinterpret_cast<float*>(shared_fours);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const AttendTileMemory memory = attend_tile_memory(shape.warps, p.k_dim, p.v_is_k, kColumns);
  float *queries = shared + warp * kQueriesPerWarp * memory.k_stride, *keys = shared + memory.keys,
        *values = shared + memory.values;
  float4* weights = reinterpret_cast<float4*>(shared + memory.weights) + warp * kTileKeys;
  const int kv_head = blockIdx.y / shape.column_blocks, first_column = blockIdx.y % shape.column_blocks * kColumns * kWarp;
  const int columns = min(kColumns * kWarp, p.v_dim - first_column), part = blockIdx.z;

  Warp<kColumns> own;
#pragma unroll
  for (int i = 0; i < kQueriesPerWarp; ++i) own.queries[i] = locate(p, shape, kv_head, warp * kQueriesPerWarp + i);
  own.load(p, queries, memory.k_stride);
  // Dot products go by fours: what a key lacks there is zero.
  for (int i = threadIdx.x; i < kTileKeys * 4; i += blockDim.x) keys[i / 4 * memory.k_stride + p.k_dim + i % 4] = 0;

  Run run{.first = locate(p, shape, kv_head, 0).row};
  int64_t tile_end = run.first + 1;
  if (!shape.whole_rows)
    tile_end = min(p.first_row + p.rows, p.first_row + ((int64_t{blockIdx.x} + 1) * shape.queries() - 1) / p.group + 1);
  for (; run.first < tile_end; run.first = run.last) {
    run.sequence = p.seq_of[run.first];
    for (run.last = run.first + 1; run.last < tile_end && p.seq_of[run.last] == run.sequence;) ++run.last;
    const PartRange range = part_of(p, shape, run, part);

    int64_t before = 0;  // keys of the segments that have been gone over
    for (int s = 0; s < p.segments && before < range.end; ++s) {
      const Keys seen = seen_by_any(p, s, run.first, run.last);
      const int from = seen.begin + static_cast<int>(max(int64_t{0}, range.begin - before));
      const int to = seen.begin + static_cast<int>(min(int64_t{seen.end - seen.begin}, range.end - before));
      before += seen.end - seen.begin;
      own.look_at(p, s, run.first, run.last);
      for (int key = from; key < to; key += kTileKeys) {
        const int count = min(kTileKeys, to - key);
        __syncthreads();  // the tile before has been used
        if (warp == 0) key_rows[lane] = lane < count ? find_key(p, run, s, key + lane) : -1;
        __syncthreads();
        load_plane(p, p.k, kv_head, 0, p.k_dim, key_rows, keys, memory.k_stride);
        if (!p.v_is_k) load_plane(p, p.v, kv_head, first_column, columns, key_rows, values, memory.v_stride);
        __syncthreads();
        // Keys behind the part's end are another part's.
        weights[lane] = own.weigh(p, lane < count ? key + lane : -1, queries, memory.k_stride, keys + lane * memory.k_stride);
        __syncwarp();
        own.add_values(weights, values + (p.v_is_k ? first_column : 0) + lane, memory.v_stride, count);
      }
    }
  }
  if (shape.parts > 1)
    own.store_part(p, part, first_column, columns);
  else
    own.store(p, first_column, columns);
}

/// Joins what the parts of a query found, in order, a query for each block. Empty parts are not read, and change no bit; one
/// part alone gives what it would have written. Parts are weighed first, kWeights at a time, so that their numbers can be
/// fetched side by side.
__global__ void __launch_bounds__(kJoinThreads) join_parts(const __grid_constant__ AttendParams p, int parts) {
  constexpr int kWeights = 256;
  __shared__ float weights[kWeights];
  const int64_t all_heads = int64_t{p.group} * p.kv_heads, queries = p.rows * all_heads, index = blockIdx.x;
  const int64_t row = p.first_row + index / all_heads, block = index % all_heads / p.heads_per_block,
                head = index % all_heads % p.heads_per_block;
  float max = -kInfinity;
#pragma unroll 8
  for (int part = 0; part < parts; ++part) max = fmaxf(max, p.part_max[part * queries + index]);
  const int64_t out = block * p.out_strides[0] + row * p.out_strides[1] + head * p.out_strides[2];
  float sum = 0;
  for (int first_column = 0; first_column < p.v_dim; first_column += kJoinThreads) {
    const int d = first_column + static_cast<int>(threadIdx.x);
    float value = 0;
    sum = 0;
    for (int first = 0; first < parts; first += kWeights) {
      const int count = min(kWeights, parts - first);
      __syncthreads();
      for (int i = threadIdx.x; i < count; i += kJoinThreads) {
        const float part_max = p.part_max[(first + i) * queries + index];
        weights[i] = part_max > -kInfinity ? exp2f(part_max - max) : 0.0f;
      }
      __syncthreads();
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const int64_t at = (first + i) * queries + index;
        if (weights[i] > 0) sum = fmaf(weights[i], p.part_sum[at], sum);
        if (weights[i] > 0 && d < p.v_dim) value = fmaf(weights[i], p.part_out[at * p.v_dim + d], value);
      }
    }
    const float inverse = max > -kInfinity ? p.value_scale / sum : 0.0f;
    if (d < p.v_dim) store_any(value * inverse, p.out, p.dtype, out + d);
  }
  if (threadIdx.x == 0)
    p.lse[block * p.lse_strides[0] + row * p.lse_strides[1] + head * p.lse_strides[2]] =
        max > -kInfinity ? fmaf(max, kLn2, logf(sum)) : -kInfinity;
}

using Kernel = void (*)(AttendParams, AttendShape);

Kernel kernel_for(int columns_per_lane) {
  switch (columns_per_lane) {
    case 1:
      return attend<1>;
    case 2:
      return attend<2>;
    case 4:
      return attend<4>;
    case 8:
      return attend<8>;
    default:
      return attend<16>;
  }
}

}  // namespace

cudaError_t allow_attend_memory(size_t bytes) {
  for (const int columns : {1, 2, 4, 8, 16}) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel_for(columns), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_attend(const AttendParams& p, const AttendShape& shape, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(shape.tiles(p.rows, p.group)), static_cast<unsigned>(p.kv_heads * shape.column_blocks),
                  static_cast<unsigned>(shape.parts));
  kernel_for(shape.columns_per_lane)<<<grid, shape.warps * kWarp, shape.shared_bytes, stream>>>(p, shape);
  return cudaGetLastError();
}

cudaError_t launch_join_parts(const AttendParams& p, int parts, cudaStream_t stream) {
  const int64_t queries = p.rows * p.group * p.kv_heads;
  if (queries == 0) return cudaSuccess;
  join_parts<<<static_cast<unsigned>(queries), kJoinThreads, 0, stream>>>(p, parts);
  return cudaGetLastError();
}

}  // namespace weft::cuda
