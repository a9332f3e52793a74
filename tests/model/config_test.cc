#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "support/checkpoint_writer.h"
#include "support/prop.h"
#include "support/synthetic_models.h"
#include "support/user_error.h"

namespace weft {
namespace {

using nlohmann::json;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kGoldens = WEFT_SOURCE_DIR "/tests/goldens";

json llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
}
json of_family(const char* architecture) {
  for (const auto& model : test::synthetic_models()) {
    if (model.config["architectures"][0] == architecture) return model.config;
  }
  ADD_FAILURE() << architecture;
  return {};
}
json deepseek_v3() { return of_family("DeepseekV3ForCausalLM"); }
json deepseek_v2() { return of_family("DeepseekV2ForCausalLM"); }

ModelConfig parse(const json& config, int num_layers = 0) { return parse_config(config.dump(), "dir/config.json", num_layers); }
json with(json config, const char* key, json value) {
  config[key] = std::move(value);
  return config;
}
json without(json config, const char* key) {
  config.erase(key);
  return config;
}
std::string error_of(const json& config) {
  return user_error([&] { parse(config); });
}

// --- what is read ----------------------------------------------------------------------------------------------------------

TEST(Config, ReadsALlama) {
  const ModelConfig c = parse(llama());
  EXPECT_EQ(c.architecture, Architecture::llama);
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.stored_layers, 3);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16) << "hidden / heads where it is not given";
  EXPECT_EQ(c.vocab, 100);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(c.softmax_scale(), 0.25f);
  EXPECT_EQ(c.rope.rotary, 16);
  EXPECT_FALSE(c.rope.interleaved || c.tied_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_FALSE(c.mla || c.block_fp8);
  EXPECT_FALSE(c.is_sparse(0));
}

TEST(Config, KvHeadsDefaultToQueryHeads) { EXPECT_EQ(parse(without(llama(), "num_key_value_heads")).kv_heads, 4); }

