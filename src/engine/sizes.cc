#include "engine/sizes.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/bytes.h"
#include "comm/thread_group.h"
#include "exchange/collective_exchange.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

/// KV memory of all ranks together where the user names none.
constexpr int64_t kDefaultKvBytes = int64_t{4} << 30;

void require_positive(const char* flag, int64_t value) {
  if (value < 1) throw UserError("{} must be at least 1: got {}", flag, value);
}

DType resolve_dtype(const ModelConfig& model, const EngineConfig& config) {
  switch (config.dtype) {
    case ComputeDType::f32:
      return DType::f32;
    case ComputeDType::bf16:
      return DType::bf16;
    case ComputeDType::automatic:
      break;
  }
  return model.stored_dtype == DType::f32 ? DType::f32 : DType::bf16;
}

struct KvElements {
  DType dtype = DType::bf16;
  KvFormat format = KvFormat::elements;
};

/// As --kv-cache-dtype spells it.
std::string name_of(const KvElements& kv) {
  if (kv.format == KvFormat::fp8_ds_mla) return "fp8_ds_mla";
  return kv.dtype == DType::f8_e4m3 ? "fp8_e4m3" : to_string(kv.dtype);
}

KvElements resolve_kv(const ModelConfig& model, const EngineConfig& config, DType dtype) {
  const auto scale = static_cast<float>(config.kv_cache_scale);
  if (config.kv_cache_scale != 0 && (!std::isfinite(scale) || scale <= 0))
    throw UserError("--kv-cache-scale must be a positive number: got {}", config.kv_cache_scale);
  if (scale != 0 && config.kv_cache_dtype != KvCacheDType::fp8)
    throw UserError("--kv-cache-scale {} needs --kv-cache-dtype fp8", config.kv_cache_scale);
  switch (config.kv_cache_dtype) {
    case KvCacheDType::automatic:
      break;
    case KvCacheDType::bf16:
      if (dtype == DType::bf16) break;
      throw UserError("--kv-cache-dtype bfloat16 needs --dtype bfloat16: the dtype is {}; use --kv-cache-dtype auto",
                      to_string(dtype));
    case KvCacheDType::fp8:
      return {.dtype = DType::f8_e4m3};
    case KvCacheDType::fp8_ds_mla:
      if (!model.mla)
        throw UserError(
            "--kv-cache-dtype fp8_ds_mla is for latent attention, which this model lacks; use --kv-cache-dtype fp8");
      if (model.mla->kv_lora_rank % kLatentScaleGroup != 0) {
        throw UserError(
            "--kv-cache-dtype fp8_ds_mla needs a kv_lora_rank that is a multiple of {}: it is {}; use --kv-cache-dtype fp8 or "
            "auto",
            kLatentScaleGroup, model.mla->kv_lora_rank);
      }
      return {.dtype = DType::f8_e4m3, .format = KvFormat::fp8_ds_mla};
  }
  return {.dtype = dtype};
}

/// Memory that this machine can still give away, in bytes.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    int64_t kib = 0;
    if (!(file >> kib)) break;
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE) / 2;
}

/// The most blocks of a pool: a step plan holds block ids and rows of whole virtual blocks as int32, and bytes are int64.
int64_t most_blocks(const KvShape& shape) {
  return std::min(int64_t{INT32_MAX} / shape.layout.virtual_tokens(), INT64_MAX / shape.block_bytes());
}

/// KV memory per rank where the flags leave it open: no more than max_num_seqs sequences of full length could use.
int64_t default_kv_bytes(const EngineConfig& config, const KvShape& shape, int64_t max_len) {
  const int64_t total = std::min(kDefaultKvBytes, available_memory() / 2);
  const int64_t useful =
      shape.block_bytes() * std::min(most_blocks(shape), shape.layout.blocks_for(max_len) * config.max_num_seqs);
  return std::min(total / config.tensor_parallel_size, useful);
}

/// Even cuts give the first ranks one more, and biases that are added once are rank 0's: no rank has more than rank 0.
int64_t largest_weights(const ModelConfig& model, const RankGrid& grid, DType dtype, Ops& ops) {
  return static_cast<int64_t>(weight_bytes(model, grid, {.dtype = dtype, .tp_rank = 0}, ops));
}

