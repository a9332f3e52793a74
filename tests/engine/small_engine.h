#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "base/log.h"
#include "engine/engine.h"
#include "support/checkpoint_writer.h"

namespace weft::test {

/// A llama of a few kilobytes with seeded weights.
class EngineOfTwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    std::ofstream(folder_.path() / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 52,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false,
          "torch_dtype": "float32", "hidden_act": "silu"})";
    config_.model_dir = folder_.path();
    config_.load_format = LoadFormat::dummy;
    config_.tensor_parallel_size = config_.decode_context_parallel_size = 2;
    config_.block_size = 4;
    config_.num_gpu_blocks_override = 32;  // of 8 tokens
    config_.max_num_seqs = 4;
    config_.max_num_batched_tokens = 32;
    config_.threads = 2;
  }
  void TearDown() override { spdlog::set_level(spdlog::level::warn); }

  static Request request(int64_t prompt, int64_t max_tokens, int32_t first = 2) {
    Request out;
    for (int64_t i = 0; i < prompt; ++i) out.prompt.push_back(static_cast<int32_t>((first + 7 * i) % 67));
    out.max_tokens = max_tokens;
    out.sampling.temperature = 0;
    out.ignore_eos = true;
    return out;
  }

  TemporaryFolder folder_;
  EngineConfig config_;
};

}  // namespace weft::test
