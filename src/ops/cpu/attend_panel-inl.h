// Attention of many queries at once: bound by arithmetic. Compiled once per instruction set.
//
// Queries lie in the lanes of vectors. With W queries side by side, scores are S[key][W] = sum_d K[key][d] * Q[d][W] and
// results O[d][W] = sum_key V[key][d] * P[key][W]: keys and values are read as scalars and broadcast, so they need no
// transposition; maxima, sums and masks of the softmax are vertical operations; and only Q and O, touched once per tile, are
// stored transposed.

#if defined(WEFT_OPS_CPU_ATTEND_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_ATTEND_PANEL_INL_H_
#undef WEFT_OPS_CPU_ATTEND_PANEL_INL_H_
#else
#define WEFT_OPS_CPU_ATTEND_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/attend_math-inl.h"
#include "ops/cpu/attend_pairs.h"
#include "ops/cpu/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

/// Rows that are summed together: with two vectors of queries each, their sums fill half of the registers.
constexpr int kBlock = HWY_TARGET == HWY_AVX3 ? 8 : 4;
static_assert(kTileKeys % kBlock == 0);

/// One value for each query of a panel of W = kVectors * kLanes queries.
template <int kVectors>
struct PanelVec {
  VF v[kVectors];

  static HWY_INLINE PanelVec load(const float* at) {
    PanelVec x;
    WEFT_UNROLL
    for (int i = 0; i < kVectors; ++i) x.v[i] = hn::Load(DF(), at + i * kLanes);
    return x;
  }
  HWY_INLINE void store(float* at) const {
    WEFT_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::Store(v[i], DF(), at + i * kLanes);
  }
  HWY_INLINE void add(VF factor, const PanelVec& x) {
    WEFT_UNROLL
    for (int i = 0; i < kVectors; ++i) v[i] = hn::MulAdd(factor, x.v[i], v[i]);
  }
  HWY_INLINE void scale(const PanelVec& x) {
    WEFT_UNROLL
    for (int i = 0; i < kVectors; ++i) v[i] = hn::Mul(v[i], x.v[i]);
  }
};

/// Keys, and dims of values, worked on between two steps of prefetching.
constexpr int kStepKeys = 16, kStepDims = 32;
static_assert(kTileKeys % kStepKeys == 0 && kStepKeys % kBlock == 0 && kStepDims % kBlock == 0);

/// scores[key][W] = sum over d of keys[key][d] * queries[d][W], for `count` keys rounded up to whole blocks.
template <int kVectors>
void score_keys(const float* HWY_RESTRICT queries, const void* const* key_rows, int64_t count, int64_t k_dim,
                float* HWY_RESTRICT scores) {
  using Panel = PanelVec<kVectors>;
  constexpr int kWidth = kVectors * kLanes;
  for (int64_t first = 0; first < count; first += kBlock) {
    const float* rows[kBlock];
    Panel sums[kBlock];
    WEFT_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      rows[i] = static_cast<const float*>(key_rows[first + i]);
      WEFT_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i].v[v] = hn::Zero(DF());
    }
    for (int64_t k = 0; k < k_dim; ++k) {
      const Panel query = Panel::load(queries + k * kWidth);
      WEFT_UNROLL
      for (int i = 0; i < kBlock; ++i) sums[i].add(hn::Set(DF(), rows[i][k]), query);
    }
    WEFT_UNROLL
    for (int i = 0; i < kBlock; ++i) sums[i].store(scores + (first + i) * kWidth);
  }
}

/// results[d][W] = results[d][W] * decay[W] + sum over keys of values[key][d] * weights[key][W], for kDims dims.
template <int kVectors, int kDims>
HWY_INLINE void add_value_dims(const float* HWY_RESTRICT weights, const void* const* value_rows, int64_t count, int64_t dim,
                               const PanelVec<kVectors>& decay, float* HWY_RESTRICT results) {
  using Panel = PanelVec<kVectors>;
  constexpr int kWidth = kVectors * kLanes;
  Panel sums[kDims];
  WEFT_UNROLL
  for (int i = 0; i < kDims; ++i) {
    sums[i] = Panel::load(results + (dim + i) * kWidth);
    sums[i].scale(decay);
  }
  for (int64_t key = 0; key < count; ++key) {
    const Panel weight = Panel::load(weights + key * kWidth);
    const float* value = static_cast<const float*>(value_rows[key]) + dim;
    WEFT_UNROLL
    for (int i = 0; i < kDims; ++i) sums[i].add(hn::Set(DF(), value[i]), weight);
  }
  WEFT_UNROLL
  for (int i = 0; i < kDims; ++i) sums[i].store(results + (dim + i) * kWidth);
}