TEST(Config, BiasesAndNormsFollowTheArchitecture) {
  const ModelConfig l = parse(with(with(llama(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(l.qkv_bias && l.o_bias && l.mlp_bias);
  const ModelConfig q2 = parse(of_family("Qwen2ForCausalLM"));
  EXPECT_TRUE(q2.qkv_bias && !q2.o_bias && !q2.mlp_bias && !q2.qk_norm);
  const ModelConfig q3 = parse(with(of_family("Qwen3ForCausalLM"), "attention_bias", true));
  EXPECT_TRUE(q3.qkv_bias && q3.o_bias && q3.qk_norm);
  const ModelConfig g = parse(with(of_family("Glm4MoeForCausalLM"), "attention_bias", true));
  EXPECT_TRUE(g.qkv_bias && !g.o_bias && g.qk_norm);
  EXPECT_FALSE(parse(with(of_family("Glm4MoeForCausalLM"), "use_qk_norm", false)).qk_norm);
}

TEST(Config, ReadsLatentAttentionAndRoutingOfDeepSeekV3) {
  const ModelConfig c = parse(deepseek_v3());
  ASSERT_TRUE(c.mla);
  EXPECT_EQ(c.mla->kv_lora_rank, 40);
  EXPECT_EQ(c.k_dim(), 48);
  EXPECT_EQ(c.v_dim(), 40);
  EXPECT_EQ(c.grid_kv_heads(), 1);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(c.rope.rotary, 8);
  EXPECT_FALSE(parse(with(deepseek_v3(), "rope_interleave", false)).rope.interleaved);
  EXPECT_EQ(c.moe.routing.scores, Routing::Scores::sigmoid);
  EXPECT_EQ(c.moe.routing.group_rank, Routing::GroupRank::top2_sum);
  EXPECT_EQ(c.moe.routing.n_group, 4);
  EXPECT_EQ(c.moe.routing.topk_group, 2);
  EXPECT_TRUE(c.moe.routing.normalize && c.moe.has_choice_bias);
  EXPECT_FLOAT_EQ(c.moe.routing.scale, 2.5f);
  EXPECT_EQ(c.moe.shared_intermediate, 29);
  EXPECT_FALSE(c.is_sparse(0));
  EXPECT_TRUE(c.is_sparse(1));
}

TEST(Config, ReadsEveryRoutingOfDeepSeekV2) {
  const ModelConfig grouped = parse(deepseek_v2());
  EXPECT_EQ(grouped.mla->q_lora_rank, 0) << "null: queries come straight from the hidden state";
  EXPECT_EQ(grouped.moe.routing.group_rank, Routing::GroupRank::best);
  EXPECT_EQ(grouped.moe.routing.n_group, 3);
  EXPECT_EQ(grouped.moe.shared_intermediate, 2 * 29);
  const ModelConfig greedy = parse(with(deepseek_v2(), "topk_method", "greedy"));
  EXPECT_EQ(greedy.moe.routing.n_group, 1) << "groups do not limit a greedy choice";
  EXPECT_EQ(greedy.moe.routing.scores, Routing::Scores::softmax);
  EXPECT_EQ(parse(without(deepseek_v2(), "n_routed_experts")).moe.num_experts, 0);
}

TEST(Config, QwenMoeMixesDenseAndSparseLayers) {
  const json config = with(with(of_family("Qwen3MoeForCausalLM"), "num_hidden_layers", 6), "decoder_sparse_step", 2);
  const ModelConfig c = parse(with(config, "mlp_only_layers", {3}));
  std::vector<int> sparse;
  for (int i = 0; i < c.layers; ++i) {
    if (c.is_sparse(i)) sparse.push_back(i);
  }
  EXPECT_EQ(sparse, (std::vector<int>{1, 5}));
}

TEST(Config, NumLayersKeepsTheFirstLayers) {
  EXPECT_EQ(parse(llama(), 2).layers, 2);
  EXPECT_EQ(parse(llama(), 2).stored_layers, 3);
  EXPECT_EQ(parse(llama(), 3).layers, 3);
  EXPECT_THAT(user_error([] { parse(llama(), 4); }),
              AllOf(HasSubstr("--num-layers"), HasSubstr("1 to 3, or all"), HasSubstr("got 4")));
  EXPECT_THAT(user_error([] { parse(llama(), -1); }), HasSubstr("--num-layers"));
}

TEST(Config, EosMayBeANumberAListOrNothing) {
  EXPECT_EQ(parse(with(llama(), "eos_token_id", 7)).eos_ids, (std::vector<int32_t>{7}));
  EXPECT_EQ(parse(with(llama(), "eos_token_id", {7, 9})).eos_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_TRUE(parse(with(llama(), "eos_token_id", nullptr)).eos_ids.empty());
  EXPECT_THAT(error_of(with(llama(), "eos_token_id", {7, -1})), HasSubstr("eos_token_id"));
}

TEST(Config, StoredTypeHasAnOldAndANewName) {
  EXPECT_EQ(parse(with(llama(), "torch_dtype", "float16")).stored_dtype, DType::f16);
  EXPECT_EQ(parse(with(llama(), "dtype", "float32")).stored_dtype, DType::f32);
  EXPECT_EQ(parse(llama()).stored_dtype, DType::bf16);
  EXPECT_THAT(error_of(with(llama(), "dtype", "float64")),
              AllOf(HasSubstr("dtype"), HasSubstr("bfloat16"), HasSubstr("float64")));
}

TEST(Config, EveryGoldenConfigIsReadOrRefusedByName) {
  int read = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename());
    std::ifstream file(entry.path() / "config.json");
    const json config = json::parse(file);
    const std::string architecture = config["architectures"][0];
    if (architecture == "DeepseekV32ForCausalLM" || architecture == "GlmMoeDsaForCausalLM") {
      EXPECT_THAT(user_error([&] { load_config(entry.path()); }),
                  AllOf(HasSubstr(architecture), HasSubstr("LlamaForCausalLM"), HasSubstr("DeepseekV3ForCausalLM")));
      ++refused;
      continue;
    }
    const ModelConfig c = load_config(entry.path());
    EXPECT_EQ(to_string(c.architecture), architecture);
    EXPECT_EQ(c.layers, config["num_hidden_layers"]);
    EXPECT_EQ(c.hidden, config["hidden_size"]);
    ++read;
  }
  EXPECT_EQ(read, 10);
  EXPECT_EQ(refused, 2);
}

TEST(Config, EverySyntheticConfigIsRead) {
  for (const auto& model : test::synthetic_models()) {
    SCOPED_TRACE(model.name);
    const ModelConfig c = parse(model.config);
    EXPECT_EQ(c.q_heads, model.heads.q_heads);
    EXPECT_EQ(c.grid_kv_heads(), model.heads.kv_heads);
  }
}

// --- rotary embedding --------------------------------------------------------------------------------------------------------

TEST(Rope, OldAndNewSpellingGiveTheSameFrequencies) {
  const json scaling = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 128}};
  json typed = scaling, rope_typed = scaling, moved = scaling, both = scaling;
  typed["type"] = "llama3";
  rope_typed["rope_type"] = both["rope_type"] = both["type"] = moved["rope_type"] = "llama3";
  moved["rope_theta"] = 500000.0;
  const json old_base = with(llama(), "rope_theta", 500000.0), new_base = without(llama(), "rope_theta");
  const auto expected = parse(with(old_base, "rope_scaling", rope_typed)).rope.inv_freq();
  EXPECT_EQ(parse(with(old_base, "rope_scaling", typed)).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(old_base, "rope_scaling", both)).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(new_base, "rope_parameters", moved)).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(old_base, "rope_parameters", moved)).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(with(new_base, "rope_parameters", moved), "rope_scaling", moved)).rope.inv_freq(), expected);
  EXPECT_NE(parse(old_base).rope.inv_freq(), expected);
}

