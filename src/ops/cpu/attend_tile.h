#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/attend_plan.h"

namespace weft::cpu {

/// Where the rows of up to kTileKeys keys and values lie. Entries behind the last key repeat it, so that kernels may read whole
/// blocks of keys.
struct KeyRows {
  const void* keys[kTileKeys];
  const void* values[kTileKeys];
  int64_t count = 0;
};

/// What a thread works on while it attends one tile. The layouts of queries, results and scores belong to the kernels.
struct alignas(64) TileScratch {
  float max[kTileQueries];                         ///< largest score so far, in base 2: score * scale * log2(e)
  float sum[kTileQueries];                         ///< of 2^(score - max)
  float decay[kTileQueries];                       ///< what the last keys' new maximum multiplies the older results with
  int32_t begin[kTileQueries], end[kTileQueries];  ///< keys that each query sees in the current segment
  KeyRows rows[2];                                 ///< of the current keys and the next
  float* queries = nullptr;
  float* results = nullptr;  ///< not yet divided by the sum
  float* keys = nullptr;     ///< of kTileKeys keys, where they are not used as they lie in the source
  float* values = nullptr;
  float* scores = nullptr;
  // Of a tile whose parts are attended in turn: what they gave so far.
  float joined_max[kTileQueries], joined_sum[kTileQueries];
  float* joined = nullptr;  ///< [queries][Dv]
  float* part = nullptr;    ///< [Dv] of one query
};

/// Floats of a dimension in scratch memory: whole vectors of any instruction set.
constexpr int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }

/// The result of one part of a tile's keys, to be joined with the others: before division by the sum.
struct PartResult {
  float* out = nullptr;  ///< [count][Dv]
  float* max = nullptr;  ///< [count], base 2
  float* sum = nullptr;  ///< [count]
};

/// One tile under one KV head: where its queries, keys and results lie in the arguments. Queries from count() on are those of
/// the tile under the next KV heads.
class TileView {
 public:
  TileView(const Attention& args, const QueryTile& tile, int kv_head);

  int count() const { return tile_.count; }
  int64_t k_dim() const { return k_dim_; }
  int64_t v_dim() const { return v_dim_; }
  DType dtype() const { return args_.q.dtype(); }
  DType kv_dtype() const { return kv_dtype_; }
  /// How keys and values are stored: with kv_dtype() elements, or as rows with scales of their own.
  KvFormat kv_format() const { return kv_format_; }
  /// From the product of a query with the stored elements of a key to the base-2 score.
  float base2_scale() const;
  /// Bytes from a key, or value, of one KV head to that of the next.
  int64_t k_head_bytes() const { return k_head_bytes_; }
  int64_t v_head_bytes() const { return v_head_bytes_; }
  /// Bytes that one key, or value, takes where it is stored.
  int64_t k_bytes() const;
  int64_t v_bytes() const { return v_dim_ * static_cast<int64_t>(size_of(kv_dtype_)); }

  /// The first element of query i.
  const void* query(int i) const;
  /// The row of the call that query i belongs to.
  int64_t row(int i) const { return tile_.row + (tile_.head + i % tile_.count) / group_; }
  /// Keys that query i sees.
  SeenKeys range(int segment, int i) const;
  /// Fills `rows` with keys [first, first + count) of a segment.
  void locate(int64_t first, int64_t count, KeyRows& rows) const;

  /// Calls attend(segment, first, count, next) for the pieces of at most `piece` keys that make up keys [begin, end), counted
  /// through the tile's segments. `next` is how many keys of the same segment follow, for the benefit of prefetching.
  template <typename Attend>
  void for_each_piece(int64_t begin, int64_t end, int64_t piece, const Attend& attend) const {
    int64_t before = 0;
    for (int segment = 0; segment < args_.segments; ++segment) {
      const SeenKeys seen = seen_keys(args_, segment, tile_.row, row(tile_.count - 1));
      const int64_t from = seen.begin + std::max<int64_t>(0, begin - before);
      const int64_t to = std::min(seen.end, seen.begin + end - before);
      before += seen.size();
      for (int64_t key = from; key < to; key += piece) {
        const int64_t count = std::min(piece, to - key);
        attend(segment, key, count, std::min(piece, to - key - count));
      }
    }
  }

  /// Writes out and lse of query i from its result before division, in stored elements, which are `stride` apart.
  void write(int i, const float* result, int64_t stride, float max, float sum) const;

 private:
  struct Place {
    int64_t block, row, head;  ///< [P, T, h]
  };
  Place place(int i) const;

  const Attention& args_;
  const QueryTile& tile_;
  const int kv_head_;
  const int64_t heads_, group_, k_dim_, v_dim_;
  DType kv_dtype_;
  KvFormat kv_format_ = KvFormat::elements;
  KvScales scales_;  ///< of stored elements
  // The source: row `slot` of a plane of KV head kv_head_.
  const std::byte *keys_, *values_;
  int64_t k_stride_, v_stride_;  ///< bytes
  int64_t k_head_bytes_, v_head_bytes_;
  const int32_t* table_ = nullptr;
};

}  // namespace weft::cpu