/// Dims [dim, end).
template <int kVectors>
void add_values(const float* weights, const void* const* value_rows, int64_t count, int64_t dim, int64_t end,
                const float* decay, float* results) {
  const auto factor = PanelVec<kVectors>::load(decay);
  for (; dim + kBlock <= end; dim += kBlock) {
    add_value_dims<kVectors, kBlock>(weights, value_rows, count, dim, factor, results);
  }
  for (; dim < end; ++dim) add_value_dims<kVectors, 1>(weights, value_rows, count, dim, factor, results);
}

/// Turns the scores of keys [first, first + count) into weights 2^(score * scale - max), 0 for keys that a query does not see,
/// and brings max, sum and decay of the panel's queries up to date.
template <int kVectors, bool kMasked>
void weigh_keys(int64_t first, int64_t count, float scale, TileScratch& s, int at) {
  constexpr int kWidth = kVectors * kLanes;
  const DF d;
  const DI di;
  const VF factor = hn::Set(d, scale), lowest = hn::Set(d, -HUGE_VALF);
  for (int lane = 0; lane < kWidth; lane += kLanes) {
    const auto from = hn::Load(di, s.begin + at + lane), to = hn::Load(di, s.end + at + lane);
    float* HWY_RESTRICT scores = s.scores + lane;
    const VF old_max = hn::Load(d, s.max + at + lane);
    VF top = old_max;
    for (int64_t i = 0; i < count; ++i) {
      VF score = hn::Mul(hn::Load(d, scores + i * kWidth), factor);
      if constexpr (kMasked) {
        const auto key = hn::Set(di, static_cast<int32_t>(first + i));
        score = hn::IfThenElse(in_range(key, from, to), score, lowest);
      }
      hn::Store(score, d, scores + i * kWidth);
      top = hn::Max(top, score);
    }
    // A query that has seen nothing yet keeps -inf, and measures from 0 so that no infinities are subtracted.
    const VF base = hn::IfThenElse(hn::Eq(top, lowest), hn::Zero(d), top);
    const VF decay = exp2_nonpositive(hn::Sub(old_max, base));
    VF sum = hn::Mul(hn::Load(d, s.sum + at + lane), decay);
    for (int64_t i = 0; i < count; ++i) {
      const VF score = hn::Load(d, scores + i * kWidth);
      VF weight = exp2_nonpositive(hn::Sub(score, base));
      if constexpr (kMasked) weight = hn::IfThenElseZero(hn::Ne(score, lowest), weight);
      hn::Store(weight, d, scores + i * kWidth);
      sum = hn::Add(sum, weight);
    }
    hn::Store(top, d, s.max + at + lane);
    hn::Store(sum, d, s.sum + at + lane);
    hn::Store(decay, d, s.decay + at + lane);
  }
}

/// Unpacks keys and values, which are not float32 unless Out is, and lets `rows` point at them. Values that are part of the
/// keys stay so.
template <typename Out>
void unpack_rows(const TileView& tile, KeyRows& rows, Out* keys, Out* values) {
  const int64_t k_dim = tile.k_dim(), v_dim = tile.v_dim();
  auto* unpack = tile.kv_dtype() == DType::f8_e4m3 ? unpack_elements<f8_e4m3, Out> : unpack_elements<bf16, Out>;
  if constexpr (std::is_same_v<Out, float>) {
    if (tile.kv_dtype() == DType::f32) unpack = unpack_elements<float, float>;
  }
  const bool shared = rows.values[0] == rows.keys[0];
  for (int64_t i = 0; i < rows.count; ++i, keys += k_dim, values += v_dim) {
    if (tile.kv_format() == KvFormat::fp8_ds_mla) {
      unpack_fp8_ds_mla(rows.keys[i], v_dim, k_dim - v_dim, keys);
    } else {
      unpack(rows.keys[i], k_dim, keys);
    }
    if (!shared) unpack(rows.values[i], v_dim, values);
    rows.keys[i] = keys;
    rows.values[i] = shared ? keys : values;
  }
  std::fill(rows.keys + rows.count, rows.keys + kTileKeys, rows.keys[rows.count - 1]);
}