TEST(Rope, NullEmptyAndDefaultMeanPlain) {
  const auto expected = parse(with(llama(), "rope_theta", 1e6)).rope.inv_freq();
  const json plain = with(llama(), "rope_theta", 1e6);
  EXPECT_EQ(parse(with(plain, "rope_scaling", nullptr)).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(plain, "rope_scaling", json::object())).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(plain, "rope_scaling", {{"rope_type", "default"}})).rope.inv_freq(), expected);
  EXPECT_EQ(parse(with(without(plain, "rope_theta"), "rope_parameters", {{"rope_theta", 1e6}})).rope.inv_freq(), expected);
  ASSERT_EQ(expected.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(expected[i], std::pow(1e6, -i / 8.0), 1e-15);
}

TEST(Rope, WhatIsNotKnownIsRefusedByName) {
  for (const char* kind : {"linear", "dynamic", "longrope", "mrope", "su", ""}) {
    EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", kind}, {"factor", 2.0}})),
                AllOf(HasSubstr("rope_type"), HasSubstr("default, llama3, yarn"), HasSubstr(kind)));
  }
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"factor", 2.0}})), HasSubstr("rope_type"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", "yarn"}, {"type", "llama3"}, {"factor", 2.0}})),
              HasSubstr("type"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", "default"}, {"short_factor", {1, 2}}})),
              HasSubstr("short_factor"));
  EXPECT_THAT(error_of(with(llama(), "rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}})),
              HasSubstr("full_attention"));
  EXPECT_THAT(
      error_of(with(with(llama(), "rope_scaling", {{"rope_type", "default"}}), "rope_parameters", {{"rope_theta", 1e6}})),
      HasSubstr("differ"));
  EXPECT_THAT(error_of(with(llama(), "rope_parameters", {{"rope_theta", 1e6}})), HasSubstr("rope_theta has two values"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", "yarn"}})), HasSubstr("factor is missing"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}})),
              HasSubstr("original_max_position_embeddings is missing"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", "yarn")), HasSubstr("rope_scaling must be an object"));
  EXPECT_THAT(error_of(with(llama(), "partial_rotary_factor", 0.5)), HasSubstr("partial_rotary_factor"));
}

TEST(Rope, OnlyLlamaMayLeaveThetaOut) {
  EXPECT_EQ(parse(without(llama(), "rope_theta")).rope.theta, 10000.0);
  EXPECT_THAT(error_of(without(of_family("Qwen3ForCausalLM"), "rope_theta")), HasSubstr("rope_theta is missing"));
  EXPECT_THAT(error_of(without(deepseek_v3(), "rope_theta")), HasSubstr("rope_theta is missing"));
}

TEST(Rope, GlmTurnsAPartOfTheHead) {
  EXPECT_EQ(parse(of_family("Glm4MoeForCausalLM")).rope.rotary, 8);
  EXPECT_THAT(error_of(without(of_family("Glm4MoeForCausalLM"), "partial_rotary_factor")), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_of(with(of_family("Glm4MoeForCausalLM"), "partial_rotary_factor", 0.2)), HasSubstr("even"));
  const json inside = with(without(without(of_family("Glm4MoeForCausalLM"), "partial_rotary_factor"), "rope_theta"),
                           "rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}, {"rope_type", "default"}});
  EXPECT_EQ(parse(inside).rope.rotary, 8);
}

// Llama 3.1's published rule, case by case instead of by a ramp over turns: a wavelength below old / high stays, one above
// old / low is divided by the factor, one between is mixed.
double llama3_by_wavelength(double freq, double factor, double low, double high, double old) {
  const double wavelength = 2 * std::numbers::pi / freq;
  if (wavelength < old / high) return freq;
  if (wavelength > old / low) return freq / factor;
  const double smooth = (old / wavelength - low) / (high - low);
  return (1 - smooth) * freq / factor + smooth * freq;
}

TEST(Rope, Llama3FrequenciesAreThePublishedOnes) {
  test::for_each_case([](test::Gen& gen) {
    const double factor = gen.pick({2.0, 8.0, 32.0}), low = gen.pick({1.0, 2.0}), high = gen.pick({4.0, 8.0});
    const int old = gen.pick({128, 4096, 8192}), dim = 2 * static_cast<int>(gen.in(4, 64));
    const double theta = gen.pick({1e4, 5e5});
    json config = with(with(llama(), "rope_theta", theta), "head_dim", dim);
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", factor},
                              {"low_freq_factor", low},
                              {"high_freq_factor", high},
                              {"original_max_position_embeddings", old}};
    const RopeConfig rope = parse(config).rope;
    const auto freq = rope.inv_freq();
    ASSERT_EQ(freq.size(), static_cast<size_t>(dim / 2));
    for (int i = 0; i < dim / 2; ++i) {
      const double plain = std::exp(-2.0 * i / dim * std::log(theta));
      EXPECT_NEAR(freq[i] / llama3_by_wavelength(plain, factor, low, high, old), 1, 1e-12);
    }
    EXPECT_EQ(rope.cos_factor(), 1);
    EXPECT_EQ(rope.softmax_factor(), 1);
  });
}

json yarn_config(double factor, int old, json more) {
  json config = deepseek_v3();
  config["qk_rope_head_dim"] = 64;
  config["qk_nope_head_dim"] = 128;
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", old}};
  config["rope_scaling"].update(more);
  return config;
}

// DeepSeek-V3's own numbers: factor 40, old length 4096, theta 10000, 64 rotated elements. By hand: pair i makes
// 4096 * 10000^(-i/32) / 2pi turns; 32 turns at i = 10.47, 1 turn at i = 22.51, so the ramp runs from 10 to 23.
TEST(Rope, YarnOfDeepSeekV3) {
  for (const int max_len : {4096, 163840}) {
    const json config =
        with(yarn_config(40, 4096, {{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), "max_position_embeddings", max_len);
    const ModelConfig c = parse(config);
    const auto freq = c.rope.inv_freq();
    ASSERT_EQ(freq.size(), 32u);
    for (int i = 0; i < 32; ++i) {
      const double plain = std::pow(10000.0, -i / 32.0);
      const double stretch = i <= 10 ? 0 : i >= 23 ? 1 : (i - 10) / 13.0;
      EXPECT_NEAR(freq[i] / (plain * (1 - stretch) + plain / 40 * stretch), 1, 1e-12) << i;
    }
    EXPECT_DOUBLE_EQ(c.rope.cos_factor(), 1);
    const double mscale = 0.1 * std::log(40) + 1;
    EXPECT_DOUBLE_EQ(c.rope.softmax_factor(), mscale * mscale);
    EXPECT_FLOAT_EQ(c.softmax_scale(), static_cast<float>(mscale * mscale / std::sqrt(192.0)));
  }
}

TEST(Rope, MscaleGoesToCosinesAndToTheSoftmax) {
  const auto rope = [](json more) { return parse(yarn_config(8, 128, std::move(more))).rope; };
  const double ln = std::log(8.0);
  EXPECT_DOUBLE_EQ(rope({{"mscale", 1.0}, {"mscale_all_dim", 0.707}}).cos_factor(), (0.1 * ln + 1) / (0.0707 * ln + 1));
  EXPECT_DOUBLE_EQ(rope({{"mscale", 1.0}, {"mscale_all_dim", 0.707}}).softmax_factor(), std::pow(0.0707 * ln + 1, 2));
  // Absent: all of it on the cosines.
  EXPECT_DOUBLE_EQ(rope(json::object()).cos_factor(), 0.1 * ln + 1);
  EXPECT_DOUBLE_EQ(rope(json::object()).softmax_factor(), 1);
  EXPECT_DOUBLE_EQ(rope({{"mscale", 0.5}}).cos_factor(), 0.05 * ln + 1);
  EXPECT_DOUBLE_EQ(rope({{"attention_factor", 1.25}}).cos_factor(), 1.25);
  EXPECT_THAT(error_of(yarn_config(8, 128, {{"truncate", false}})), HasSubstr("truncate"));
}

TEST(Rope, YarnOutsideLatentAttentionLeavesTheSoftmaxAlone) {
  const json scaling = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}, {"mscale_all_dim", 1.0}};
  const ModelConfig c = parse(with(llama(), "rope_scaling", scaling));
  EXPECT_FLOAT_EQ(c.softmax_scale(), 0.25f);
}

TEST(Rope, ScaledFrequenciesLieBetweenPlainAndStretched) {
  test::for_each_case([](test::Gen& gen) {
    const double factor = 1 + 40 * std::abs(gen.normal());
    const auto old = static_cast<int>(gen.in(1, 100000));
    const auto freq = parse(yarn_config(factor, old, json::object())).rope.inv_freq();
    for (size_t i = 0; i < freq.size(); ++i) {
      const double plain = std::pow(10000.0, -static_cast<double>(i) / 32);
      EXPECT_LE(freq[i], plain * (1 + 1e-12));
      EXPECT_GE(freq[i], plain / factor * (1 - 1e-12));
      if (i > 0) {
        EXPECT_LT(freq[i], freq[i - 1]);
      }
    }
  });
}

// --- refusals ---------------------------------------------------------------------------------------------------------------

struct Hostile {
  const char* name;
  const char* field;
  json value;
  const char* accepted;
};

TEST(HostileConfig, NumbersOutOfRangeNameFieldValueAndRange) {
  const std::vector<Hostile> cases = {
      {"zero heads", "num_attention_heads", 0, "from 1 to"},
      {"negative", "hidden_size", -64, "from 1 to"},
      {"float", "hidden_size", 64.5, "a whole number"},
      {"whole float", "hidden_size", 64.0, "a whole number"},
      {"string", "num_hidden_layers", "8", "a whole number"},
      {"billion layers", "num_hidden_layers", 1000000000, "from 1 to"},
      {"2^63", "vocab_size", uint64_t{1} << 63, "from 1 to"},
      {"2^64 - 1", "vocab_size", UINT64_MAX, "from 1 to"},
      {"more KV heads than heads", "num_key_value_heads", 8, "from 1 to 4"},
      {"KV heads do not divide", "num_key_value_heads", 3, "a divisor of"},
      {"bool for number", "intermediate_size", true, "a whole number"},
      {"list for number", "intermediate_size", {1, 2}, "a whole number"},
      {"object for number", "intermediate_size", json::object(), "a whole number"},
      {"number for bool", "tie_word_embeddings", 1, "true or false"},
      {"zero eps", "rms_norm_eps", 0, "a number from"},
      {"negative eps", "rms_norm_eps", -1e-6, "a number from"},
      {"theta of one", "rope_theta", 1, "a number from"},
      {"odd head", "head_dim", 15, "even"},
      {"no positions", "max_position_embeddings", 0, "from 1 to"},
      {"other activation", "hidden_act", "gelu", "silu"},
      {"list with two architectures", "architectures", {"LlamaForCausalLM", "LlamaForCausalLM"}, "a list of one of"},
      {"architecture as string", "architectures", "LlamaForCausalLM", "a list of one of"},
      {"unknown architecture", "architectures", {"MambaForCausalLM"}, "Qwen2ForCausalLM"},
      {"sliding layers", "layer_types", {"full_attention", "sliding_attention", "full_attention"}, "full_attention only"},
  };
  for (const Hostile& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(error_of(with(llama(), c.field, c.value)), AllOf(HasSubstr(c.accepted), HasSubstr("dir/config.json")));
  }
  EXPECT_THAT(error_of(with(llama(), "num_attention_heads", 0)),
              "config.json: num_attention_heads must be a whole number from 1 to 1024: got 0, path dir/config.json");
}

TEST(HostileConfig, MissingFieldsAreNamed) {
  for (const char* field : {"architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                            "vocab_size", "max_position_embeddings", "rms_norm_eps"}) {
    EXPECT_THAT(error_of(without(llama(), field)), HasSubstr(field));
    EXPECT_THAT(error_of(with(llama(), field, nullptr)), HasSubstr(field)) << "null counts as absent";
  }
  EXPECT_THAT(error_of(with(llama(), "hidden_size", 65)), HasSubstr("head_dim")) << "no default where heads do not divide";
  for (const char* field : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts",
                            "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group", "routed_scaling_factor"}) {
    EXPECT_THAT(error_of(without(deepseek_v3(), field)), HasSubstr(std::string(field) + " is missing"));
  }
}

TEST(HostileConfig, ExpertsAndGroupsMustFit) {
  EXPECT_THAT(error_of(with(deepseek_v3(), "n_group", 5)), HasSubstr("a divisor of the 12 experts"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "topk_group", 5)), HasSubstr("from 1 to 4"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "num_experts_per_tok", 13)), HasSubstr("from 1 to 12"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "num_experts_per_tok", 7)), HasSubstr("at most 6"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "n_group", 12)), HasSubstr("two experts in a group"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "n_routed_experts", 1028)), HasSubstr("from 1 to 1024")) << "what ops can route";
  EXPECT_THAT(error_of(with(deepseek_v3(), "topk_method", "greedy")), HasSubstr("noaux_tc"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "scoring_func", "softmax")), HasSubstr("sigmoid"));
  EXPECT_THAT(error_of(with(deepseek_v2(), "topk_method", "noaux_tc")), HasSubstr("greedy, group_limited_greedy"));
  EXPECT_THAT(error_of(with(deepseek_v2(), "norm_topk_prob", true)), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "moe_layer_freq", 2)), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "attention_bias", true)), HasSubstr("attention_bias"));
  EXPECT_THAT(error_of(with(with(deepseek_v3(), "num_hidden_layers", 1024), "n_routed_experts", 1024)),
              HasSubstr("n_routed_experts"));
  EXPECT_THAT(error_of(with(deepseek_v3(), "mlp_layer_types", {"sparse", "sparse"})), HasSubstr("mlp_layer_types"));
  EXPECT_NO_THROW(parse(with(deepseek_v3(), "mlp_layer_types", {"dense", "sparse"})));
}

