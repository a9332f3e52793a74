// The scales of fp8 keys and values that checkpoints carry.

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "model/weights.h"
#include "ops/make_ops.h"
#include "support/checkpoint_writer.h"
#include "support/synthetic_models.h"
#include "support/user_error.h"

namespace weft {
namespace {

using nlohmann::json;
using test::StoredBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
StoredBytes one(const std::string& name, T value, std::vector<int64_t> shape = {1}) {
  StoredBytes tensor{name, dtype_of<T>::value, std::move(shape), std::vector<std::byte>(sizeof(T))};
  std::memcpy(tensor.bytes.data(), &value, sizeof(T));
  return tensor;
}

class KvScalesOfCheckpoints : public ::testing::Test {
 protected:
  static json model(bool latent) {
    for (const auto& candidate : test::synthetic_models()) {
      if (candidate.config.contains("kv_lora_rank") == latent) return candidate.config;
    }
    return {};
  }
  /// The scales of layer 1 of a checkpoint with these tensors beside its weights.
  static KvScales load(bool latent, const std::vector<StoredBytes>& extra) {
    const json json_config = model(latent);
    std::vector<StoredBytes> tensors = test::random_tensors(json_config);
    tensors.insert(tensors.end(), extra.begin(), extra.end());
    const test::TemporaryFolder dir;
    test::write_checkpoint(dir.path(), json_config, tensors);
    const ModelConfig config = parse_config(json_config.dump(), "config.json");
    const RankGrid grid({.tp = 1, .q_heads = config.q_heads, .kv_heads = config.grid_kv_heads()});
    const auto ops = make_cpu_ops(1);
    const Weights weights = load_weights(config, grid, Checkpoint(dir.path()), {.dtype = DType::f32}, *ops);
    EXPECT_EQ(weights.layers.at(0).kv_scales.k, 1.0f) << "no other layer's";
    return weights.layers.at(1).kv_scales;
  }
  static std::string error(bool latent, const std::vector<StoredBytes>& extra) {
    return test::user_error([&] { load(latent, extra); });
  }
  const std::string attention_ = "model.layers.1.self_attn.";
};

TEST_F(KvScalesOfCheckpoints, AreOneWhereThereAreNone) {
  for (const bool latent : {false, true}) {
    const KvScales scales = load(latent, {});
    EXPECT_EQ(scales.k, 1.0f);
    EXPECT_EQ(scales.v, 1.0f);
  }
}

TEST_F(KvScalesOfCheckpoints, AreFoundUnderEveryNameThatIsInUse) {
  for (const auto& [k, v] : std::vector<std::pair<std::string, std::string>>{{"k_scale", "v_scale"},
                                                                             {"attn.k_scale", "attn.v_scale"},
                                                                             {"k_proj.k_scale", "v_proj.v_scale"},
                                                                             {"k_proj.output_scale", "v_proj.output_scale"}}) {
    const KvScales scales = load(false, {one(attention_ + k, 0.25f), one(attention_ + v, 4.0f)});
    EXPECT_EQ(scales.k, 0.25f) << k;
    EXPECT_EQ(scales.v, 4.0f) << v;
  }
  const KvScales both = load(false, {one(attention_ + "kv_scale", 0.5f)});
  EXPECT_EQ(both.k, 0.5f);
  EXPECT_EQ(both.v, 0.5f);
}

TEST_F(KvScalesOfCheckpoints, OfLatentRowsAreOne) {
  EXPECT_EQ(load(true, {one(attention_ + "attn.k_scale", 0.25f), one(attention_ + "attn.v_scale", 3.0f)}).v, 0.25f)
      << "a row is key and value at once";
  EXPECT_EQ(load(true, {one(attention_ + "kv_scale", 0.5f)}).k, 0.5f);
  EXPECT_EQ(load(true, {one(attention_ + "k_scale", 0.5f)}).v, 0.5f);
}

TEST_F(KvScalesOfCheckpoints, MayBeScalarsAndOfAnyFloatType) {
  const KvScales scales = load(false, {one(attention_ + "k_scale", 0.25f, {}), one(attention_ + "v_scale", bf16(1.5f))});
  EXPECT_EQ(scales.k, 0.25f);
  EXPECT_EQ(scales.v, 1.5f);
}

TEST_F(KvScalesOfCheckpoints, OfQueriesAndAttentionWeightsAreSkipped) {
  load(false,
       {one(attention_ + "q_scale", 1.0f), one(attention_ + "attn.q_scale", 1.0f), one(attention_ + "attn.prob_scale", 1.0f)});
}

TEST_F(KvScalesOfCheckpoints, MustBePositiveNumbers) {
  for (const float bad : {0.0f, -1.0f, HUGE_VALF, NAN}) {
    const std::string message = error(false, {one(attention_ + "k_scale", bad), one(attention_ + "v_scale", 1.0f)});
    EXPECT_THAT(message, HasSubstr("1 not a positive number (" + attention_ + "k_scale is ")) << bad;
  }
  StoredBytes per_head{attention_ + "k_scale", DType::f32, {2}, std::vector<std::byte>(8)};
  EXPECT_THAT(error(true, {per_head}), AllOf(HasSubstr("not a positive number"), HasSubstr("F32 [2]")));
  EXPECT_THAT(error(true, {one(attention_ + "k_scale", int32_t{1})}), HasSubstr("I32 [1]"));
}

TEST_F(KvScalesOfCheckpoints, OfKeysAndValuesComeTogether) {
  EXPECT_THAT(error(false, {one(attention_ + "k_scale", 1.0f)}), HasSubstr("1 missing (" + attention_ + "v_scale)"));
}

}  // namespace
}  // namespace weft
