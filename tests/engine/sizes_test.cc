#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/engine.h"
#include "support/checkpoint_writer.h"

namespace weft {
namespace {

/// DeepSeek-V3 and R1: 671 billion parameters.
constexpr const char* kDeepSeek671B = R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false,
    "attention_bias": false, "num_nextn_predict_layers": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 1.0, "mscale_all_dim": 1.0},
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
  })";

ModelConfig deepseek_671b() { return parse_config(kDeepSeek671B, "config.json"); }

EngineConfig flags(int tp, int dcp, int64_t memory_per_rank = 0) {
  EngineConfig config;
  config.memory_per_rank = memory_per_rank;
  config.tensor_parallel_size = tp;
  config.decode_context_parallel_size = dcp;
  return config;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(EngineSizes, CapacityGrowsWithTheRanksOfAGroup) {
  const ModelConfig model = deepseek_671b();
  // For everything on a rank; bfloat16 weights of an eighth of the model take about 156 GiB of it.
  const int64_t budget = 192 * kGiB;
  const EngineSizes one = engine_sizes(model, flags(8, 1, budget));
  EXPECT_EQ(one.kv_bytes_per_token, 61 * 576 * 2);
  EXPECT_GT(one.capacity.tokens, 300'000);
  for (const int w : {2, 4, 8}) {
    const EngineSizes woven = engine_sizes(model, flags(8, w, budget));
    EXPECT_GE(static_cast<double>(woven.capacity.tokens), 0.98 * w * static_cast<double>(one.capacity.tokens)) << "W = " << w;
    EXPECT_EQ(woven.kv_bytes_per_token, one.kv_bytes_per_token / w);
    EXPECT_LE(woven.weight_bytes + woven.workspace_bytes + woven.exchange_bytes + woven.kv_bytes, budget);
    EXPECT_GT(woven.exchange_bytes, 0);
  }
  EXPECT_EQ(one.exchange_bytes, 0);
}

TEST(EngineSizes, TheModelsLengthLimitsWhatMemoryWouldHold) {
  const ModelConfig model = deepseek_671b();
  const EngineSizes sizes = engine_sizes(model, flags(8, 8, 192 * kGiB));
  EXPECT_GT(sizes.capacity.tokens, sizes.max_model_len);
  EXPECT_EQ(sizes.max_model_len, 163840);
}

TEST(EngineSizes, ABlocksRowsFitAStepPlanHoweverMuchMemoryThereIs) {
  const ModelConfig model = deepseek_671b();
  EngineConfig config = flags(8, 4);
  config.kv_cache_memory_bytes = INT64_MAX;
  const EngineSizes sizes = engine_sizes(model, config);
  EXPECT_EQ(sizes.capacity.tokens, INT32_MAX / 64 * 64);  // a virtual block is 64 tokens
  EXPECT_EQ(sizes.kv_bytes, int64_t{INT32_MAX / 64} * 16 * 61 * 576 * 2);
}

std::string refusal(const ModelConfig& model, const EngineConfig& config) {
  try {
    engine_sizes(model, config);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(EngineSizes, AnEngineLargerThanTheMachineIsRefusedBeforeItStarts) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << kDeepSeek671B;
  EngineConfig config = flags(8, 8);
  config.model_dir = folder.path();
  config.load_format = LoadFormat::dummy;
  try {
    Engine engine(config);
    FAIL() << "an engine of more than a TiB started";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("this machine has not enough memory: 8 ranks of"), std::string::npos)
        << error.what();
  }
}

TEST(EngineSizes, MoreRanksAreSuggestedOnlyWhereTheyAreLegal) {
  const ModelConfig model = deepseek_671b();
  EngineConfig config = flags(8, 4);
  config.num_gpu_blocks_override = 100;
  config.max_model_len = 100'000;
  EXPECT_NE(refusal(model, config).find("--decode-context-parallel-size, here up to 8"), std::string::npos);
  config.decode_context_parallel_size = 8;
  EXPECT_EQ(refusal(model, config).find("--decode-context-parallel-size"), std::string::npos);
}

TEST(EngineSizes, BlocksAskedForMustFitTheBudget) {
  const ModelConfig model = deepseek_671b();
  EngineConfig config = flags(8, 1, 192 * kGiB);
  config.num_gpu_blocks_override = 100'000;
  EXPECT_NE(refusal(model, config).find("--num-gpu-blocks-override does not fit --memory-per-rank: 100000 blocks"),
            std::string::npos);
  config.num_gpu_blocks_override = 1000;
  EXPECT_EQ(refusal(model, config), "accepted");
}

TEST(EngineSizes, Fp8RowsMakeRoomForMoreTokens) {
  const ModelConfig model = deepseek_671b();
  EngineConfig config = flags(8, 8);
  config.memory_per_rank = 0;
  config.kv_cache_memory_bytes = kGiB;
  const auto per_token = [&](KvCacheDType dtype) {
    config.kv_cache_dtype = dtype;
    const EngineSizes sizes = engine_sizes(model, config);
    EXPECT_EQ(sizes.capacity.tokens, kGiB / static_cast<int64_t>(sizes.kv_bytes_per_token * 8 * 16) * 8 * 16);
    return sizes.kv_bytes_per_token * 8;
  };
  EXPECT_EQ(per_token(KvCacheDType::automatic), 61 * 1152);
  EXPECT_EQ(per_token(KvCacheDType::fp8), 61 * 576);
  EXPECT_EQ(per_token(KvCacheDType::fp8_ds_mla), 61 * 656);
  const auto name = [&](KvCacheDType dtype) {
    config.kv_cache_dtype = dtype;
    return engine_sizes(model, config).kv_dtype;
  };
  EXPECT_EQ(name(KvCacheDType::bf16), "bfloat16");
  EXPECT_EQ(name(KvCacheDType::fp8), "fp8_e4m3");
  EXPECT_EQ(name(KvCacheDType::fp8_ds_mla), "fp8_ds_mla");
}

TEST(EngineSizes, Fp8IsRefusedWhereItCannotBe) {
  ModelConfig model = deepseek_671b();
  EngineConfig config = flags(8, 1);
  config.kv_cache_dtype = KvCacheDType::fp8_ds_mla;
  model.mla->kv_lora_rank = 500;
  EXPECT_NE(refusal(model, config).find("kv_lora_rank that is a multiple of 128: it is 500; use --kv-cache-dtype fp8"),
            std::string::npos);
  model.mla.reset();
  EXPECT_NE(refusal(model, config).find("is for latent attention, which this model lacks; use --kv-cache-dtype fp8"),
            std::string::npos);
  model = deepseek_671b();
  config.kv_cache_scale = 2;
  EXPECT_NE(refusal(model, config).find("--kv-cache-scale 2 needs --kv-cache-dtype fp8"), std::string::npos);
  config.kv_cache_dtype = KvCacheDType::fp8;
  EXPECT_EQ(refusal(model, config), "accepted");
  for (const double bad : {-1.0, std::numeric_limits<double>::infinity(), 1e300, 1e-300, std::nan("")}) {
    config.kv_cache_scale = bad;
    EXPECT_NE(refusal(model, config).find("--kv-cache-scale must be a positive number"), std::string::npos) << bad;
  }
}

TEST(EngineSizes, RefusalsNameTheFlagAndTheNumbers) {
  const ModelConfig model = deepseek_671b();
  EXPECT_NE(refusal(model, flags(8, 8, 100 * kGiB)).find("no room for KV"), std::string::npos);

  EngineConfig config = flags(8, 1);
  config.max_model_len = 163841;
  EXPECT_NE(refusal(model, config).find("163841 > 163840"), std::string::npos);

  config = flags(8, 1);
  config.num_gpu_blocks_override = 100;
  config.max_model_len = 1601;
  EXPECT_NE(refusal(model, config).find("1600 tokens"), std::string::npos) << refusal(model, config);
  config.max_model_len = 1600;
  EXPECT_EQ(refusal(model, config), "accepted");

  config = flags(8, 1);
  config.block_size = 1 << 20;
  config.num_gpu_blocks_override = INT32_MAX;
  EXPECT_NE(refusal(model, config).find("--num-gpu-blocks-override must be at most 2047 for blocks of 1048576 tokens"),
            std::string::npos)
      << refusal(model, config);
  config.num_gpu_blocks_override = 2047;
  EXPECT_EQ(refusal(model, config), "accepted");

  config = flags(8, 1);
  config.max_num_seqs = 0;
  EXPECT_NE(refusal(model, config).find("--max-num-seqs must be at least 1"), std::string::npos);
  config = flags(8, 1);
  config.max_num_batched_tokens = 0;
  EXPECT_NE(refusal(model, config).find("--max-num-batched-tokens must be at least 1"), std::string::npos);

  config = flags(8, 1, 192 * kGiB);
  config.kv_cache_memory_bytes = kGiB;
  EXPECT_EQ(refusal(model, config),
            "--memory-per-rank and --kv-cache-memory-bytes both say how much KV there is: give one of them");

  config = flags(8, 1);
  config.dtype = ComputeDType::f32;
  config.kv_cache_dtype = KvCacheDType::bf16;
  EXPECT_NE(refusal(model, config).find("use --kv-cache-dtype auto"), std::string::npos);
}

}  // namespace
}  // namespace weft
