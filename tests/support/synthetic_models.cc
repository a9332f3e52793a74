#include "support/synthetic_models.h"

namespace weft::test {
namespace {

using Json = nlohmann::json;

// Neither 2, 3, 4, 6 nor 8 ranks share these evenly, so that parts differ in size and collectives are padded.
constexpr int kVocab = 131, kHidden = 72, kIntermediate = 101, kExpertIntermediate = 29;

Json common(const char* architecture, const char* type, int heads) {
  return {{"architectures", {architecture}},
          {"model_type", type},
          {"torch_dtype", "bfloat16"},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"vocab_size", kVocab},
          {"hidden_size", kHidden},
          {"intermediate_size", kIntermediate},
          {"num_hidden_layers", 2},
          {"num_attention_heads", heads},
          {"max_position_embeddings", 4096},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"eos_token_id", 1}};
}

Json with(Json base, const Json& more) {
  base.update(more);
  return base;
}

Json grouped(const char* architecture, const char* type, int heads, int kv_heads, const Json& more) {
  return with(with(common(architecture, type, heads), {{"num_key_value_heads", kv_heads}, {"head_dim", 16}}), more);
}

Json latent(const char* architecture, const char* type, int heads, const Json& more) {
  const Json mla = {
      {"num_key_value_heads", heads}, {"kv_lora_rank", 40},         {"qk_nope_head_dim", 16},
      {"qk_rope_head_dim", 8},        {"v_head_dim", 24},           {"q_lora_rank", 36},
      {"n_routed_experts", 12},       {"num_experts_per_tok", 3},   {"moe_intermediate_size", kExpertIntermediate},
      {"n_shared_experts", 1},        {"first_k_dense_replace", 1}, {"moe_layer_freq", 1}};
  return with(with(common(architecture, type, heads), mla), more);
}

/// DeepSeek-V3's routing, which GLM-4 shares.
Json sigmoid_routing() {
  return {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},   {"norm_topk_prob", true}, {"n_group", 4},
          {"topk_group", 2},           {"routed_scaling_factor", 2.5}};
}

Json yarn() {
  return {{"rope_scaling",
           {{"type", "yarn"},
            {"factor", 4},
            {"original_max_position_embeddings", 64},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 0.707}}}};
}

}  // namespace

std::vector<SyntheticModel> synthetic_models() {
  std::vector<SyntheticModel> models;
  const auto add = [&](const char* name, Json config, int q_heads, int kv_heads) {
    models.push_back({.name = name, .config = std::move(config), .heads = {.q_heads = q_heads, .kv_heads = kv_heads}});
  };
  const Json llama3 = {{"rope_scaling",
                        {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 64}}}};
  add("llama_24_over_1", grouped("LlamaForCausalLM", "llama", 24, 1, llama3), 24, 1);
  add("llama_8_over_1", grouped("LlamaForCausalLM", "llama", 8, 1, {{"attention_bias", true}, {"mlp_bias", true}}), 8, 1);
  add("qwen2_24_over_2", grouped("Qwen2ForCausalLM", "qwen2", 24, 2, {{"tie_word_embeddings", true}}), 24, 2);
  add("qwen2_8_over_1", grouped("Qwen2ForCausalLM", "qwen2", 8, 1, Json::object()), 8, 1);
  add("qwen3_24_over_1", grouped("Qwen3ForCausalLM", "qwen3", 24, 1, Json::object()), 24, 1);
  add("qwen3_moe_24_over_1",
      grouped("Qwen3MoeForCausalLM", "qwen3_moe", 24, 1,
              {{"num_experts", 10},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", kExpertIntermediate},
               {"norm_topk_prob", true},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", {0}}}),
      24, 1);
  add("glm4_moe_24_over_1",
      grouped("Glm4MoeForCausalLM", "glm4_moe", 24, 1,
              with(sigmoid_routing(), {{"attention_bias", true},
                                       {"use_qk_norm", true},
                                       {"partial_rotary_factor", 0.5},
                                       {"n_routed_experts", 12},
                                       {"num_experts_per_tok", 3},
                                       {"moe_intermediate_size", kExpertIntermediate},
                                       {"n_shared_experts", 1},
                                       {"first_k_dense_replace", 1}})),
      24, 1);
  add("glm4_moe_8_over_1",
      grouped("Glm4MoeForCausalLM", "glm4_moe", 8, 1,
              with(sigmoid_routing(), {{"use_qk_norm", false},
                                       {"partial_rotary_factor", 0.5},
                                       {"n_routed_experts", 8},
                                       {"num_experts_per_tok", 2},
                                       {"n_group", 1},
                                       {"topk_group", 1},
                                       {"moe_intermediate_size", kExpertIntermediate},
                                       {"n_shared_experts", 2},
                                       {"first_k_dense_replace", 1}})),
      8, 1);
  add("deepseek_v2_24_heads",
      latent("DeepseekV2ForCausalLM", "deepseek_v2", 24,
             with(yarn(), {{"q_lora_rank", nullptr},
                           {"scoring_func", "softmax"},
                           {"topk_method", "group_limited_greedy"},
                           {"norm_topk_prob", false},
                           {"n_group", 3},
                           {"topk_group", 2},
                           {"n_shared_experts", 2},
                           {"routed_scaling_factor", 4.0}})),
      24, 1);
  add("deepseek_v3_24_heads", latent("DeepseekV3ForCausalLM", "deepseek_v3", 24, with(sigmoid_routing(), yarn())), 24, 1);
  add("deepseek_v3_8_heads", latent("DeepseekV3ForCausalLM", "deepseek_v3", 8, sigmoid_routing()), 8, 1);
  // Tiles of 128 x 128 that no cut over ranks respects.
  add("deepseek_v3_fp8_24_heads",
      latent("DeepseekV3ForCausalLM", "deepseek_v3", 24,
             with(sigmoid_routing(), {{"hidden_size", 160},
                                      {"intermediate_size", 203},
                                      {"moe_intermediate_size", 139},
                                      {"n_routed_experts", 4},
                                      {"num_experts_per_tok", 2},
                                      {"n_group", 2},
                                      {"topk_group", 1},
                                      {"quantization_config",
                                       {{"activation_scheme", "dynamic"},
                                        {"fmt", "e4m3"},
                                        {"quant_method", "fp8"},
                                        {"weight_block_size", {128, 128}}}}})),
      24, 1);
  return models;
}

}  // namespace weft::test
