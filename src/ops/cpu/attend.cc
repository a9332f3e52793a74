#include "ops/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "ops/cpu/attend_plan.h"
#include "ops/cpu/attend_tile.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attend.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "ops/cpu/attend_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

/// Attention of one tile's queries to one part of their keys under one KV head.
class TileAttention {
 public:
  TileAttention(const Attention& args, const QueryTile& tile, int kv_head, TileScratch& scratch)
      : args_(args),
        tile_(tile),
        s_(scratch),
        kv_head_(kv_head),
        heads_(args.q.size(2)),
        group_(args.q.size(0) * heads_ / kv_heads_of(args)),
        dk_(args.q.size(3)),
        dv_(args.out.size(3)),
        panels_((tile.count + kPanel - 1) / kPanel),
        last_row_(tile.row + (tile.head + tile.count - 1) / group_) {}

  /// Attends keys [begin, end), counted through the tile's segments.
  void run(int64_t begin, int64_t end) {
    load_queries();
    int64_t before = 0;
    for (int segment = 0; segment < args_.segments; ++segment) {
      const SeenKeys seen = seen_keys(args_, segment, tile_.row, last_row_);
      const int64_t from = seen.begin + std::max<int64_t>(0, begin - before);
      const int64_t to = std::min(seen.end, seen.begin + end - before);
      before += seen.size();
      if (from >= to) continue;
      load_ranges(segment);
      for (int64_t key = from; key < to; key += kTileKeys) attend_keys(key, std::min<int64_t>(kTileKeys, to - key));
    }
  }

  void write_part(const PartResult& part) const {
    for (int i = 0; i < tile_.count; ++i) {
      narrow(result(i), kPanel, dv_, 1.0f, part.out + i * dv_);
      part.max[i] = s_.max[i];
      part.sum[i] = s_.sum[i];
    }
  }

  template <typename T>
  void write_out() const {
    for (int i = 0; i < tile_.count; ++i) write_query<T>(args_, tile_, kv_head_, i, result(i), kPanel, s_.max[i], s_.sum[i]);
  }

  /// Writes out and lse of query i of a tile from its result before division, whose elements are `stride` apart.
  template <typename T>
  static void write_query(const Attention& args, const QueryTile& tile, int kv_head, int i, const float* result, int64_t stride,
                          float max, float sum) {
    const Place at = place_of(args, tile, kv_head, i);
    T* out = static_cast<T*>(args.out.data()) + at.block * args.out.stride(0) + at.row * args.out.stride(1) +
             at.head * args.out.stride(2);
    float* lse = static_cast<float*>(args.lse.data()) + at.block * args.lse.stride(0) + at.row * args.lse.stride(1) +
                 at.head * args.lse.stride(2);
    narrow(result, stride, args.out.size(3), sum > 0 ? 1 / sum : 0.0f, out);
    *lse = sum > 0 ? static_cast<float>(max * std::numbers::ln2 + std::log(static_cast<double>(sum))) : -HUGE_VALF;
  }

 private:
  /// Where query i of a tile lies: [P, T, h].
  struct Place {
    int64_t block, row, head;
  };
  static Place place_of(const Attention& args, const QueryTile& tile, int kv_head, int i) {
    const int64_t heads = args.q.size(2), group = args.q.size(0) * heads / kv_heads_of(args);
    const int64_t at = tile.head + i, head = kv_head * group + at % group;
    return {head / heads, tile.row + at / group, head % heads};
  }

  const float* result(int i) const { return s_.results + (i / kPanel * dv_) * kPanel + i % kPanel; }

  void load_queries() {
    if (args_.q.dtype() == DType::bf16) {
      load_queries_as<bf16>();
    } else {
      load_queries_as<float>();
    }
    std::fill_n(s_.results, panels_ * dv_ * kPanel, 0.0f);
    std::fill_n(s_.max, kTileQueries, -HUGE_VALF);
    std::fill_n(s_.sum, kTileQueries, 0.0f);
  }

  // Lanes behind the last query repeat it, so that they never ask for a mask of their own.
  template <typename T>
  void load_queries_as() {
    for (int i = 0; i < panels_ * kPanel; ++i) {
      const Place at = place_of(args_, tile_, kv_head_, std::min(i, tile_.count - 1));
      const T* q = static_cast<const T*>(args_.q.data()) + at.block * args_.q.stride(0) + at.row * args_.q.stride(1) +
                   at.head * args_.q.stride(2);
      float* column = s_.queries + (i / kPanel * dk_) * kPanel + i % kPanel;
      for (int64_t k = 0; k < dk_; ++k) column[k * kPanel] = static_cast<float>(q[k]);
    }
  }

