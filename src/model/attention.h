#pragma once

#include <algorithm>
#include <array>

#include "exchange/exchange.h"
#include "layout/kv_region.h"
#include "layout/rank_grid.h"
#include "model/config.h"
#include "model/step_limits.h"
#include "model/step_plan.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace weft {

/// What the attention layers of one rank share during a step: the plan's arrays where the operators can read them, the tables,
/// the rotation of every row, and the memory for partials.
///
/// Rows come in the plan's order: [0, query_rows) see their context via queries, then those via keys, then those without;
/// [first_fresh, T) see this step's rows as well.
struct AttentionStep {
  const StepPlan* plan = nullptr;
  const int32_t* tables = nullptr;  ///< [sequences, blocks_per_sequence]
  int64_t table_stride = 0;
  ConstView cos, sin;  ///< [T, rotary / 2]
  int64_t rows = 0, query_rows = 0, key_rows_end = 0, first_fresh = 0;

  explicit AttentionStep(const StepPlan& plan);

  /// Calls visit(begin, count, fresh) for the rows that see their context via queries, at most `most` of them at a time. Those
  /// of a piece all see fresh keys beside it, or none does.
  template <typename Visit>
  void for_each_query_piece(int64_t most, const Visit& visit) const {
    for (int64_t begin = 0; begin < query_rows;) {
      const bool fresh = begin >= first_fresh;
      const int64_t limit = fresh ? query_rows : std::min(query_rows, first_fresh), count = std::min(most, limit - begin);
      visit(begin, count, fresh);
      begin += count;
    }
  }
};

/// Partial attention under DCP, for keys of either kind: moves queries or keys, and leaves one merged partial per row.
/// Sees neither W nor the layout beyond the plan's arrays.
class ContextAttention {
 public:
  ContextAttention(Ops& ops, Exchange& exchange, const StepLimits& limits, float scale)
      : ops_(ops), exchange_(exchange), limits_(limits), scale_(scale) {}

  /// Rows [begin, end) attend their context in the shards of the group. q [n, h, Dk] contiguous, for these rows only, n at most
  /// limits.query_rows; out [n, h, Dv] and lse [n, h] take the merged partials.
  void via_queries(const AttentionStep& step, const KvView& kv, int64_t begin, int64_t end, ConstView q, View out, View lse);

  /// Rows of `wave` attend the gathered rows `keys`; partials into out [n, h, Dv], lse [n, h] for the wave's rows.
  void wave(const AttentionStep& step, const ContextWave& wave, ConstView q, const RowKeys& keys, View out, View lse);

  /// Fresh rows [first_fresh, T) attend this step's own keys: q, out, lse are of those rows.
  void fresh(const AttentionStep& step, ConstView q, const RowKeys& keys, View out, View lse);

  /// Writes the identity of the merge: out 0, lse -inf.
  void clear(const AttentionStep& step, int64_t begin, ConstView q, const RowKeys& keys, View out, View lse);

  int64_t piece() const { return limits_.query_rows; }

 private:
  Ops& ops_;
  Exchange& exchange_;
  StepLimits limits_;
  float scale_;
};

/// The largest calls of attend that a rank's layers make: over the cache, and over rows.
std::array<AttentionLimits, 2> attention_limits(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits,
                                                int block_tokens);

/// A [T, heads, D] view as the [1, T, heads, D] that attend takes.
View one_block(View v);
ConstView one_block(ConstView v);

/// The cache rows that lie in `bytes` [n, bytes of a key and its value], as gather_rows gives them, with the dims, dtype and
/// scales of `kv`: a cache of n rows without blocks.
KvView rows_in(const KvView& kv, ConstView bytes);

/// One attention layer of a rank: h [T, H] -> partial output [T, H], still to be summed over the tensor-parallel ranks.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  virtual void forward(const AttentionStep& step, const LayerWeights& w, const KvView& kv, ConstView h, View out) = 0;
};

/// Grouped-query attention: Llama, Qwen, GLM-4.
class GroupedQueryAttention final : public AttentionLayer {
 public:
  struct Tensors {
    Tensors(Workspace& memory, const ModelConfig& config, const RankGrid& grid, const StepLimits& limits);
    View qkv;                         ///< [T, (h + 2g) D]
    View q;                           ///< [T, h, D] rotated
    View out, context, wave;          ///< [T, h, D]
    View lse, context_lse, wave_lse;  ///< [T, h]
  };
  GroupedQueryAttention(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops, Exchange& exchange,
                        Workspace& memory);
  void forward(const AttentionStep& step, const LayerWeights& w, const KvView& kv, ConstView h, View out) override;

 private:
  const ModelConfig& config_;
  const RankGrid& grid_;
  Ops& ops_;
  Exchange& exchange_;
  Tensors t_;
  ContextAttention context_;
};

}  // namespace weft
