#include "ops/cpu/attend.h"

#include <algorithm>
#include <cmath>
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
#include "ops/cpu/attend_panel-inl.h"
#include "ops/cpu/attend_stream-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

/// Adds what more keys gave a query to what those before gave it, both before division by their sums. Compiled once: inlined in
/// two places it might be rounded in two ways.
HWY_NOINLINE void join(const float* more, float more_max, float more_sum, int64_t dv, float* out, float& max, float& sum) {
  if (more_max == -HUGE_VALF) return;
  const DF d;
  const float top = std::max(max, more_max), keep = std::exp2(max - top), weight = std::exp2(more_max - top);
  max = top;
  sum = keep * sum + weight * more_sum;
  int64_t k = 0;
  for (; k + kLanes <= dv; k += kLanes) {
    const VF kept = hn::Mul(hn::Set(d, keep), hn::LoadU(d, out + k));
    hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, more + k), kept), d, out + k);
  }
  for (; k < dv; ++k) out[k] = keep * out[k] + weight * more[k];
}

template <typename Kernel>
void copy_result(const Kernel& kernel, int i, int64_t dv, float* out) {
  const float* result = kernel.result(i);
  for (int64_t k = 0; k < dv; ++k) out[k] = result[k * Kernel::kResultStride];
}

/// Attends one part of a tile's keys, and leaves the results where they belong: in the end, or in results[0] and so on for each
/// of the task's KV heads, `stride` floats apart.
template <typename Kernel>
void attend_part(const QueryTile& tile, const AttendTask& task, const TileView& view, TileScratch& s, const PartResult& first,
                 int64_t stride) {
  Kernel kernel(view, task.kv_heads, s);
  const int64_t begin = task.part * tile.part_keys;
  kernel.run(begin, std::min(tile.keys, begin + tile.part_keys));
  for (int i = 0; i < tile.count * task.kv_heads; ++i) {
    if (tile.parts == 1) {
      view.write(i, kernel.result(i), Kernel::kResultStride, s.max[i], s.sum[i]);
    } else {
      const int64_t at = i / tile.count * stride, query = i % tile.count;
      copy_result(kernel, i, view.v_dim(), first.out + at + query * view.v_dim());
      first.max[at + query] = s.max[i];
      first.sum[at + query] = s.sum[i];
    }
  }
}

/// Attends all parts of a tile's keys, one after the other.
template <typename Kernel>
void attend_in_turn(const QueryTile& tile, const AttendTask& task, const TileView& view, TileScratch& s) {
  const int queries = tile.count * task.kv_heads;
  const int64_t dv = view.v_dim();
  std::fill_n(s.joined, queries * dv, 0.0f);
  std::fill_n(s.joined_max, queries, -HUGE_VALF);
  std::fill_n(s.joined_sum, queries, 0.0f);
  for (int64_t begin = 0; begin < tile.keys; begin += tile.part_keys) {
    Kernel kernel(view, task.kv_heads, s);
    kernel.run(begin, std::min(tile.keys, begin + tile.part_keys));
    for (int i = 0; i < queries; ++i) {
      copy_result(kernel, i, dv, s.part);
      join(s.part, s.max[i], s.sum[i], dv, s.joined + i * dv, s.joined_max[i], s.joined_sum[i]);
    }
  }
  for (int i = 0; i < queries; ++i) view.write(i, s.joined + i * dv, 1, s.joined_max[i], s.joined_sum[i]);
}

template <typename Kernel>
void attend_with(const QueryTile& tile, const AttendTask& task, const TileView& view, TileScratch& s, const PartResult& first,
                 int64_t stride) {
  tile.in_turn ? attend_in_turn<Kernel>(tile, task, view, s) : attend_part<Kernel>(tile, task, view, s, first, stride);
}

void attend_task(const Attention& args, const QueryTile& tile, const AttendTask& task, TileScratch& scratch,
                 const PartResult& first, int64_t stride) {
  const TileView view(args, tile, task.kv_head);
  const bool few = tile.count <= kLanes;
  auto* attend = few ? attend_with<PanelAttention<FloatProducts, 1>> : attend_with<PanelAttention<FloatProducts, 2>>;
  if (PairProducts<1>::suit(view)) {
    attend = few ? attend_with<PanelAttention<PairProducts, 1>> : attend_with<PanelAttention<PairProducts, 2>>;
  }
  if (tile.count <= kStreamQueries && view.kv_format() == KvFormat::elements) {
    attend = view.kv_dtype() == DType::f8_e4m3 ? attend_with<StreamAttention<f8_e4m3>>
             : view.kv_dtype() == DType::bf16  ? attend_with<StreamAttention<bf16>>
                                               : attend_with<StreamAttention<float>>;
  }
  attend(tile, task, view, scratch, first, stride);
}

