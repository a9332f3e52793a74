#include "server/backend.h"

namespace weft {

EngineBackend::EngineBackend(Engine& engine) : engine_(engine) {
  const EngineSizes& sizes = engine.sizes();
  const EngineConfig& config = engine.config();
  info_ = {.architecture = to_string(engine.model().architecture),
           .dtype = to_string(sizes.dtype),
           .kv_dtype = sizes.kv_dtype,
           .vocab = engine.model().vocab,
           .max_model_len = sizes.max_model_len,
           .capacity_tokens = sizes.capacity.tokens,
           .blocks = sizes.capacity.blocks,
           .block_tokens = sizes.capacity.blocks > 0 ? sizes.capacity.tokens / sizes.capacity.blocks : 0,
           .tp = engine.grid().tp(),
           .dcp = engine.grid().dcp(),
           .interleave = config.cp_kv_cache_interleave_size,
           .block_size = config.block_size,
           .prefix_caching = config.enable_prefix_caching,
           .rank_bytes = {.weights = sizes.weight_bytes,
                          .workspaces = sizes.workspace_bytes,
                          .exchange = sizes.exchange_bytes,
                          .kv = sizes.kv_bytes},
           .max_num_seqs = sizes.max_num_seqs,
           .max_queued_requests = config.max_queued_requests,
           .max_queued_tokens = config.max_queued_tokens,
           .processes = engine.grid().tp() / static_cast<int>(engine.metrics().exchange.size()),
           .instruction_set = sizes.instruction_set};
}

std::vector<int64_t> EngineBackend::tokens_per_rank(int64_t tokens) const {
  std::vector<int64_t> out;
  for (int rank = 0; rank < info_.dcp; ++rank) out.push_back(engine_.grid().shard().local_count(tokens, rank));
  return out;
}

}  // namespace weft
