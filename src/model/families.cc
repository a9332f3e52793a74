#include "model/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace weft {
namespace {

/// Collects the parameters of a model. The functions below read like the checkpoint: name, meaning, shape, cut.
class Table {
 public:
  explicit Table(const ModelConfig& config) : config_(config), h_(config.hidden) {}

  std::vector<ParamSpec> all() {
    matrix("model.embed_tokens.weight", Param::embedding, config_.vocab, h_, Cut::even_rows);
    for (layer_ = 0; layer_ < config_.layers; ++layer_) decoder_layer();
    layer_ = -1;
    vector("model.norm.weight", Param::final_norm, h_);
    if (!config_.tied_embeddings) matrix("lm_head.weight", Param::head, config_.vocab, h_, Cut::even_rows);
    return std::move(specs_);
  }

 private:
  void decoder_layer() {
    prefix_ = fmt::format("model.layers.{}.", layer_);
    vector("input_layernorm.weight", Param::input_norm, h_);
    vector("post_attention_layernorm.weight", Param::post_norm, h_);
    config_.mla ? latent_attention(*config_.mla) : grouped_query_attention();
    config_.is_sparse(layer_) ? sparse_mlp() : dense_mlp();
    prefix_.clear();
  }

  void grouped_query_attention() {
    const int64_t d = config_.head_dim, q = config_.q_heads * d, kv = config_.kv_heads * d;
    linear("self_attn.q_proj.weight", Param::q, q, h_, Cut::q_head_rows, d);
    linear("self_attn.k_proj.weight", Param::k, kv, h_, Cut::kv_head_rows, d);
    linear("self_attn.v_proj.weight", Param::v, kv, h_, Cut::kv_head_rows, d);
    linear("self_attn.o_proj.weight", Param::o, h_, q, Cut::q_head_cols, d);
    if (config_.qkv_bias) {
      vector("self_attn.q_proj.bias", Param::q_bias, q, Cut::q_head_rows, d);
      vector("self_attn.k_proj.bias", Param::k_bias, kv, Cut::kv_head_rows, d);
      vector("self_attn.v_proj.bias", Param::v_bias, kv, Cut::kv_head_rows, d);
    }
    if (config_.o_bias) vector("self_attn.o_proj.bias", Param::o_bias, h_, Cut::first_rank);
    if (config_.qk_norm) {
      vector("self_attn.q_norm.weight", Param::q_norm, d);
      vector("self_attn.k_norm.weight", Param::k_norm, d);
    }
  }

  void latent_attention(const MlaConfig& mla) {
    const int64_t qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim, up = mla.qk_nope_head_dim + mla.v_head_dim;
    const int64_t heads = config_.q_heads, lora = mla.q_lora_rank;
    if (lora > 0) {
      linear("self_attn.q_a_proj.weight", Param::q_a, lora, h_, Cut::whole);
      vector("self_attn.q_a_layernorm.weight", Param::q_a_norm, lora);
      linear("self_attn.q_b_proj.weight", Param::q_b, heads * qk, lora, Cut::q_head_rows, qk);
    } else {
      linear("self_attn.q_proj.weight", Param::q, heads * qk, h_, Cut::q_head_rows, qk);
    }
    linear("self_attn.kv_a_proj_with_mqa.weight", Param::kv_a, mla.latent_row(), h_, Cut::whole);
    vector("self_attn.kv_a_layernorm.weight", Param::kv_a_norm, mla.kv_lora_rank);
    linear("self_attn.kv_b_proj.weight", Param::kv_b, heads * up, mla.kv_lora_rank, Cut::q_head_rows, up);
    linear("self_attn.o_proj.weight", Param::o, h_, heads * mla.v_head_dim, Cut::q_head_cols, mla.v_head_dim);
  }

  void dense_mlp() {
    const int64_t i = config_.intermediate;
    linear("mlp.gate_proj.weight", Param::gate, i, h_, Cut::even_rows);
    linear("mlp.up_proj.weight", Param::up, i, h_, Cut::even_rows);
    linear("mlp.down_proj.weight", Param::down, h_, i, Cut::even_cols);
    if (config_.mlp_bias) {
      vector("mlp.gate_proj.bias", Param::gate_bias, i, Cut::even_rows);
      vector("mlp.up_proj.bias", Param::up_bias, i, Cut::even_rows);
      vector("mlp.down_proj.bias", Param::down_bias, h_, Cut::first_rank);
    }
  }

