#pragma once

#include <cstdint>

#include "layout/rank_grid.h"
#include "model/config.h"
#include "model/step_plan.h"

namespace weft {

/// Moving one byte between ranks costs as much as this many floating point operations. Memory copies of a CPU with two cores:
/// about 10 GB/s beside 200 GFLOP/s.
constexpr double kFlopsPerExchangedByte = 20;

/// How `chunk` prefill rows should see `context` cached tokens: the cheaper of moving queries and partials to the keys, and of
/// moving keys to the queries. A pure function of numbers that are equal on all ranks.
///
/// Bytes: queries cost chunk * Hg * (Dk + Dv) elements and an lse, Hg being the query heads of the group; keys cost a row per
/// context token as it is stored: `row_bytes`, or as many elements as it has where this is 0. In MLA the arithmetic differs
/// too: by queries, a head reads latents of Dk + Dv elements; by keys, it reads keys and values of the heads' own size, but
/// each context row must first be up-projected for them.
inline ContextVia choose_context(const ModelConfig& config, const RankGrid& grid, int element_bytes, int64_t context,
                                 int64_t chunk, int64_t row_bytes = 0) {
  if (context == 0) return ContextVia::none;
  const double heads = grid.rank_q_heads(), group_heads = grid.group_q_heads(), w = grid.dcp();
  const double c = static_cast<double>(context), t = static_cast<double>(chunk);
  const double dk = config.k_dim(), dv = config.v_dim(), moved = (w - 1) / w;
  const double elements = config.mla ? dk : grid.rank_kv_heads() * (dk + dv);
  const double row = row_bytes > 0 ? static_cast<double>(row_bytes) : elements * element_bytes;
  const double query_bytes = t * group_heads * ((dk + dv) * element_bytes + 4) * moved;
  const double key_bytes = c * row * moved;
  double query_flops = 0, key_flops = 0;
  if (config.mla) {
    const MlaConfig& mla = *config.mla;
    const double own_dims = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim;
    const double up_projected = mla.qk_nope_head_dim + mla.v_head_dim;
    query_flops = 2 * t * heads * (c * (dk + dv) + up_projected * mla.kv_lora_rank);
    key_flops = 2 * c * heads * (t * own_dims + up_projected * mla.kv_lora_rank);
  } else if (grid.dcp() == 1) {
    return ContextVia::queries;  // The keys are here already.
  }
  return query_flops + kFlopsPerExchangedByte * query_bytes <= key_flops + kFlopsPerExchangedByte * key_bytes
             ? ContextVia::queries
             : ContextVia::keys;
}

}  // namespace weft
