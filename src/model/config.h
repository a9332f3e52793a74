#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ops/ops.h"

namespace weft {

enum class Architecture : uint8_t { llama, qwen2, qwen3, qwen3_moe, glm4_moe, deepseek_v2, deepseek_v3 };
/// The Hugging Face class name, e.g. "LlamaForCausalLM".
const char* to_string(Architecture architecture);

/// Rotary embedding of a model, from either spelling of config.json (rope_theta + rope_scaling, or rope_parameters).
struct RopeConfig {
  enum class Kind : uint8_t { plain, llama3, yarn };
  Kind kind = Kind::plain;
  double theta = 10000;
  int rotary = 0;            ///< elements of a head that turn; the first ones
  bool interleaved = false;  ///< pairs (2i, 2i+1) instead of (i, i + rotary/2)
  double factor = 1;
  int64_t original_max_positions = 0;
  double low_freq_factor = 1, high_freq_factor = 4;                      // llama3
  double beta_fast = 32, beta_slow = 1, mscale = 1, mscale_all_dim = 0;  // yarn
  std::optional<double> attention_factor;                                // yarn, where given outright

  /// Radians per position of pair i: rotary / 2 values.
  std::vector<double> inv_freq() const;
  /// What cos and sin are multiplied by.
  double cos_factor() const;
  /// What the softmax scale of latent attention is multiplied by: mscale^2 under yarn with mscale_all_dim, else 1.
  double softmax_factor() const;
};

/// Multi-head latent attention.
struct MlaConfig {
  int q_lora_rank = 0;  ///< 0: queries come straight from the hidden state
  int kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  int latent_row() const { return kv_lora_rank + qk_rope_head_dim; }
};

struct MoeConfig {
  int num_experts = 0;  ///< 0: a dense model
  int expert_intermediate = 0;
  int shared_intermediate = 0;  ///< all shared experts side by side; 0: none
  int first_dense_layers = 0;
  int layer_step = 1;             ///< a layer is sparse if (layer + 1) % step == 0, from first_dense_layers on
  std::vector<int> dense_layers;  ///< mlp_only_layers
  Routing routing;                ///< bias is per layer and set by the model
  bool has_choice_bias = false;
};

/// Weights stored as float8_e4m3 with one scale per 128x128 tile.
struct BlockFp8Config {
  int rows = 128, cols = 128;
};

/// One decoder with variations: everything that Weft knows of a checkpoint's shape.
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::string model_type;
  int hidden = 0, layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  int stored_layers = 0;  ///< num_hidden_layers of the checkpoint; `layers` is less where the caller cut some off
  int64_t vocab = 0, max_positions = 0;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  DType stored_dtype = DType::bf16;  ///< torch_dtype / dtype
  RopeConfig rope;
  std::optional<MlaConfig> mla;
  MoeConfig moe;
  std::optional<BlockFp8Config> block_fp8;
  int mtp_layers = 0;  ///< num_nextn_predict_layers; their weights are known extras while drafts are off
  std::vector<int32_t> eos_ids;

  bool is_sparse(int layer) const;
  /// KV heads as the rank grid counts them: 1 for MLA.
  int grid_kv_heads() const { return mla ? 1 : kv_heads; }
  /// softmax(q.k * scale).
  float softmax_scale() const;
  /// Elements of one key and one value row of one KV head in the cache.
  int k_dim() const { return mla ? mla->latent_row() : head_dim; }
  int v_dim() const { return mla ? mla->kv_lora_rank : head_dim; }
};

/// Reads `text`, the content of a config.json; `path` is for messages. `num_layers` > 0 keeps only the first layers.
/// Throws UserError, one line, for anything that is missing, out of range, of the wrong type, or not supported.
ModelConfig parse_config(std::string_view text, const std::filesystem::path& path, int num_layers = 0);
/// Reads MODEL_DIR/config.json, and the eos_token_id of generation_config.json, if there is one: the files of many models
/// disagree, and a token that any of them names ends an answer. At most 1 MiB each.
ModelConfig load_config(const std::filesystem::path& model_dir, int num_layers = 0);

}  // namespace weft
