#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "engine/engine.h"
#include "tools/commands.h"

namespace weft {
void run_inspect(const Invocation& invocation) {
  const EngineConfig& config = invocation.engine;
  const ModelConfig model = load_config(config.model_dir, config.num_layers);
  const EngineSizes sizes = engine_sizes(model, config);
  const int heads = model.q_heads, kv_heads = model.grid_kv_heads(), tp = config.tensor_parallel_size;
  const std::vector<int> legal_tp = RankGrid::legal_tp(heads, kv_heads, heads);
  const std::vector<int> legal_dcp = RankGrid::legal_dcp(heads, kv_heads, tp);

  if (invocation.has("json")) {
    nlohmann::ordered_json out;
    out["architecture"] = to_string(model.architecture);
    out["layers"] = model.layers;
    out["hidden_size"] = model.hidden;
    out["attention_heads"] = heads;
    out["kv_heads"] = kv_heads;
    out["vocab_size"] = model.vocab;
    out["max_position_embeddings"] = model.max_positions;
    out["dtype"] = to_string(sizes.dtype);
    out["kv_cache_dtype"] = sizes.kv_dtype;
    out["tensor_parallel_size"] = tp;
    out["decode_context_parallel_size"] = config.decode_context_parallel_size;
    out["cp_kv_cache_interleave_size"] = config.cp_kv_cache_interleave_size;
    out["block_size"] = config.block_size;
    out["weight_bytes_per_rank"] = sizes.weight_bytes;
    out["workspace_bytes_per_rank"] = sizes.workspace_bytes;
    out["exchange_bytes_per_rank"] = sizes.exchange_bytes;
    out["kv_bytes_per_rank"] = sizes.kv_bytes;
    out["kv_bytes_per_token_per_rank"] = sizes.kv_bytes_per_token;
    out["capacity_blocks"] = sizes.capacity.blocks;
    out["capacity_tokens"] = sizes.capacity.tokens;
    out["max_model_len"] = sizes.max_model_len;
    out["max_num_seqs"] = sizes.max_num_seqs;
    out["legal_tensor_parallel_sizes"] = legal_tp;
    out["legal_decode_context_parallel_sizes"] = legal_dcp;
    std::puts(out.dump(2).c_str());
    return;
  }
  std::string text =
      fmt::format("{}: {} layers, hidden {}, {} query heads over {} KV {}, vocabulary {}\n", to_string(model.architecture),
                  model.layers, model.hidden, heads, kv_heads, kv_heads == 1 ? "head" : "heads", model.vocab);
  text += fmt::format("tp {}, dcp {}: with these heads tp may be {}, and dcp at this tp {}\n", tp,
                      config.decode_context_parallel_size, fmt::join(legal_tp, ", "), fmt::join(legal_dcp, ", "));
  text += fmt::format("\nper rank, {}:\n", to_string(sizes.dtype));
  for (const auto& [name, bytes] : {std::pair{"weights", sizes.weight_bytes}, std::pair{"workspaces", sizes.workspace_bytes},
                                    std::pair{"exchange buffers", sizes.exchange_bytes}, std::pair{"KV cache", sizes.kv_bytes}})
    text += fmt::format("  {:18}{:>12}\n", name, readable_bytes(bytes));
  text += fmt::format("  {:18}{:>10.0f} B\n", "KV of a token", sizes.kv_bytes_per_token);
  text += fmt::format("\nroom for {} tokens in {} blocks; longest request {}\n", sizes.capacity.tokens, sizes.capacity.blocks,
                      sizes.max_model_len);
  std::fputs(text.c_str(), stdout);
}

}  // namespace weft