TEST(HostileConfig, SlidingWindowsInUseAreRefused) {
  const json qwen = of_family("Qwen2ForCausalLM");
  const json window = with(with(qwen, "sliding_window", 4096), "max_window_layers", 1);
  EXPECT_THAT(error_of(with(window, "use_sliding_window", true)), HasSubstr("use_sliding_window"));
  EXPECT_NO_THROW(parse(with(window, "use_sliding_window", false)));
  EXPECT_NO_THROW(parse(with(with(window, "use_sliding_window", true), "max_window_layers", 2))) << "no layer uses it";
}

TEST(HostileConfig, OnlyBlockScaledFp8IsAcceptedOfTheQuantisedFormats) {
  const json fp8 = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}};
  EXPECT_TRUE(parse(with(llama(), "quantization_config", fp8)).block_fp8);
  EXPECT_FALSE(parse(with(llama(), "quantization_config", nullptr)).block_fp8);
  EXPECT_THAT(error_of(with(llama(), "quantization_config", with(fp8, "quant_method", "awq"))),
              AllOf(HasSubstr("awq"), HasSubstr("fp8")));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", with(fp8, "fmt", "e5m2"))), HasSubstr("e4m3"));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", with(fp8, "weight_block_size", {64, 128}))),
              HasSubstr("[128, 128]"));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", without(fp8, "weight_block_size"))),
              HasSubstr("weight_block_size"));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", without(fp8, "quant_method"))), HasSubstr("quant_method"));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", with(fp8, "activation_scheme", "static"))), HasSubstr("dynamic"));
}

