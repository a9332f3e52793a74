#include "model/mla.h"

namespace weft {

LatentAttention::Tensors::Tensors(Workspace& memory, const ModelConfig& config, const RankGrid& grid,
                                  const StepLimits& limits) {
  const MlaConfig& m = *config.mla;
  const int64_t rows = limits.rows, h = grid.rank_q_heads(), head = m.qk_nope_head_dim + m.qk_rope_head_dim;
  const int64_t gathered_rows = limits.context_rows * grid.dcp(), up_rows = std::max(rows, gathered_rows);
  const DType dtype = limits.dtype;
  a = memory.take(dtype, {rows, (m.q_lora_rank > 0 ? m.q_lora_rank : h * head) + m.latent_row()});
  if (m.q_lora_rank > 0) q = memory.take(dtype, {rows, h * head});
  out = memory.take(dtype, {rows, h, m.v_head_dim});
  lse = memory.take(DType::f32, {rows, h});
  context = memory.take(dtype, {rows, h, m.v_head_dim});
  context_lse = memory.take(DType::f32, {rows, h});
  // Absorbed rows are finished before anything is up-projected.
  const size_t shared = memory.mark();
  absorbed = memory.take(dtype, {limits.query_rows, h, m.latent_row()});
  latent = memory.take(dtype, {limits.query_rows, h, m.kv_lora_rank});
  memory.rewind(shared);
  wave = memory.take(dtype, {rows, h, m.v_head_dim});
  wave_lse = memory.take(DType::f32, {rows, h});
  up = memory.take(dtype, {up_rows, h * (m.qk_nope_head_dim + m.v_head_dim)});
  keys = memory.take(dtype, {up_rows, h, head});
  gathered = memory.take(dtype, {gathered_rows, m.latent_row()});
}

LatentAttention::LatentAttention(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops,
                                 Exchange& exchange, Workspace& memory)
    : config_(config),
      mla_(*config.mla),
      grid_(grid),
      ops_(ops),
      exchange_(exchange),
      t_(memory, config, grid, limits),
      context_(ops, exchange, limits, config.softmax_scale()) {}

RowKeys LatentAttention::up_project(const LayerWeights& w, ConstView latent, ConstView rope) {
  const int64_t rows = latent.size(0), h = grid_.rank_q_heads(), nope = mla_.qk_nope_head_dim;
  const View up = t_.up.rows(0, rows), keys = t_.keys.rows(0, rows);
  ops_.linear(*w.kv_b, latent, nullptr, up);
  const View heads = up.split_last(h);  // [rows, h, nope + v]
  ops_.copy(heads.slice(2, 0, nope), keys.slice(2, 0, nope));
  // One rotated part serves all heads.
  const ConstView shared(rope.data(), rope.dtype(), {rows, h, rope.size(1)}, {rope.stride(0), 0, 1});
  ops_.copy(shared, keys.slice(2, nope, rope.size(1)));
  return {.k = keys, .v = heads.slice(2, nope, mla_.v_head_dim)};
}

void LatentAttention::absorbed(const AttentionStep& step, const LayerWeights& w, const KvView& kv, int64_t begin, int64_t end,
                               ConstView q, View out, View lse) {
  const int64_t n = end - begin, nope = mla_.qk_nope_head_dim, rope = mla_.qk_rope_head_dim, rank = mla_.kv_lora_rank;
  const View absorbed = t_.absorbed.rows(0, n), latent = t_.latent.rows(0, n);
  ops_.head_linear(w.w_uk, q.slice(2, 0, nope), absorbed.slice(2, 0, rank));
  ops_.copy(q.slice(2, nope, rope), absorbed.slice(2, rank, rope));
  context_.via_queries(step, kv, begin, end, absorbed, latent, lse);
  ops_.head_linear(w.w_uv, latent, out);
}

void LatentAttention::gathered_wave(const AttentionStep& step, const LayerWeights& w, const KvView& kv, const ContextWave& wave,
                                    ConstView q) {
  const StepPlan& plan = *step.plan;
  const int32_t* slots = plan.of_rank(plan->gather_slots, exchange_.dcp_rank()).data() + wave.slots_at;
  const int64_t rows = int64_t{plan->ranks} * wave.rows, row = mla_.latent_row();
  const View gathered = t_.gathered.rows(0, rows), heads(gathered.data(), gathered.dtype(), {rows, 1, row});
  if (exchange_.dcp_size() == 1) {
    ops_.gather_rows(kv, slots, heads, {});
  } else {
    ops_.gather_rows(kv, slots, exchange_.context_buffer(wave.rows, kv.k_row_bytes(), DType::u8), {});
    const ConstView got = exchange_.gather_context();
    ops_.gather_rows(rows_in(kv, ConstView(got.data(), DType::u8, {rows, got.size(2)})), nullptr, heads, {});
  }
  const RowKeys keys =
      up_project(w, gathered.slice(1, 0, mla_.kv_lora_rank), gathered.slice(1, mla_.kv_lora_rank, mla_.qk_rope_head_dim));
  const int64_t begin = wave.row_begin, n = wave.row_end - wave.row_begin;
  const View part = t_.wave.rows(0, n), part_lse = t_.wave_lse.rows(0, n);
  context_.wave(step, wave, q.rows(begin, n), keys, part, part_lse);
  const View context = t_.context.rows(begin, n), context_lse = t_.context_lse.rows(begin, n);
  const Partial parts[] = {{context, context_lse}, {part, part_lse}};
  ops_.merge(parts, context, context_lse);
}

void LatentAttention::forward(const AttentionStep& step, const LayerWeights& w, const KvView& kv, ConstView h_in, View out) {
  const StepPlan& plan = *step.plan;
  const int64_t rows = step.rows, h = grid_.rank_q_heads();
  const int64_t nope = mla_.qk_nope_head_dim, rope = mla_.qk_rope_head_dim, latent_dim = mla_.kv_lora_rank;
  const int64_t q_part = w.a->out() - mla_.latent_row();

  // Queries of every row; latents, stored by the owner of each row.
  const View a = t_.a.rows(0, rows);
  ops_.linear(*w.a, h_in, nullptr, a);
  View q_flat = a.slice(1, 0, q_part);
  if (w.q_b != nullptr) {
    ops_.rms_norm(q_flat, w.q_a_norm.data(), kLatentNormEps, q_flat);
    const View projected = t_.q.rows(0, rows);
    ops_.linear(*w.q_b, q_flat, nullptr, projected);
    q_flat = projected;
  }
  const View q = q_flat.split_last(h);  // [T, h, nope + rope]
  const View latent = a.slice(1, q_part, latent_dim), k_rope = a.slice(1, q_part + latent_dim, rope);
  ops_.rms_norm(latent, w.kv_a_norm.data(), kLatentNormEps, latent);
  const View k_head = k_rope.split_last(1), q_rope = q.slice(2, nope, rope);
  ops_.rope_append({.cos = step.cos,
                    .sin = step.sin,
                    .rotary = static_cast<int>(rope),
                    .interleaved = config_.rope.interleaved,
                    .q = q_rope,
                    .q_out = q_rope,
                    .k = k_head,
                    .v = {},
                    .latent = latent.split_last(1),
                    .k_out = k_head,
                    .slots = plan.slots_of(0, exchange_.dcp_rank()).data(),
                    .kv = kv});

  const View result = t_.out.rows(0, rows), context = t_.context.rows(0, rows), context_lse = t_.context_lse.rows(0, rows);
  step.for_each_query_piece(context_.piece(), [&](int64_t begin, int64_t n, bool has_fresh) {
    absorbed(step, w, kv, begin, begin + n, q.rows(begin, n), (has_fresh ? context : result).rows(begin, n),
             context_lse.rows(begin, n));
  });

  const int64_t first = step.first_fresh, fresh_rows = rows - first;
  if (fresh_rows > 0) {
    const RowKeys fresh = up_project(w, latent.rows(first, fresh_rows), k_rope.rows(first, fresh_rows));
    context_.fresh(step, q.rows(first, fresh_rows), fresh, result.rows(first, fresh_rows), t_.lse.rows(0, fresh_rows));
    if (const int64_t begin = step.query_rows, n = step.key_rows_end - begin; n > 0)
      context_.clear(step, begin, q.rows(begin, n), fresh, context.rows(begin, n), context_lse.rows(begin, n));
    for (const ContextWave& wave : plan[plan->waves]) gathered_wave(step, w, kv, wave, q);
    if (const int64_t n = step.key_rows_end - first; n > 0) {
      const Partial parts[] = {{context.rows(first, n), context_lse.rows(first, n)},
                               {result.rows(first, n), t_.lse.rows(0, n)}};
      ops_.merge(parts, result.rows(first, n), {});
    }
  }
  ops_.linear(*w.o, ConstView(result.data(), result.dtype(), {rows, h * mla_.v_head_dim}), nullptr, out);
}

}  // namespace weft
