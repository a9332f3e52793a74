#include "model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "model/safetensors.h"
#include "support/synthetic_models.h"

namespace weft {
namespace {

using ::testing::UnorderedElementsAre;

const std::filesystem::path kGoldens = WEFT_SOURCE_DIR "/tests/goldens";

std::set<std::string> names_of(const ModelConfig& config) {
  std::set<std::string> names;
  for (const ParamSpec& spec : parameters(config)) EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  return names;
}

// The stored checkpoints, which others wrote, are the judge of names and shapes.
TEST(Families, EveryTensorOfAGoldenIsAParameterAScaleOrAKnownExtra) {
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
    const std::string name = entry.path().filename();
    if (!entry.is_directory() || name == "deepseek_v32" || name == "glm_moe_dsa") continue;
    SCOPED_TRACE(name);
    ++folders;
    const ModelConfig config = load_config(entry.path());
    const Checkpoint checkpoint(entry.path());
    size_t matched = 0, extras = 0, scales = 0;
    for (const ParamSpec& spec : parameters(config)) {
      const auto* tensor = checkpoint.find(spec.name);
      ASSERT_NE(tensor, nullptr) << spec.name;
      EXPECT_EQ(std::vector<int64_t>(tensor->shape.begin(), tensor->shape.end()), spec.shape) << spec.name;
      EXPECT_EQ(tensor->dtype == DType::f8_e4m3, spec.scaled) << spec.name;
      ++matched;
    }
    for (const auto& [stored, tensor] : checkpoint.tensors()) {
      extras += is_known_extra(config, stored) ? 1 : 0;
      scales += stored.ends_with("_scale_inv") ? 1 : 0;
    }
    EXPECT_EQ(matched + extras + scales, checkpoint.tensors().size());
    EXPECT_EQ(extras > 0, name == "deepseek_v3_mtp");
  }
  EXPECT_EQ(folders, 10);
}

TEST(Families, NamesAreUniqueInEveryArchitecture) {
  for (const auto& model : test::synthetic_models()) names_of(parse_config(model.config.dump(), model.name));
}

ModelConfig config_of(Architecture architecture, int layers, int stored_layers, int mtp_layers, bool tied = false) {
  ModelConfig config;
  config.architecture = architecture;
  config.layers = layers;
  config.stored_layers = stored_layers;
  config.mtp_layers = mtp_layers;
  config.tied_embeddings = tied;
  return config;
}

TEST(Families, LayersCutOffAreKnownExtrasAndOthersAreNot) {
  const ModelConfig config = config_of(Architecture::llama, 2, 4, 0);
  EXPECT_FALSE(is_known_extra(config, "model.layers.1.mlp.anything"));
  EXPECT_TRUE(is_known_extra(config, "model.layers.2.mlp.up_proj.weight"));
  EXPECT_TRUE(is_known_extra(config, "model.layers.3.mlp.up_proj.weight"));
  EXPECT_FALSE(is_known_extra(config, "model.layers.4.mlp.up_proj.weight")) << "beyond the layers of the config";
  EXPECT_FALSE(is_known_extra(config, "model.layers.3"));
  EXPECT_FALSE(is_known_extra(config, "model.layers.x.up_proj.weight"));
  EXPECT_FALSE(is_known_extra(config, "model.layers.-3.up_proj.weight"));
  EXPECT_FALSE(is_known_extra(config, "model.layers.99999999999999999999.up_proj.weight"));
  EXPECT_FALSE(is_known_extra(config, "xmodel.layers.3.up_proj.weight"));
}

TEST(Families, DraftLayersAreKnownExtrasWhereAFamilyHasThem) {
  for (const Architecture a : {Architecture::deepseek_v3, Architecture::glm4_moe}) {
    EXPECT_TRUE(is_known_extra(config_of(a, 4, 4, 1), "model.layers.4.eh_proj.weight"));
    EXPECT_TRUE(is_known_extra(config_of(a, 4, 4, 0), "model.layers.4.eh_proj.weight")) << "stored though not announced";
    EXPECT_FALSE(is_known_extra(config_of(a, 4, 4, 1), "model.layers.5.eh_proj.weight"));
    EXPECT_TRUE(is_known_extra(config_of(a, 4, 4, 2), "model.layers.5.eh_proj.weight"));
  }
  EXPECT_FALSE(is_known_extra(config_of(Architecture::qwen3, 4, 4, 0), "model.layers.4.eh_proj.weight"));
}

TEST(Families, RotaryBuffersAndTheHeadOfATiedModelAreKnownExtras) {
  const ModelConfig tied = config_of(Architecture::llama, 4, 4, 0, true), untied = config_of(Architecture::llama, 4, 4, 0);
  EXPECT_TRUE(is_known_extra(untied, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(is_known_extra(tied, "lm_head.weight"));
  EXPECT_FALSE(is_known_extra(untied, "lm_head.weight"));
  EXPECT_FALSE(is_known_extra(tied, "lm_head.bias"));
}

}  // namespace
}  // namespace weft