TEST(HostileConfig, WhatOtherModelsNeedIsRefusedWithItsNameAndAnAlternative) {
  const std::vector<std::pair<std::string, std::string>> architectures = {
      {"GptOssForCausalLM", "attention sinks"},    {"Llama4ForConditionalGeneration", "chunked-local attention"},
      {"MambaForCausalLM", "state-space"},         {"Qwen3NextForCausalLM", "linear-attention"},
      {"Gemma3ForCausalLM", "sliding-window"},     {"DeepseekV32ForCausalLM", "sparse attention"},
      {"LlavaForConditionalGeneration", "images"}, {"BertForMaskedLM", "embeddings"},
  };
  for (const auto& [name, feature] : architectures) {
    EXPECT_THAT(error_of(with(llama(), "architectures", json::array({name}))),
                AllOf(HasSubstr(name), HasSubstr(feature), HasSubstr(": use "), HasSubstr("LlamaForCausalLM")));
  }
  EXPECT_THAT(error_of(with(llama(), "architectures", {"NoSuchForCausalLM"})), HasSubstr("LlamaForCausalLM"));
  const std::vector<std::tuple<std::string, json, std::string>> fields = {
      {"attention_chunk_size", 8192, "chunked-local attention"},
      {"linear_attn_config", {{"a", 1}}, "linear-attention"},
      {"mamba_d_state", 16, "state-space"},
      {"add_full_attention_sink_bias", true, "attention sinks"},
      {"index_topk", 64, "sparse attention"},
      {"vision_config", {{"a", 1}}, "images"},
  };
  for (const auto& [field, value, feature] : fields) {
    EXPECT_THAT(error_of(with(llama(), field.c_str(), value)),
                AllOf(HasSubstr(field), HasSubstr(feature), HasSubstr(": use ")));
    EXPECT_NO_THROW(parse(with(llama(), field.c_str(), nullptr)));
    EXPECT_NO_THROW(parse(with(llama(), field.c_str(), false)));
  }
  for (const char* method : {"awq", "gptq", "mxfp4", "modelopt", "compressed-tensors", "bitsandbytes"}) {
    EXPECT_THAT(error_of(with(llama(), "quantization_config", {{"quant_method", method}})),
                AllOf(HasSubstr(method), HasSubstr("use the bfloat16 checkpoint")));
  }
  for (const char* layer : {"sliding_attention", "chunked_attention", "linear_attention"}) {
    EXPECT_THAT(error_of(with(llama(), "layer_types", {layer, layer})), AllOf(HasSubstr(layer), HasSubstr("not supported")));
  }
}

