#include "model/attention.h"

namespace weft {

AttentionStep::AttentionStep(const StepPlan& plan_in) : plan(&plan_in), rows(plan_in->rows), first_fresh(plan_in->rows) {
  for (const RowGroup& group : plan_in[plan_in->groups]) {
    if (group.via == ContextVia::queries) query_rows = group.end;
    if (group.via != ContextVia::none) key_rows_end = group.end;
    if (group.fresh) first_fresh = std::min<int64_t>(first_fresh, group.begin);
  }
}

std::array<AttentionLimits, 2> attention_limits(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits,
                                                int block_tokens) {
  const bool latent = config.mla.has_value();
  const int64_t own = grid.rank_q_heads();
  // Latent rows are projected to keys and values of each own head before they are attended.
  return {AttentionLimits{.rows = limits.query_rows,
                          .heads = grid.group_q_heads(),
                          .kv_heads = grid.rank_kv_heads(),
                          .k_dim = config.k_dim(),
                          .v_dim = config.v_dim(),
                          .keys = limits.blocks_per_sequence * block_tokens,
                          .segments = 1},
          AttentionLimits{.rows = limits.rows,
                          .heads = own,
                          .kv_heads = latent ? own : grid.rank_kv_heads(),
                          .k_dim = latent ? config.mla->qk_nope_head_dim + config.mla->qk_rope_head_dim : config.head_dim,
                          .v_dim = latent ? config.mla->v_head_dim : config.head_dim,
                          .keys = std::max(limits.rows, limits.context_rows * grid.dcp()),
                          .segments = grid.dcp()}};
}

View one_block(View v) {
  return View(v.data(), v.dtype(), {1, v.size(0), v.size(1), v.dims() > 2 ? v.size(2) : 1},
              {0, v.stride(0), v.stride(1), v.dims() > 2 ? v.stride(2) : 1});
}
ConstView one_block(ConstView v) {
  return ConstView(v.data(), v.dtype(), {1, v.size(0), v.size(1), v.dims() > 2 ? v.size(2) : 1},
                   {0, v.stride(0), v.stride(1), v.dims() > 2 ? v.stride(2) : 1});
}

namespace {

/// [W, n, d] as [W n, d].
ConstView flat_rows(ConstView v) { return ConstView(v.data(), v.dtype(), {v.size(0) * v.size(1), v.size(2)}); }

/// Keys and values of all rows of a small cache.
RowKeys row_keys(const KvView& kv) {
  return {.k = ConstView(kv.k, kv.dtype, {kv.slots, kv.kv_heads, kv.k_dim}, {kv.k_stride, kv.k_dim, 1}),
          .v = ConstView(kv.v, kv.dtype, {kv.slots, kv.kv_heads, kv.v_dim}, {kv.v_stride, kv.v_dim, 1}),
          .scales = kv.scales};
}

/// [T, h] float32 as [1, T, h].
View one_lse(View v) { return View(v.data(), v.dtype(), {1, v.size(0), v.size(1)}, {0, v.stride(0), v.stride(1)}); }

}  // namespace

void ContextAttention::via_queries(const AttentionStep& step, const KvView& kv, int64_t begin, int64_t end, ConstView q,
                                   View out, View lse) {
  const StepPlan& plan = *step.plan;
  const int rank = exchange_.dcp_rank();
  Attention args{.q = one_block(q),
                 .paged = {.kv = kv, .tables = step.tables, .table_stride = step.table_stride},
                 .rows = {},
                 .seq_of = plan[plan->seq_of].data() + begin,
                 .begin = plan.of_rank(plan->ctx_begin, rank).data() + begin,
                 .end = plan.of_rank(plan->ctx_end, rank).data() + begin,
                 .segments = 1,
                 .scale = scale_,
                 .invariant = limits_.invariant,
                 .out = one_block(out),
                 .lse = one_lse(lse)};
  if (exchange_.dcp_size() == 1) {
    ops_.attend(args);
    return;
  }
  args.q = exchange_.gather_queries(q);
  const Exchange::PartialBuffer partials = exchange_.partial_buffer(end - begin, static_cast<int>(q.size(1)), out.size(2));
  args.out = partials.out;
  args.lse = partials.lse;
  ops_.attend(args);
  exchange_.exchange_partials(out, lse);
}

void ContextAttention::wave(const AttentionStep& step, const ContextWave& wave, ConstView q, const RowKeys& keys, View out,
                            View lse) {
  const StepPlan& plan = *step.plan;
  ops_.attend({.q = one_block(q),
               .paged = {},
               .rows = keys,
               .seq_of = plan[plan->seq_of].data() + wave.row_begin,
               .begin = plan[plan->wave_begin].data() + wave.ranges_at,
               .end = plan[plan->wave_end].data() + wave.ranges_at,
               .segments = plan->ranks,
               .scale = scale_,
               .out = one_block(out),
               .lse = one_lse(lse)});
}

void ContextAttention::fresh(const AttentionStep& step, ConstView q, const RowKeys& keys, View out, View lse) {
  const StepPlan& plan = *step.plan;
  ops_.attend({.q = one_block(q),
               .paged = {},
               .rows = keys,
               .seq_of = plan[plan->seq_of].data() + step.first_fresh,
               .begin = plan[plan->fresh_begin].data() + step.first_fresh,
               .end = plan[plan->fresh_end].data() + step.first_fresh,
               .segments = 1,
               .scale = scale_,
               .out = one_block(out),
               .lse = one_lse(lse)});
}

void ContextAttention::clear(const AttentionStep& step, int64_t begin, ConstView q, const RowKeys& keys, View out, View lse) {
  const StepPlan& plan = *step.plan;
  // A row whose range is empty gets the identity: begin serves as both ends.
  const int32_t* nothing = plan[plan->fresh_begin].data() + begin;
  ops_.attend({.q = one_block(q),
               .paged = {},
               .rows = keys,
               .seq_of = plan[plan->seq_of].data() + begin,
               .begin = nothing,
               .end = nothing,
               .segments = 1,
               .scale = scale_,
               .out = one_block(out),
               .lse = one_lse(lse)});
}

KvView rows_in(const KvView& kv, ConstView bytes) {
  KvView rows = kv;
  // A KvView is written through as well, these rows are only read.
  rows.k = const_cast<void*>(bytes.data());
  rows.v = kv.is_latent() ? rows.k : static_cast<std::byte*>(rows.k) + kv.k_row_bytes();
  rows.k_stride = rows.v_stride = bytes.stride(0) / static_cast<int64_t>(size_of(kv.dtype));
  rows.slots = bytes.size(0);
  return rows;
}

GroupedQueryAttention::Tensors::Tensors(Workspace& memory, const ModelConfig& config, const RankGrid& grid,
                                        const StepLimits& limits) {
  const int64_t rows = limits.rows, h = grid.rank_q_heads(), g = grid.rank_kv_heads(), d = config.head_dim;
  qkv = memory.take(limits.dtype, {rows, (h + 2 * g) * d});
  q = memory.take(limits.dtype, {rows, h, d});
  out = memory.take(limits.dtype, {rows, h, d});
  lse = memory.take(DType::f32, {rows, h});
  context = memory.take(limits.dtype, {rows, h, d});
  context_lse = memory.take(DType::f32, {rows, h});
  if (grid.dcp() > 1) {
    wave = memory.take(limits.dtype, {rows, h, d});
    wave_lse = memory.take(DType::f32, {rows, h});
  }
}

GroupedQueryAttention::GroupedQueryAttention(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits,
                                             Ops& ops, Exchange& exchange, Workspace& memory)
    : config_(config),
      grid_(grid),
      ops_(ops),
      exchange_(exchange),
      t_(memory, config, grid, limits),
      context_(ops, exchange, limits, config.softmax_scale()) {}

void GroupedQueryAttention::forward(const AttentionStep& step, const LayerWeights& w, const KvView& kv, ConstView h_in,
                                    View out) {
  const StepPlan& plan = *step.plan;
  const int64_t rows = step.rows, h = grid_.rank_q_heads(), g = grid_.rank_kv_heads(), d = config_.head_dim;
  const int rank = exchange_.dcp_rank();

  // Queries, keys and values of every row; the owner of a row stores its key and value.
  const View qkv = t_.qkv.rows(0, rows);
  ops_.linear(*w.qkv, h_in, w.qkv_bias.empty() ? nullptr : w.qkv_bias.data(), qkv);
  const View q_raw = qkv.slice(1, 0, h * d).split_last(h);
  const View k = qkv.slice(1, h * d, g * d).split_last(g);
  const View v = qkv.slice(1, (h + g) * d, g * d).split_last(g);
  if (!w.q_norm.empty()) {
    ops_.rms_norm(q_raw, w.q_norm.data(), config_.norm_eps, q_raw);
    ops_.rms_norm(k, w.k_norm.data(), config_.norm_eps, k);
  }
  const View q = t_.q.rows(0, rows);
  ops_.rope_append({.cos = step.cos,
                    .sin = step.sin,
                    .rotary = config_.rope.rotary,
                    .interleaved = config_.rope.interleaved,
                    .q = q_raw,
                    .q_out = q,
                    .k = k,
                    .v = v,
                    .latent = {},
                    .k_out = k,
                    .slots = plan.slots_of(0, rank).data(),
                    .kv = kv});

  // Rows without fresh keys are done after their context; the others merge both parts.
  const View result = t_.out.rows(0, rows), context = t_.context.rows(0, rows), context_lse = t_.context_lse.rows(0, rows);
  step.for_each_query_piece(context_.piece(), [&](int64_t begin, int64_t n, bool has_fresh) {
    context_.via_queries(step, kv, begin, begin + n, q.rows(begin, n), (has_fresh ? context : result).rows(begin, n),
                         context_lse.rows(begin, n));
  });

  const int64_t first = step.first_fresh, fresh_rows = rows - first;
  if (fresh_rows > 0) {
    const RowKeys fresh{.k = k.rows(first, fresh_rows), .v = v.rows(first, fresh_rows)};
    context_.fresh(step, q.rows(first, fresh_rows), fresh, result.rows(first, fresh_rows), t_.lse.rows(first, fresh_rows));
    if (step.key_rows_end > step.query_rows) {
      const int64_t begin = step.query_rows, n = step.key_rows_end - begin;
      context_.clear(step, begin, q.rows(begin, n), fresh, context.rows(begin, n), context_lse.rows(begin, n));
    }
  }
  const std::span<const int32_t> slots = plan.of_rank(plan->gather_slots, rank);
  for (const ContextWave& wave : plan[plan->waves]) {
    const int64_t k_bytes = kv.k_row_bytes(), v_bytes = kv.v_row_bytes();
    const View send = exchange_.context_buffer(wave.rows, k_bytes + v_bytes, DType::u8);
    ops_.gather_rows(kv, slots.data() + wave.slots_at, send.slice(1, 0, k_bytes), send.slice(1, k_bytes, v_bytes));
    const RowKeys keys = row_keys(rows_in(kv, flat_rows(exchange_.gather_context())));
    const int64_t begin = wave.row_begin, n = wave.row_end - wave.row_begin;
    const View part = t_.wave.rows(0, n), part_lse = t_.wave_lse.rows(0, n);
    context_.wave(step, wave, q.rows(begin, n), keys, part, part_lse);
    const Partial parts[] = {{context.rows(begin, n), context_lse.rows(begin, n)}, {part, part_lse}};
    ops_.merge(parts, context.rows(begin, n), context_lse.rows(begin, n));
  }
  if (const int64_t n = step.key_rows_end - first; n > 0) {
    const Partial parts[] = {{context.rows(first, n), context_lse.rows(first, n)},
                             {result.rows(first, n), t_.lse.rows(first, n)}};
    ops_.merge(parts, result.rows(first, n), {});
  }
  ops_.linear(*w.o, ConstView(result.data(), result.dtype(), {rows, h * d}), w.o_bias.empty() ? nullptr : w.o_bias.data(), out);
}

}  // namespace weft
