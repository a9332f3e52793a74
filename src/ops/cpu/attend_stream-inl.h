// Attention of few queries: bound by reading the keys. Compiled once per instruction set.
//
// Dimensions lie in the lanes of vectors. A key is loaded once for all queries and used as it lies in the source, without
// being packed first. The lanes of a score are added up for as many keys at once as there are lanes.

#if defined(WEFT_OPS_CPU_ATTEND_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_ATTEND_STREAM_INL_H_
#undef WEFT_OPS_CPU_ATTEND_STREAM_INL_H_
#else
#define WEFT_OPS_CPU_ATTEND_STREAM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "ops/cpu/attend_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

/// Adds up neighbouring lanes of kCount vectors until one vector is left: with kCount = kLanes, the sum of each, in their
/// order.
#if HWY_TARGET == HWY_SCALAR
template <int kCount>
HWY_INLINE VF sum_each(const float* vectors) {
  static_assert(kCount == 1);
  return hn::Load(DF(), vectors);
}
#else
template <int kCount>
HWY_INLINE VF sum_each(const float* vectors) {
  const DF d;
  if constexpr (kCount == 1) {
    return hn::Load(d, vectors);
  } else {
    const VF a = sum_each<kCount / 2>(vectors), b = sum_each<kCount / 2>(vectors + kCount / 2 * kLanes);
    return hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
  }
}
#endif

/// Attends with keys and values of type T in their source, under one or several KV heads. Queries and results are
/// [queries][padded dim], scores [queries][kTileKeys].
template <typename T>
class StreamAttention {
 public:
  /// Keys attended at once. This piece and the next fit into the second-level cache: with 8 KV heads of 128 in bf16 a piece is
  /// 128 KiB.
  static constexpr int64_t kPiece = 32;

  StreamAttention(const TileView& tile, int kv_heads, TileScratch& scratch)
      : tile_(tile),
        s_(scratch),
        kv_heads_(kv_heads),
        queries_(tile.count() * kv_heads),
        k_dim_(tile.k_dim()),
        v_dim_(tile.v_dim()),
        k_pad_(padded_dim(k_dim_)),
        v_pad_(padded_dim(v_dim_)) {}

  /// Attends keys [begin, end), counted through the tile's segments.
  void run(int64_t begin, int64_t end) {
    load_queries();
    int located = -1;
    tile_.for_each_piece(begin, end, kPiece, [&](int segment, int64_t first, int64_t count, int64_t next) {
      if (located < 0) tile_.locate(first, count, s_.rows[located = 0]);
      const KeyRows& rows = s_.rows[located];
      KeyRows& following = s_.rows[1 - located];
      located = next > 0 ? 1 - located : -1;
      following.count = 0;
      if (next > 0) tile_.locate(first + count, next, following);
      attend_piece(segment, first, rows, following);
    });
  }

  const float* result(int i) const { return s_.results + i * v_pad_; }
  static constexpr int64_t kResultStride = 1;

 private:
  /// Keys scored at once, and vectors of a value added at once: with as many queries, enough sums to hide the latency of a
  /// multiply-add.
  static constexpr int keys_at_once(int queries) { return std::min(kLanes, queries <= 2 ? 4 : 2); }
  static constexpr int vectors_at_once(int queries) { return queries == 1 ? 8 : queries == 2 ? 4 : 2; }
  /// Values added between two steps of prefetching.
  static constexpr int kStepKeys = 8;