/// Joins the parts of query i: `parts` results of which the first is given, each `stride` floats behind the one before.
void join_query(const Attention& args, const QueryTile& tile, int kv_head, int i, const PartResult& first, int64_t stride,
                float* result) {
  const int64_t dv = args.out.size(3);
  float max = -HUGE_VALF, sum = 0;
  std::fill_n(result, dv, 0.0f);
  for (int64_t part = 0; part < tile.parts; ++part) {
    const int64_t at = part * stride;
    join(first.out + at + i * dv, first.max[at + i], first.sum[at + i], dv, result, max, sum);
  }
  TileView(args, tile, kv_head).write(i, result, 1, max, sum);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(attend_task);
HWY_EXPORT(join_query);

namespace {

size_t tile_floats_for(int64_t dk, int64_t dv) {
  return static_cast<size_t>((kTileQueries + kTileKeys) * (padded_dim(dk) + padded_dim(dv)) + kTileKeys * kTileQueries +
                             (kTileQueries + 1) * padded_dim(dv));
}
/// Floats of one partial result: of each query its values, maximum and sum.
int64_t partial_stride(int64_t dv) { return kTileQueries * (dv + 2); }

}  // namespace

struct AttendScratch::State {
  AttendPlan plan;
  std::vector<TileScratch> tiles;  ///< one per thread
  std::vector<Buffer> memory;      ///< what their pointers point into
  size_t tile_floats = 0;
  Buffer parts;

  /// Makes room for tiles of these sizes on each thread, and for `part_floats` of partial results.
  void reserve(int threads, int64_t dk, int64_t dv, int64_t part_floats) {
    const size_t floats = tile_floats_for(dk, dv);
    if (static_cast<size_t>(threads) > tiles.size() || floats > tile_floats) {
      tile_floats = std::max(floats, tile_floats);
      tiles.assign(static_cast<size_t>(threads), {});
      memory.clear();
      for (size_t i = 0; i < tiles.size(); ++i) memory.push_back(Buffer::host(tile_floats * sizeof(float)));
    }
    for (size_t i = 0; i < tiles.size(); ++i) {
      auto* at = reinterpret_cast<float*>(memory[i].data());
      const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
      tiles[i].queries = take(kTileQueries * padded_dim(dk));
      tiles[i].results = take(kTileQueries * padded_dim(dv));
      tiles[i].scores = take(kTileKeys * kTileQueries);
      tiles[i].keys = take(kTileKeys * padded_dim(dk));
      tiles[i].values = take(kTileKeys * padded_dim(dv));
      tiles[i].joined = take(kTileQueries * padded_dim(dv));
      tiles[i].part = take(padded_dim(dv));
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

void AttendScratch::reserve(int threads, const AttentionLimits& limits) {
  state_->plan.reserve(limits);
  state_->reserve(threads, limits.k_dim, limits.v_dim, AttendPlan::most_partials(limits) * partial_stride(limits.v_dim));
}

size_t AttendScratch::reserved_bytes(int threads, const AttentionLimits& limits) {
  const size_t partials = static_cast<size_t>(AttendPlan::most_partials(limits) * partial_stride(limits.v_dim));
  return (static_cast<size_t>(threads) * tile_floats_for(limits.k_dim, limits.v_dim) + partials) * sizeof(float);
}

void attend(Pool& pool, AttendScratch& scratch, const Attention& args) {
  if (args.q.size(1) == 0) return;
  AttendScratch::State& state = scratch.state();
  state.plan.build(args);

  const AttendPlan& plan = state.plan;
  const int64_t dv = args.out.size(3), stride = partial_stride(dv);
  state.reserve(pool.threads(), args.q.size(3), dv, plan.partials() * stride);
  const auto partial = [&](const QueryTile& tile, int kv_head, int part) {
    return state.part(tile.first_partial + int64_t{kv_head} * tile.parts + part, stride);
  };

  pool.run(static_cast<int64_t>(plan.tasks().size()), [&](int64_t i, int thread) {
    const AttendTask& task = plan.tasks()[static_cast<size_t>(i)];
    const QueryTile& tile = plan.tiles()[static_cast<size_t>(task.tile)];
    const PartResult part = tile.parts > 1 && !tile.in_turn ? partial(tile, task.kv_head, task.part) : PartResult{};
    HWY_DYNAMIC_DISPATCH(attend_task)
    (args, tile, task, state.tiles[static_cast<size_t>(thread)], part, tile.parts * stride);
  });

  // A few queries of one KV head at a time.
  constexpr int kJoined = 8;
  const int64_t kv_heads = args.kv_heads(), joins = kTileQueries / kJoined;
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