/// What a user can do who wants longer sequences: more memory, or more ranks a sequence where these heads allow it.
std::string ways_to_more_tokens(const ModelConfig& model, const RankGrid& grid) {
  const std::vector<int> legal = RankGrid::legal_dcp(model.q_heads, model.grid_kv_heads(), grid.tp());
  std::string text = "lower --max-model-len, or raise --kv-cache-memory-bytes";
  if (legal.back() > grid.dcp()) text += " or --decode-context-parallel-size, here up to " + std::to_string(legal.back());
  return text;
}

int64_t workspace_of(const ModelConfig& model, const RankGrid& grid, const StepLimits& limits, int block_tokens, Ops& ops) {
  ThreadGroup alone(1);  // a Decoder is measured without peers: its sizes depend on the grid only
  const auto dcp = alone.join(0);
  ThreadGroup alone_too(1);
  const auto tp = alone_too.join(0);
  CollectiveExchange exchange(*dcp, *tp, ops, {});
  size_t scratch = 0;
  for (const AttentionLimits& attention : attention_limits(model, grid, limits, block_tokens))
    scratch = std::max(scratch, ops.reserved_bytes(attention));
  return static_cast<int64_t>(Decoder::workspace_bytes(model, grid, limits, ops, exchange) + scratch);
}

}  // namespace

ResolvedConfig resolve(const ModelConfig& model, const EngineConfig& config, Ops& ops) {
  require_positive("--max-num-seqs", config.max_num_seqs);
  require_positive("--max-num-batched-tokens", config.max_num_batched_tokens);
  if (config.memory_per_rank > 0 && config.kv_cache_memory_bytes > 0)
    throw UserError("--memory-per-rank and --kv-cache-memory-bytes both say how much KV there is: give one of them");
  const RankGrid grid({.tp = config.tensor_parallel_size,
                       .dcp = config.decode_context_parallel_size,
                       .q_heads = model.q_heads,
                       .kv_heads = model.grid_kv_heads(),
                       .interleave = config.cp_kv_cache_interleave_size,
                       .block_tokens = config.block_size});
  const DType dtype = resolve_dtype(model, config);
  const KvElements kv = resolve_kv(model, config, dtype);
  if (config.max_model_len > model.max_positions)
    throw UserError("--max-model-len is more than the model's max_position_embeddings: {} > {}", config.max_model_len,
                    model.max_positions);

  const int64_t longest = config.max_model_len > 0 ? config.max_model_len : model.max_positions;
  const KvShape shape{.layout = {.shard = grid.shard(), .block_tokens = config.block_size},
                      .kv_heads = grid.rank_kv_heads(),
                      .k_dim = model.k_dim(),
                      .v_dim = model.v_dim(),
                      .latent = model.mla.has_value(),
                      .dtype = kv.dtype,
                      .format = kv.format,
                      .scale = static_cast<float>(config.kv_cache_scale),
                      .first_layer = 0,
                      .last_layer = model.layers,
                      .extra_planes = {}};
  const int64_t rows = config.max_num_batched_tokens;
  const int64_t gather = config.context_gather_tokens > 0 ? config.context_gather_tokens : kContextGatherRows;
  const StepLimits limits{.dtype = dtype,
                          .rows = rows,
                          .sequences = std::min<int64_t>(config.max_num_seqs, rows),
                          .blocks_per_sequence = shape.layout.blocks_for(longest),
                          .query_rows = std::min(rows, kQueryRows),
                          .context_rows = std::max<int64_t>(1, gather / grid.dcp()),
                          .expert_rows = std::min(rows, kExpertRows),
                          .logit_rows = std::min(rows, kLogitRows),
                          .invariant = config.batch_invariant};

  EngineSizes sizes{.weight_bytes = largest_weights(model, grid, dtype, ops),
                    .workspace_bytes = workspace_of(model, grid, limits, config.block_size, ops),
                    .exchange_bytes = static_cast<int64_t>(exchange_limits(model, grid, limits).bytes(grid.dcp())),
                    .kv_bytes = 0,
                    .kv_bytes_per_token = shape.token_bytes(),
                    .capacity = {},
                    .max_model_len = 0,
                    .max_num_seqs = limits.sequences,
                    .dtype = dtype,
                    .kv_dtype = name_of(kv),
                    .instruction_set = cpu_instruction_set()};
  if (config.num_gpu_blocks_override > most_blocks(shape)) {
    throw UserError("--num-gpu-blocks-override must be at most {} for blocks of {} tokens: got {}", most_blocks(shape),
                    shape.layout.virtual_tokens(), config.num_gpu_blocks_override);
  }
  if (config.num_gpu_blocks_override > 0) {
    sizes.capacity = KvCapacity::from_blocks(shape, config.num_gpu_blocks_override);
  } else {
    const int64_t taken = sizes.weight_bytes + sizes.workspace_bytes + sizes.exchange_bytes;
    const int64_t kv_bytes = config.memory_per_rank > 0         ? config.memory_per_rank - taken
                             : config.kv_cache_memory_bytes > 0 ? config.kv_cache_memory_bytes
                                                                : default_kv_bytes(config, shape, longest);
    if (kv_bytes < shape.block_bytes()) {
      throw UserError(
          "no room for KV: a rank has {} left for it, and one block of {} tokens takes {}; weights take {}, workspaces {}, "
          "exchange buffers {}",
          exact_bytes(std::max<int64_t>(kv_bytes, 0)), shape.layout.virtual_tokens(), exact_bytes(shape.block_bytes()),
          readable_bytes(sizes.weight_bytes), readable_bytes(sizes.workspace_bytes), readable_bytes(sizes.exchange_bytes));
    }
    sizes.capacity = KvCapacity::from_bytes(shape, std::min(kv_bytes, most_blocks(shape) * shape.block_bytes()));
  }
  sizes.kv_bytes = sizes.capacity.blocks * shape.block_bytes();
  const int64_t used = sizes.weight_bytes + sizes.workspace_bytes + sizes.exchange_bytes + sizes.kv_bytes;
  if (config.memory_per_rank > 0 && used > config.memory_per_rank) {
    throw UserError(
        "--num-gpu-blocks-override does not fit --memory-per-rank: {} blocks and the rest need {} a rank, there are {}",
        sizes.capacity.blocks, exact_bytes(used), exact_bytes(config.memory_per_rank));
  }
  if (config.max_model_len > sizes.capacity.tokens) {
    throw UserError("--max-model-len does not fit in the KV memory: {} tokens need {} a rank, there are {} for {} tokens; {}",
                    config.max_model_len, exact_bytes(shape.layout.blocks_for(config.max_model_len) * shape.block_bytes()),
                    exact_bytes(sizes.kv_bytes), sizes.capacity.tokens, ways_to_more_tokens(model, grid));
  }
  sizes.max_model_len = std::min(longest, sizes.capacity.tokens);
  return {.grid = grid, .limits = limits, .shape = shape, .sizes = sizes};
}