  void load_ranges(int segment) {
    const int64_t rows = args_.q.size(1);
    for (int i = 0; i < panels_ * kPanel; ++i) {
      const int64_t row = tile_.row + (tile_.head + std::min(i, tile_.count - 1)) / group_;
      s_.begin[i] = args_.begin[segment * rows + row];
      s_.end[i] = args_.end[segment * rows + row];
    }
    for (int panel = 0; panel < panels_; ++panel) {
      const int32_t *begin = s_.begin + panel * kPanel, *end = s_.end + panel * kPanel;
      seen_by_some_[panel] = {*std::min_element(begin, begin + kPanel), *std::max_element(end, end + kPanel)};
      seen_by_all_[panel] = {*std::max_element(begin, begin + kPanel), *std::min_element(end, end + kPanel)};
    }
  }

  void attend_keys(int64_t first, int64_t count) {
    locate_keys(first, count);
    widen_keys(count);
    const float scale = static_cast<float>(args_.scale * std::numbers::log2e);
    for (int panel = 0; panel < panels_; ++panel) {
      const SeenKeys some = seen_by_some_[panel], all = seen_by_all_[panel];
      if (first + count <= some.begin || first >= some.end) continue;
      const int at = panel * kPanel;
      score_keys(s_.queries + at * dk_, s_.key_rows, count, dk_, s_.scores);
      const auto weigh = first >= all.begin && first + count <= all.end ? weigh_keys<false> : weigh_keys<true>;
      weigh(first, count, scale, s_.begin + at, s_.end + at, s_.max + at, s_.sum + at, s_.decay + at, s_.scores);
      add_values(s_.scores, s_.value_rows, count, dv_, s_.decay + at, s_.results + at * dv_);
    }
  }

  void locate_keys(int64_t first, int64_t count) {
    if (args_.paged.kv.k != nullptr) {
      locate_paged_keys(first, count);
    } else {
      const ConstView &k = args_.rows.k, &v = args_.rows.v;
      const int64_t k_size = static_cast<int64_t>(size_of(k.dtype())), v_size = static_cast<int64_t>(size_of(v.dtype()));
      const auto* keys = static_cast<const std::byte*>(k.data()) + kv_head_ * k.stride(1) * k_size;
      const auto* values = static_cast<const std::byte*>(v.data()) + kv_head_ * v.stride(1) * v_size;
      for (int64_t i = 0; i < count; ++i) {
        s_.key_rows[i] = keys + (first + i) * k.stride(0) * k_size;
        s_.value_rows[i] = values + (first + i) * v.stride(0) * v_size;
      }
    }
    std::fill(s_.key_rows + count, s_.key_rows + kTileKeys, s_.key_rows[count - 1]);
  }

  void locate_paged_keys(int64_t first, int64_t count) {
    const KvView& kv = args_.paged.kv;
    const int32_t* table = args_.paged.tables + args_.seq_of[tile_.row] * args_.paged.table_stride;
    const int64_t size = static_cast<int64_t>(size_of(kv.dtype));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = first + i;
      const int64_t slot = int64_t{table[key / kv.block_tokens]} * kv.block_tokens + key % kv.block_tokens;
      s_.key_rows[i] = static_cast<const std::byte*>(kv.k) + (slot * kv.k_stride + kv_head_ * kv.k_dim) * size;
      s_.value_rows[i] = static_cast<const std::byte*>(kv.v) + (slot * kv.v_stride + kv_head_ * kv.v_dim) * size;
    }
  }

  void widen_keys(int64_t count) {
    const DType dtype = args_.paged.kv.k != nullptr ? args_.paged.kv.dtype : args_.rows.k.dtype();
    if (dtype != DType::bf16) return;
    const bool shared = s_.value_rows[0] == s_.key_rows[0];
    for (int64_t i = 0; i < count; ++i) {
      widen(static_cast<const bf16*>(s_.key_rows[i]), dk_, s_.keys + i * dk_);
      s_.key_rows[i] = s_.keys + i * dk_;
      if (!shared) widen(static_cast<const bf16*>(s_.value_rows[i]), dv_, s_.values + i * dv_);
      s_.value_rows[i] = shared ? s_.keys + i * dk_ : s_.values + i * dv_;
    }
    std::fill(s_.key_rows + count, s_.key_rows + kTileKeys, s_.key_rows[count - 1]);
  }

  const Attention& args_;
  const QueryTile& tile_;
  TileScratch& s_;
  const int kv_head_;
  const int64_t heads_, group_, dk_, dv_;
  const int panels_;
  const int64_t last_row_;
  SeenKeys seen_by_some_[kTileQueries / kPanel], seen_by_all_[kTileQueries / kPanel];  ///< per panel, current segment
};