  void load_queries() {
    std::fill_n(s_.queries, queries_ * k_pad_, 0.0f);
    for (int i = 0; i < queries_; ++i) {
      const void* query = tile_.query(i);
      for (int64_t k = 0; k < k_dim_; ++k) {
        s_.queries[i * k_pad_ + k] = tile_.dtype() == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(query)[k])
                                                                  : static_cast<const float*>(query)[k];
      }
    }
    std::fill_n(s_.results, queries_ * v_pad_, 0.0f);
    std::fill_n(s_.max, kTileQueries, -HUGE_VALF);
    std::fill_n(s_.sum, kTileQueries, 0.0f);
  }

  void attend_piece(int segment, int64_t first, const KeyRows& rows, const KeyRows& next) {
    const int count = tile_.count();
    const int64_t adds = v_dim_ / (kLanes * vectors_at_once(count)) * (rows.count / kStepKeys);
    Prefetcher prefetcher(next, kv_heads_ * tile_.k_head_bytes(), kv_heads_ * tile_.v_head_bytes(),
                          kv_heads_ * (rows.count / keys_at_once(count) + adds));
    static_assert(kStreamQueries == 4);
    const auto attend = count == 1   ? &StreamAttention::attend_head<1>
                        : count == 2 ? &StreamAttention::attend_head<2>
                        : count == 3 ? &StreamAttention::attend_head<3>
                                     : &StreamAttention::attend_head<4>;
    for (int head = 0; head < kv_heads_; ++head) (this->*attend)(segment, head * count, first, rows, prefetcher);
  }

  /// All queries of one KV head, from number `query` on.
  template <int kQueries>
  void attend_head(int segment, int query, int64_t first, const KeyRows& rows, Prefetcher& prefetcher) {
    for (int64_t key = 0; key < rows.count; key += kLanes) score<kQueries>(query, key, rows, prefetcher);
    for (int i = query; i < query + kQueries; ++i) weigh(segment, i, first, rows.count);
    int64_t dim = 0;
    constexpr int kWide = vectors_at_once(kQueries);
    for (; dim + kWide * kLanes <= v_dim_; dim += kWide * kLanes) add<kQueries, kWide>(query, dim, rows, prefetcher);
    for (; dim + kLanes <= v_dim_; dim += kLanes) add<kQueries, 1>(query, dim, rows, prefetcher);
    if (dim < v_dim_) add_rest<kQueries>(query, dim, rows);
  }

  /// Scores of kLanes keys from `first` on.
  template <int kQueries>
  void score(int query, int64_t first, const KeyRows& rows, Prefetcher& prefetcher) {
    const DF d;
    constexpr int kAtOnce = keys_at_once(kQueries);
    HWY_ALIGN float sums[kQueries][kLanes * kLanes];
    const float* queries = s_.queries + query * k_pad_;
    const int64_t offset = key_offset(query);
    for (int key = 0; key < kLanes; key += kAtOnce) {
      prefetcher.step();
      const T* at[kAtOnce];
      VF total[kAtOnce][kQueries];
      WEFT_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        at[j] = static_cast<const T*>(rows.keys[first + key + j]) + offset;
        WEFT_UNROLL
        for (int i = 0; i < kQueries; ++i) total[j][i] = hn::Zero(d);
      }
      int64_t k = 0;
      for (; k + 2 * kLanes <= k_dim_; k += 2 * kLanes) {
        WEFT_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const F32Pair x = load_two(at[j] + k);
          WEFT_UNROLL
          for (int i = 0; i < kQueries; ++i) {
            const float* query_at = queries + i * k_pad_ + k;
            total[j][i] = hn::MulAdd(x.v[0], hn::Load(d, query_at), total[j][i]);
            total[j][i] = hn::MulAdd(x.v[1], hn::Load(d, query_at + kLanes), total[j][i]);
          }
        }
      }
      for (; k + kLanes <= k_dim_; k += kLanes) {
        WEFT_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const VF x = load_elements(at[j] + k);
          WEFT_UNROLL
          for (int i = 0; i < kQueries; ++i) total[j][i] = hn::MulAdd(x, hn::Load(d, queries + i * k_pad_ + k), total[j][i]);
        }
      }
      if (k < k_dim_) {
        WEFT_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const VF x = load_some(at[j] + k, k_dim_ - k);
          WEFT_UNROLL
          for (int i = 0; i < kQueries; ++i) total[j][i] = hn::MulAdd(x, hn::Load(d, queries + i * k_pad_ + k), total[j][i]);
        }
      }
      WEFT_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        WEFT_UNROLL
        for (int i = 0; i < kQueries; ++i) hn::Store(total[j][i], d, sums[i] + (key + j) * kLanes);
      }
    }
    for (int i = 0; i < kQueries; ++i) hn::Store(sum_each<kLanes>(sums[i]), d, s_.scores + (query + i) * kTileKeys + first);
  }

  /// Turns the scores of a query into weights, and multiplies its older results with the decay.
  void weigh(int segment, int query, int64_t first, int64_t count) {
    const DF d;
    const DI di;
    const SeenKeys range = tile_.range(segment, query);
    const auto from = hn::Set(di, static_cast<int32_t>(range.begin));
    const auto to = hn::Set(di, static_cast<int32_t>(std::min(range.end, first + count)));
    const VF factor = hn::Set(d, tile_.base2_scale()), lowest = hn::Set(d, -HUGE_VALF);
    float* HWY_RESTRICT scores = s_.scores + query * kTileKeys;
    VF tops = lowest;
    for (int64_t i = 0; i < count; i += kLanes) {
      const auto key = hn::Iota(di, static_cast<int32_t>(first + i));
      const VF score = hn::IfThenElse(in_range(key, from, to), hn::Mul(hn::Load(d, scores + i), factor), lowest);
      hn::Store(score, d, scores + i);
      tops = hn::Max(tops, score);
    }
    const float old_max = s_.max[query], top = std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, tops)));
    const VF base = hn::Set(d, top == -HUGE_VALF ? 0.0f : top);
    const VF decay = exp2_nonpositive(hn::Sub(hn::Set(d, old_max), base));
    VF sums = hn::Zero(d);
    for (int64_t i = 0; i < count; i += kLanes) {
      const VF score = hn::Load(d, scores + i);
      const VF weight = hn::IfThenElseZero(hn::Ne(score, lowest), exp2_nonpositive(hn::Sub(score, base)));
      hn::Store(weight, d, scores + i);
      sums = hn::Add(sums, weight);
    }
    s_.max[query] = top;
    s_.decay[query] = hn::GetLane(decay);
    s_.sum[query] = s_.sum[query] * s_.decay[query] + hn::GetLane(hn::SumOfLanes(d, sums));
  }

  template <int kQueries, int kWide>
  void add(int query, int64_t dim, const KeyRows& rows, Prefetcher& prefetcher) {
    const DF d;
    VF sums[kQueries][kWide];
    WEFT_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      const VF decay = hn::Set(d, s_.decay[query + i]);
      WEFT_UNROLL
      for (int j = 0; j < kWide; ++j) sums[i][j] = hn::Mul(decay, hn::Load(d, result_at(query + i, dim + j * kLanes)));
    }
    const float* weights = s_.scores + query * kTileKeys;
    const int64_t offset = value_offset(query) + dim;
    for (int64_t key = 0; key < rows.count; ++key) {
      if (key % kStepKeys == 0) prefetcher.step();
      const T* value = static_cast<const T*>(rows.values[key]) + offset;
      VF x[kWide];
      if constexpr (kWide % 2 == 0) {
        WEFT_UNROLL
        for (int j = 0; j < kWide; j += 2) {
          const F32Pair two = load_two(value + j * kLanes);
          x[j] = two.v[0], x[j + 1] = two.v[1];
        }
      } else {
        static_assert(kWide == 1);
        x[0] = load_elements(value);
      }
      WEFT_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        const VF weight = hn::Set(d, weights[i * kTileKeys + key]);
        WEFT_UNROLL
        for (int j = 0; j < kWide; ++j) sums[i][j] = hn::MulAdd(weight, x[j], sums[i][j]);
      }
    }
    WEFT_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      WEFT_UNROLL
      for (int j = 0; j < kWide; ++j) hn::Store(sums[i][j], d, result_at(query + i, dim + j * kLanes));
    }
  }

  /// The dims behind the last whole vector.
  template <int kQueries>
  void add_rest(int query, int64_t dim, const KeyRows& rows) {
    const DF d;
    const int64_t offset = value_offset(query) + dim;
    for (int i = query; i < query + kQueries; ++i) {
      VF sum = hn::Mul(hn::Set(d, s_.decay[i]), hn::Load(d, result_at(i, dim)));
      for (int64_t key = 0; key < rows.count; ++key) {
        const VF x = load_some(static_cast<const T*>(rows.values[key]) + offset, v_dim_ - dim);
        sum = hn::MulAdd(hn::Set(d, s_.scores[i * kTileKeys + key]), x, sum);
      }
      hn::Store(sum, d, result_at(i, dim));
    }
  }

  /// Elements from a key, or value, of the first KV head to that of the query's.
  int64_t key_offset(int query) const { return query / tile_.count() * tile_.k_head_bytes() / int64_t{sizeof(T)}; }
  int64_t value_offset(int query) const { return query / tile_.count() * tile_.v_head_bytes() / int64_t{sizeof(T)}; }
  float* result_at(int query, int64_t dim) const { return s_.results + query * v_pad_ + dim; }

  const TileView& tile_;
  TileScratch& s_;
  const int kv_heads_, queries_;
  const int64_t k_dim_, v_dim_, k_pad_, v_pad_;
};

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