PlanBuilder::Options plan_options(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved) {
  return {.layout = resolved.shape.layout,
          .exchange = config.dcp_exchange,
          .element_bytes = static_cast<int>(size_of(resolved.limits.dtype)),
          .context_row_bytes = resolved.shape.row_bytes(),
          .context_rows = resolved.limits.context_rows,
          .first_layer = 0,
          .last_layer = model.layers};
}

void require_memory(const ResolvedConfig& resolved) {
  const EngineSizes& sizes = resolved.sizes;
  const int64_t tp = resolved.grid.tp(), available = available_memory();
  const int64_t rank = sizes.weight_bytes + sizes.workspace_bytes + sizes.exchange_bytes + sizes.kv_bytes;
  if (rank <= available / tp) return;
  throw UserError(
      "this machine has not enough memory: {} ranks of {} (weights {}, workspaces {}, exchange buffers {}, KV {}), and {} "
      "available; lower --memory-per-rank, --kv-cache-memory-bytes, --max-num-batched-tokens or --num-gpu-blocks-override",
      tp, exact_bytes(rank), readable_bytes(sizes.weight_bytes), readable_bytes(sizes.workspace_bytes),
      readable_bytes(sizes.exchange_bytes), readable_bytes(sizes.kv_bytes), exact_bytes(available));
}

EngineSizes engine_sizes(const ModelConfig& model, const EngineConfig& config) {
  const auto ops = make_cpu_ops(1);
  return resolve(model, config, *ops).sizes;
}

}  // namespace weft