void attend_task(const Attention& args, const QueryTile& tile, const AttendTask& task, TileScratch& scratch,
                 const PartResult& part) {
  TileAttention attention(args, tile, task.kv_head, scratch);
  const int64_t begin = task.part * tile.part_keys;
  attention.run(begin, std::min(tile.keys, begin + tile.part_keys));
  if (tile.parts > 1) {
    attention.write_part(part);
  } else if (args.out.dtype() == DType::bf16) {
    attention.write_out<bf16>();
  } else {
    attention.write_out<float>();
  }
}

/// Joins the parts of query i: `parts` results of which the first is given, each `stride` floats behind the one before.
void join_query(const Attention& args, const QueryTile& tile, int kv_head, int i, const PartResult& first, int64_t stride,
                float* result) {
  const DF d;
  const int64_t dv = args.out.size(3);
  float max = -HUGE_VALF, sum = 0;
  for (int part = 0; part < tile.parts; ++part) max = std::max(max, first.max[part * stride + i]);
  std::fill_n(result, dv, 0.0f);
  for (int part = 0; part < tile.parts; ++part) {
    const float part_max = first.max[part * stride + i];
    if (part_max == -HUGE_VALF) continue;
    const float weight = std::exp2(part_max - max);
    const float* out = first.out + part * stride + i * dv;
    sum += weight * first.sum[part * stride + i];
    int64_t k = 0;
    for (; k + kLanes <= dv; k += kLanes) {
      hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, out + k), hn::LoadU(d, result + k)), d, result + k);
    }
    for (; k < dv; ++k) result[k] += weight * out[k];
  }
  if (args.out.dtype() == DType::bf16) {
    TileAttention::write_query<bf16>(args, tile, kv_head, i, result, 1, max, sum);
  } else {
    TileAttention::write_query<float>(args, tile, kv_head, i, result, 1, max, sum);
  }
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(attend_task);
HWY_EXPORT(join_query);

struct AttendScratch::State {
  AttendPlan plan;
  std::vector<TileScratch> tiles;  ///< one per thread
  std::vector<Buffer> memory;      ///< what their pointers point into
  size_t tile_floats = 0;
  Buffer parts;

  /// Makes room for tiles of these sizes on each thread, and for `part_floats` of partial results.
  void reserve(int threads, int64_t dk, int64_t dv, int64_t part_floats) {
    const size_t floats = static_cast<size_t>((kTileQueries + kTileKeys) * (dk + dv) + kTileKeys * kTileQueries);
    if (static_cast<size_t>(threads) > tiles.size() || floats > tile_floats) {
      tile_floats = std::max(floats, tile_floats);
      tiles.assign(static_cast<size_t>(threads), {});
      memory.clear();
      for (size_t i = 0; i < tiles.size(); ++i) memory.push_back(Buffer::host(tile_floats * sizeof(float)));
    }
    for (size_t i = 0; i < tiles.size(); ++i) {
      auto* at = reinterpret_cast<float*>(memory[i].data());
      const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
      tiles[i].queries = take(kTileQueries * dk);
      tiles[i].results = take(kTileQueries * dv);
      tiles[i].scores = take(kTileKeys * kTileQueries);
      tiles[i].keys = take(kTileKeys * dk);
      tiles[i].values = take(kTileKeys * dv);
    }
    const size_t bytes = static_cast<size_t>(part_floats) * sizeof(float);
    if (bytes > parts.bytes()) parts = Buffer::host(bytes);
  }

  /// Partial number `index`, of `stride` floats.
  PartResult part(int64_t index, int64_t stride) const {
    auto* at = reinterpret_cast<float*>(parts.data()) + index * stride;
    return {.out = at + 2 * kTileQueries, .max = at, .sum = at + kTileQueries};
  }
};