/// Products in float32, whatever the element types. Keys and values are packed as float32 first, once for all panels of the
/// tile: rows of a cache are often a power of two apart, and would evict each other from the first-level cache.
template <int kVectors>
struct FloatProducts {
  /// Query i of a panel of `width`.
  static void load_query(const void* query, DType dtype, int64_t k_dim, int width, int i, float* panel) {
    for (int64_t k = 0; k < k_dim; ++k) {
      panel[k * width + i] =
          dtype == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(query)[k]) : static_cast<const float*>(query)[k];
    }
  }
  static void prepare(const TileView& tile, int, KeyRows& rows, TileScratch& s) { unpack_rows(tile, rows, s.keys, s.values); }
  /// Keys [first, first + count).
  static void score(const float* queries, const KeyRows& rows, int64_t first, int64_t count, int64_t k_dim, TileScratch& s) {
    score_keys<kVectors>(queries, rows.keys + first, count, k_dim, s.scores + first * kVectors * kLanes);
  }
  static void prepare_weights(int64_t, TileScratch&) {}
  /// Dims [dim, end).
  static void add(const KeyRows& rows, int64_t dim, int64_t end, int64_t, const float* decay, TileScratch& s, float* results) {
    add_values<kVectors>(s.scores, rows.values, rows.count, dim, end, decay, results);
  }
};

/// Products of bfloat16 pairs, at twice the rate. Queries are bfloat16, keys and values too or fp8, and k_dim is even.
template <int kVectors>
struct PairProducts {
  static bool suit(const TileView& tile) {
    return kLanes == 16 && tile.dtype() == DType::bf16 && tile.kv_dtype() != DType::f32 && tile.k_dim() % 2 == 0 &&
           avx512_bf16_pair_kernels(kVectors) != nullptr && (tile.kv_dtype() == DType::bf16 || has_fp8_pairs());
  }
  static void load_query(const void* query, DType, int64_t k_dim, int width, int i, float* panel) {
    for (int64_t pair = 0; pair < k_dim / 2; ++pair) {
      std::memcpy(&panel[pair * width + i], static_cast<const bf16*>(query) + 2 * pair, sizeof(float));
    }
  }
  /// Keys are used where they lie, unless they must be unpacked or several panels read them: see FloatProducts.
  static void prepare(const TileView& tile, int panels, KeyRows& rows, TileScratch& s) {
    if (tile.kv_dtype() == DType::f8_e4m3) return prepare_fp8(tile, rows, s);
    pack_value_pairs(rows.values, rows.count, tile.v_dim(), s.values);
    if (panels == 1) return;
    auto* keys = reinterpret_cast<std::byte*>(s.keys);
    const size_t bytes = static_cast<size_t>(tile.k_dim()) * sizeof(bf16);
    for (size_t i = 0; i < static_cast<size_t>(rows.count); ++i) {
      rows.keys[i] = std::memcpy(keys + i * bytes, rows.keys[i], bytes);
    }
    std::fill(rows.keys + rows.count, rows.keys + kTileKeys, rows.keys[rows.count - 1]);
  }
  static void score(const float* queries, const KeyRows& rows, int64_t first, int64_t count, int64_t k_dim, TileScratch& s) {
    kernels().score(queries, rows.keys + first, count, k_dim / 2, s.scores + first * kVectors * kLanes);
  }
  static void prepare_weights(int64_t count, TileScratch& s) { kernels().pack_weights(s.scores, count); }
  static void add(const KeyRows& rows, int64_t dim, int64_t end, int64_t v_dim, const float* decay, TileScratch& s,
                  float* results) {
    kernels().add(s.scores, s.values + dim, rows.count, v_dim, end - dim, decay, results + dim * kVectors * kLanes);
  }

 private:
  static void prepare_fp8(const TileView& tile, KeyRows& rows, TileScratch& s) {
    auto* keys = reinterpret_cast<bf16*>(s.keys);
    if (tile.kv_format() == KvFormat::fp8_ds_mla) {
      unpack_rows<bf16>(tile, rows, keys, nullptr);  // their values are part of them
      pack_value_pairs(rows.values, rows.count, tile.v_dim(), s.values);
      return;
    }
    pack_fp8_value_pairs(rows.values, rows.count, tile.v_dim(), s.values);
    for (int64_t i = 0; i < rows.count; ++i, keys += tile.k_dim()) {
      unpack_fp8_to_bf16(rows.keys[i], tile.k_dim(), keys);
      rows.keys[i] = keys;
    }
    std::fill(rows.keys + rows.count, rows.keys + kTileKeys, rows.keys[rows.count - 1]);
  }
  static const PairKernels& kernels() { return *avx512_bf16_pair_kernels(kVectors); }
};

/// Attends panels of kVectors vectors of queries, with FloatProducts or PairProducts.
template <template <int> typename AnyProducts, int kVectors>
class PanelAttention {
  using Products = AnyProducts<kVectors>;

 public:
  static constexpr int kWidth = kVectors * kLanes;

