#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/config.h"

namespace weft {

enum class LoadFormat : uint8_t { automatic, safetensors, dummy };
enum class DcpExchange : uint8_t { automatic, queries, keys };
/// fp8 is e4m3: of MLA 576 bytes a row, scaled per layer; fp8_ds_mla is the 656-byte MLA row with its scales in it.
enum class KvCacheDType : uint8_t { automatic, bf16, fp8, fp8_ds_mla };
enum class ComputeDType : uint8_t { automatic, bf16, f32 };
enum class Device : uint8_t { automatic, cpu };

/// What the user asks for: one field per engine flag, 0 or `automatic` where Weft chooses. tools/flags.cc documents each.
struct EngineConfig {
  std::filesystem::path model_dir;
  int tensor_parallel_size = 1;
  int decode_context_parallel_size = 1;
  int cp_kv_cache_interleave_size = 1;
  int block_size = 16;
  KvCacheDType kv_cache_dtype = KvCacheDType::automatic;
  ComputeDType dtype = ComputeDType::automatic;
  int64_t max_model_len = 0;  ///< 0: the model's, or what the KV memory holds if that is less
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  int64_t kv_cache_memory_bytes = 0;    ///< per rank; 0: chosen from the machine's memory
  int64_t num_gpu_blocks_override = 0;  ///< 0: from the memory
  LoadFormat load_format = LoadFormat::automatic;
  int num_layers = 0;  ///< 0: all
  Device device = Device::automatic;
  int threads = 0;  ///< of all ranks together; 0: the cores this process may use
  uint64_t seed = 0;
  DcpExchange dcp_exchange = DcpExchange::automatic;
  bool enable_prefix_caching = true;
  bool batch_invariant = false;    ///< the same bits for a request whatever runs beside it and whatever was cached
  double tpot_target_ms = 0;       ///< prefill chunks are sized so that steps with decodes take no longer; 0: no target
  int max_queued_requests = 1024;  ///< waiting for admission; one more is refused
  int64_t max_queued_tokens = 0;   ///< prompt tokens of those; 0: no bound of their own
  int64_t memory_per_rank = 0;     ///< budget for weights, workspaces, exchange buffers and KV together; 0: KV as the flags say
  double kv_cache_scale = 0;       ///< fp8: scale of every layer instead of the checkpoint's; 0: the checkpoint's, else 1
  std::vector<int32_t> end_tokens = {};  ///< that end an answer beside the model's own, such as the tokenizer's
  int64_t context_gather_tokens = 0;     ///< bound on the rows that one context gather receives; 0: chosen
};

}  // namespace weft