AttendScratch::AttendScratch() : state_(std::make_unique<State>()) {}
AttendScratch::~AttendScratch() = default;
AttendScratch::AttendScratch(AttendScratch&&) noexcept = default;
AttendScratch& AttendScratch::operator=(AttendScratch&&) noexcept = default;

namespace {

void check(const Attention& args) {
  const ConstView& q = args.q;
  WEFT_CHECK_EQ(q.dims(), 4);
  WEFT_CHECK_EQ(args.out.dims(), 4);
  WEFT_CHECK_EQ(args.lse.dims(), 3);
  for (int d = 0; d < 3; ++d) {
    WEFT_CHECK_EQ(args.out.size(d), q.size(d)) << "out, dimension " << d;
    WEFT_CHECK_EQ(args.lse.size(d), q.size(d)) << "lse, dimension " << d;
  }
  WEFT_CHECK(q.dtype() == DType::f32 || q.dtype() == DType::bf16) << to_string(q.dtype());
  WEFT_CHECK(args.out.dtype() == q.dtype()) << "out is " << to_string(args.out.dtype());
  WEFT_CHECK(args.lse.dtype() == DType::f32) << "lse is " << to_string(args.lse.dtype());
  const bool paged = args.paged.kv.k != nullptr;
  WEFT_CHECK(paged != !args.rows.k.empty()) << "exactly one source of keys";
  const int64_t dk = paged ? args.paged.kv.k_dim : args.rows.k.size(2);
  const int64_t dv = paged ? args.paged.kv.v_dim : args.rows.v.size(2);
  const DType dtype = paged ? args.paged.kv.dtype : args.rows.k.dtype();
  WEFT_CHECK_EQ(q.size(3), dk);
  WEFT_CHECK_EQ(args.out.size(3), dv);
  WEFT_CHECK(dtype == DType::f32 || dtype == DType::bf16) << "keys are " << to_string(dtype);
  if (paged) {
    WEFT_CHECK_EQ(args.segments, 1);
  } else {
    WEFT_CHECK(args.rows.v.dtype() == dtype) << "values are " << to_string(args.rows.v.dtype());
    WEFT_CHECK_EQ(args.rows.v.size(1), args.rows.k.size(1));
  }
  WEFT_CHECK_EQ(q.size(0) * q.size(2) % kv_heads_of(args), 0) << "query heads per KV head";
}

}  // namespace

void attend(Pool& pool, AttendScratch& scratch, const Attention& args) {
  if (args.q.size(1) == 0) return;
  check(args);
  AttendScratch::State& state = scratch.state();
  state.plan.build(args);

  const AttendPlan& plan = state.plan;
  const int64_t dv = args.out.size(3), stride = kTileQueries * (dv + 2);
  state.reserve(pool.threads(), args.q.size(3), dv, plan.partials() * stride);
  const auto partial = [&](const QueryTile& tile, int kv_head, int part) {
    return state.part(tile.first_partial + int64_t{kv_head} * tile.parts + part, stride);
  };

  pool.run(static_cast<int64_t>(plan.tasks().size()), [&](int64_t i, int thread) {
    const AttendTask& task = plan.tasks()[static_cast<size_t>(i)];
    const QueryTile& tile = plan.tiles()[static_cast<size_t>(task.tile)];
    const PartResult part = tile.parts > 1 ? partial(tile, task.kv_head, task.part) : PartResult{};
    HWY_DYNAMIC_DISPATCH(attend_task)(args, tile, task, state.tiles[static_cast<size_t>(thread)], part);
  });

  // A few queries of one KV head at a time.
  constexpr int kJoined = 8;
  const int64_t kv_heads = kv_heads_of(args), joins = kTileQueries / kJoined;
  pool.run(static_cast<int64_t>(plan.split_tiles().size()) * kv_heads * joins, [&](int64_t i, int thread) {
    const QueryTile& tile = plan.tiles()[static_cast<size_t>(plan.split_tiles()[static_cast<size_t>(i / joins / kv_heads)])];
    const int kv_head = static_cast<int>(i / joins % kv_heads), first = static_cast<int>(i % joins) * kJoined;
    for (int query = first; query < std::min(tile.count, first + kJoined); ++query) {
      HWY_DYNAMIC_DISPATCH(join_query)
      (args, tile, kv_head, query, partial(tile, kv_head, 0), stride, state.tiles[static_cast<size_t>(thread)].results);
    }
  });
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