  PanelAttention(const TileView& tile, int kv_heads, TileScratch& scratch)
      : tile_(tile), s_(scratch), panels_((tile.count() + kWidth - 1) / kWidth) {
    WEFT_CHECK_EQ(kv_heads, 1);
  }

  /// Attends keys [begin, end), counted through the tile's segments.
  void run(int64_t begin, int64_t end) {
    load_queries();
    int located = -1, segment_loaded = -1;
    tile_.for_each_piece(begin, end, kTileKeys, [&](int segment, int64_t first, int64_t count, int64_t next) {
      if (segment != segment_loaded) load_ranges(segment);
      segment_loaded = segment;
      if (located < 0) tile_.locate(first, count, s_.rows[located = 0]);
      KeyRows &rows = s_.rows[located], &following = s_.rows[1 - located];
      located = next > 0 ? 1 - located : -1;
      following.count = 0;
      if (next > 0) tile_.locate(first + count, next, following);
      attend_piece(first, rows, following);
    });
  }

  /// Result, max and sum of query i.
  const float* result(int i) const { return s_.results + i / kWidth * kWidth * tile_.v_dim() + i % kWidth; }
  static constexpr int64_t kResultStride = kWidth;

 private:
  // Lanes behind the last query repeat it, so that they never ask for a mask of their own.
  int query_of(int lane) const { return std::min(lane, tile_.count() - 1); }

  void load_queries() {
    for (int i = 0; i < panels_ * kWidth; ++i) {
      Products::load_query(tile_.query(query_of(i)), tile_.dtype(), tile_.k_dim(), kWidth, i % kWidth,
                           s_.queries + i / kWidth * kWidth * tile_.k_dim());
    }
    std::fill_n(s_.results, panels_ * kWidth * tile_.v_dim(), 0.0f);
    std::fill_n(s_.max, kTileQueries, -HUGE_VALF);
    std::fill_n(s_.sum, kTileQueries, 0.0f);
  }

  void load_ranges(int segment) {
    for (int i = 0; i < panels_ * kWidth; ++i) {
      const SeenKeys range = tile_.range(segment, query_of(i));
      s_.begin[i] = static_cast<int32_t>(range.begin);
      s_.end[i] = static_cast<int32_t>(range.end);
    }
    for (int panel = 0; panel < panels_; ++panel) {
      const int32_t *begin = s_.begin + panel * kWidth, *end = s_.end + panel * kWidth;
      seen_by_some_[panel] = {*std::min_element(begin, begin + kWidth), *std::max_element(end, end + kWidth)};
      seen_by_all_[panel] = {*std::max_element(begin, begin + kWidth), *std::min_element(end, end + kWidth)};
    }
  }

  void attend_piece(int64_t first, KeyRows& rows, const KeyRows& next) {
    const int64_t steps = panels_ * (rows.count / kStepKeys + tile_.v_dim() / kStepDims);
    Prefetcher prefetcher(next, tile_.k_bytes(), tile_.v_bytes(), steps);
    Products::prepare(tile_, panels_, rows, s_);
    for (int panel = 0; panel < panels_; ++panel) {
      const SeenKeys some = seen_by_some_[panel];
      if (first + rows.count > some.begin && first < some.end) attend_panel(panel, first, rows, prefetcher);
    }
  }

  void attend_panel(int panel, int64_t first, const KeyRows& rows, Prefetcher& prefetcher) {
    const int at = panel * kWidth;
    const int64_t k_dim = tile_.k_dim(), v_dim = tile_.v_dim();
    for (int64_t key = 0; key < rows.count; key += kStepKeys) {
      prefetcher.step();
      Products::score(s_.queries + at * k_dim, rows, key, std::min<int64_t>(kStepKeys, rows.count - key), k_dim, s_);
    }
    const SeenKeys all = seen_by_all_[panel];
    const bool seen_by_all = first >= all.begin && first + rows.count <= all.end;
    const auto weigh = seen_by_all ? weigh_keys<kVectors, false> : weigh_keys<kVectors, true>;
    weigh(first, rows.count, tile_.base2_scale(), s_, at);
    Products::prepare_weights(rows.count, s_);
    for (int64_t dim = 0; dim < v_dim; dim += kStepDims) {
      prefetcher.step();
      Products::add(rows, dim, std::min<int64_t>(v_dim, dim + kStepDims), v_dim, s_.decay + at, s_, s_.results + at * v_dim);
    }
  }

  const TileView& tile_;
  TileScratch& s_;
  const int panels_;
  SeenKeys seen_by_some_[kTileQueries / kWidth], seen_by_all_[kTileQueries / kWidth];  ///< per panel, current segment
};

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
