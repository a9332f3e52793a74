#include "engine/config_text.h"

#include <fmt/format.h>

#include <sstream>

#include "base/check.h"

namespace weft {
namespace {

template <typename Config, typename Visit>
void for_each_number(Config& config, Visit visit) {
  visit("tensor_parallel_size", config.tensor_parallel_size);
  visit("decode_context_parallel_size", config.decode_context_parallel_size);
  visit("cp_kv_cache_interleave_size", config.cp_kv_cache_interleave_size);
  visit("block_size", config.block_size);
  visit("kv_cache_dtype", config.kv_cache_dtype);
  visit("dtype", config.dtype);
  visit("max_model_len", config.max_model_len);
  visit("max_num_seqs", config.max_num_seqs);
  visit("max_num_batched_tokens", config.max_num_batched_tokens);
  visit("kv_cache_memory_bytes", config.kv_cache_memory_bytes);
  visit("num_gpu_blocks_override", config.num_gpu_blocks_override);
  visit("load_format", config.load_format);
  visit("num_layers", config.num_layers);
  visit("device", config.device);
  visit("threads", config.threads);
  visit("seed", config.seed);
  visit("dcp_exchange", config.dcp_exchange);
  visit("enable_prefix_caching", config.enable_prefix_caching);
  visit("batch_invariant", config.batch_invariant);
  visit("tpot_target_ms", config.tpot_target_ms);
  visit("max_queued_requests", config.max_queued_requests);
  visit("max_queued_tokens", config.max_queued_tokens);
  visit("memory_per_rank", config.memory_per_rank);
  visit("kv_cache_scale", config.kv_cache_scale);
  visit("context_gather_tokens", config.context_gather_tokens);
}

}  // namespace

std::string to_text(const EngineConfig& config) {
  std::string text = fmt::format("model_dir {}\n", config.model_dir.string());
  for_each_number(config, [&]<typename T>(const char* name, const T& value) {
    if constexpr (std::is_enum_v<T>)
      text += fmt::format("{} {}\n", name, static_cast<int>(value));
    else
      text += fmt::format("{} {}\n", name, static_cast<std::conditional_t<std::is_same_v<T, bool>, int, T>>(value));
  });
  return text;
}

EngineConfig config_from_text(const std::string& text) {
  EngineConfig config;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    bool known = name == "model_dir";
    if (known) config.model_dir = rest;
    for_each_number(config, [&]<typename T>(const char* field, T& value) {
      if (name != field) return;
      std::istringstream in(rest);
      if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
        int number = 0;
        known = static_cast<bool>(in >> number);
        value = static_cast<T>(number);
      } else {
        known = static_cast<bool>(in >> value);
      }
    });
    if (!known) throw SystemError("not a line of an engine configuration: {}", line);
  }
  return config;
}

}  // namespace weft