  void sparse_mlp() {
    const MoeConfig& moe = config_.moe;
    const int64_t i = moe.expert_intermediate, shared = moe.shared_intermediate;
    matrix("mlp.gate.weight", Param::router, moe.num_experts, h_, Cut::whole);
    if (moe.has_choice_bias) vector("mlp.gate.e_score_correction_bias", Param::choice_bias, moe.num_experts);
    for (expert_ = 0; expert_ < moe.num_experts; ++expert_) {
      const std::string name = fmt::format("mlp.experts.{}.", expert_);
      linear(name + "gate_proj.weight", Param::expert_gate, i, h_, Cut::even_rows);
      linear(name + "up_proj.weight", Param::expert_up, i, h_, Cut::even_rows);
      linear(name + "down_proj.weight", Param::expert_down, h_, i, Cut::even_cols);
    }
    expert_ = -1;
    if (shared == 0) return;
    linear("mlp.shared_experts.gate_proj.weight", Param::shared_gate, shared, h_, Cut::even_rows);
    linear("mlp.shared_experts.up_proj.weight", Param::shared_up, shared, h_, Cut::even_rows);
    linear("mlp.shared_experts.down_proj.weight", Param::shared_down, h_, shared, Cut::even_cols);
  }

  void vector(const std::string& name, Param param, int64_t n, Cut cut = Cut::whole, int64_t unit = 1) {
    specs_.push_back({prefix_ + name, param, layer_, expert_, {n}, cut, unit, false});
  }
  void matrix(const std::string& name, Param param, int64_t out, int64_t in, Cut cut) {
    specs_.push_back({prefix_ + name, param, layer_, expert_, {out, in}, cut, 1, false});
  }
  /// A projection: what block-scaled fp8 checkpoints store in fp8.
  void linear(const std::string& name, Param param, int64_t out, int64_t in, Cut cut, int64_t unit = 1) {
    specs_.push_back({prefix_ + name, param, layer_, expert_, {out, in}, cut, unit, config_.block_fp8.has_value()});
  }

  const ModelConfig& config_;
  int64_t h_;
  int layer_ = -1, expert_ = -1;
  std::string prefix_;
  std::vector<ParamSpec> specs_;
};

/// The N of "model.layers.N.anything".
std::optional<int> layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  int layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc{} || layer < 0 || end == name.data() + name.size() || *end != '.') return {};
  return layer;
}

}  // namespace

std::vector<ParamSpec> parameters(const ModelConfig& config) { return Table(config).all(); }

KvScaleNames kv_scale_names(int layer) {
  const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
  const auto names = [&](char which) -> std::vector<std::string> {
    return {fmt::format("{}{}_scale", attention, which), fmt::format("{}attn.{}_scale", attention, which),
            fmt::format("{}{}_proj.{}_scale", attention, which, which),
            fmt::format("{}{}_proj.output_scale", attention, which)};
  };
  return {.k = names('k'), .v = names('v'), .both = {attention + "kv_scale", attention + "attn.kv_scale"}};
}

bool is_known_extra(const ModelConfig& config, const std::string& name) {
  for (const char* ending : {".rotary_emb.inv_freq", "attn.q_scale", "attn.prob_scale", "q_proj.q_scale"}) {
    if (name.ends_with(ending)) return true;
  }
  if (config.tied_embeddings && name == "lm_head.weight") return true;
  const std::optional<int> layer = layer_of(name);
  if (!layer || *layer < config.layers) return false;
  if (*layer < config.stored_layers) return true;
  // Draft layers follow the model's own. Some repackaged files carry one that their config does not announce.
  const bool has_drafts = config.architecture == Architecture::glm4_moe || config.architecture == Architecture::deepseek_v3;
  return has_drafts && *layer < config.stored_layers + std::max(1, config.mtp_layers);
}

}  // namespace weft
