#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "exchange/exchange.h"
#include "layout/rank_grid.h"
#include "model/config.h"

namespace weft {

/// The largest step that a model is built for. All buffers follow from these; larger plans are our bug.
struct StepLimits {
  DType dtype = DType::bf16;  ///< compute dtype
  int64_t rows = 0;           ///< T: --max-num-batched-tokens
  int64_t sequences = 0;      ///< table slots: --max-num-seqs
  int64_t blocks_per_sequence = 0;
  int64_t query_rows = 0;    ///< rows of one query exchange; longer runs go in pieces
  int64_t context_rows = 0;  ///< rows of one rank in one context gather
  int64_t expert_rows = 0;   ///< rows routed at once
  int64_t logit_rows = 0;    ///< logit rows computed at once
  bool invariant = false;    ///< attention to the cache gives a row the same bits whatever the other rows are

  /// Sampling rows of a step: each row may be a logit row, and a prompt's last one is so for each of its choices.
  int64_t sampling_rows() const { return rows + sequences; }
};

/// Queries cross in pieces of this many rows: at 128 heads of 576 + 2 x 512 bf16 elements about 210 MB of exchange buffers,
/// small beside the KV memory of a rank, and long enough that one exchange is bound by bytes rather than by latency.
constexpr int64_t kQueryRows = 512;
/// Rows of all ranks that one context gather receives, where the user sets no other bound.
constexpr int64_t kContextGatherRows = 4096;
/// Rows that run through the experts at once: bounds the [rows * top_k, hidden] buffer.
constexpr int64_t kExpertRows = 1024;
/// Logit rows at once: 256 rows of a 150k vocabulary are 155 MB.
constexpr int64_t kLogitRows = 256;

inline ExchangeLimits exchange_limits(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits) {
  return {.dtype = limits.dtype,
          .query_rows = limits.query_rows,
          .heads = grid.rank_q_heads(),
          .query_dim = config.k_dim(),
          .partial_dim = config.v_dim(),
          .context_rows = limits.context_rows,
          .context_row_dim = config.mla ? config.k_dim() : int64_t{grid.rank_kv_heads()} * (config.k_dim() + config.v_dim())};
}

}  // namespace weft