TEST(HostileConfig, TextThatIsNotPlainJsonIsRefused) {
  const auto error = [](const std::string& text) { return user_error([&] { parse_config(text, "dir/config.json"); }); };
  EXPECT_THAT(error(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error("{\"hidden_size\": 64 // comment\n}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"rms_norm_eps\": NaN}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"rms_norm_eps\": 1e999}"), HasSubstr("too large"));
  EXPECT_THAT(error("{\"hidden_size\": 64, \"hidden_size\": 65}"), AllOf(HasSubstr("twice"), HasSubstr("hidden_size")));
  EXPECT_THAT(error("{\"a\": {\"b\": 1, \"b\": 2}}"), HasSubstr("twice"));
  EXPECT_THAT(error(std::string(100000, '[')), HasSubstr("nested too deep"));
  EXPECT_THAT(error("{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}"), HasSubstr("nested too deep"));
  EXPECT_THAT(error(std::string(10 << 20, ' ')), HasSubstr("larger than 1048576 bytes"));
  EXPECT_THAT(error("{\"architectures\": [\"a\\nb\xff\"]}"), HasSubstr("not valid JSON")) << "broken UTF-8";
  EXPECT_THAT(error("{\"architectures\": [\"a\\nb\\u0000\"]}"), HasSubstr("architectures"));
  EXPECT_THAT(error("{\"architectures\": [\"" + std::string(10000, 'x') + "\"]}"), HasSubstr("architectures"));
}

TEST(HostileConfig, FilesAreBoundedToo) {
  const test::TemporaryFolder dir;
  EXPECT_THAT(user_error([&] { load_config(dir.path()); }), HasSubstr("no config.json"));
  std::ofstream(dir.path() / "config.json") << std::string(10 << 20, ' ');
  EXPECT_THAT(user_error([&] { load_config(dir.path()); }), HasSubstr("larger than"));
  std::ofstream(dir.path() / "config.json", std::ios::trunc) << llama().dump();
  EXPECT_EQ(load_config(dir.path(), 1).layers, 1);
}

TEST(HostileConfig, TokensThatEndAnAnswerAreThoseOfBothFiles) {
  const test::TemporaryFolder dir;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(dir.path() / name, std::ios::trunc) << text;
  };
  write("config.json", with(llama(), "eos_token_id", 7).dump());
  EXPECT_EQ(load_config(dir.path()).eos_ids, (std::vector<int32_t>{7}));
  write("generation_config.json", R"({"eos_token_id": [9, 7], "temperature": 0.6})");
  EXPECT_EQ(load_config(dir.path()).eos_ids, (std::vector<int32_t>{7, 9}));
  write("generation_config.json", R"({"eos_token_id": 11})");
  EXPECT_EQ(load_config(dir.path()).eos_ids, (std::vector<int32_t>{7, 11}));
  write("generation_config.json", "{}");
  EXPECT_EQ(load_config(dir.path()).eos_ids, (std::vector<int32_t>{7}));
  write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(user_error([&] { load_config(dir.path()); }), HasSubstr("eos_token_id"));
  write("generation_config.json", "[]");
  EXPECT_THAT(user_error([&] { load_config(dir.path()); }), HasSubstr("generation_config.json must be a JSON object"));
  write("generation_config.json", std::string(10 << 20, ' '));
  EXPECT_THAT(user_error([&] { load_config(dir.path()); }), HasSubstr("larger than"));
}

// Whatever single field is replaced by whatever value, the answer is a config or one UserError.
TEST(HostileConfig, AnyOneFieldMayBeAnything) {
  const std::vector<json> values = {nullptr,
                                    true,
                                    0,
                                    1,
                                    -1,
                                    2,
                                    7,
                                    64,
                                    1e9,
                                    1e300,
                                    -0.5,
                                    INT64_MAX,
                                    INT64_MIN,
                                    UINT64_MAX,
                                    "",
                                    "8",
                                    json::array(),
                                    json::object(),
                                    {1, 2},
                                    {{"type", "yarn"}, {"factor", 2}},
                                    {"x"}};
  for (const auto& model : test::synthetic_models()) {
    for (const auto& [field, old] : model.config.items()) {
      for (const json& value : values) {
        try {
          parse(with(model.config, field.c_str(), value));
        } catch (const UserError& error) {
          EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
