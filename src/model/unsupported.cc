#include "model/unsupported.h"

#include <fmt/format.h>

namespace weft {
namespace {

constexpr std::string_view kFullAttention = "use a model with full attention in every layer";
constexpr MissingFeature kSinks{"attention sinks and sliding-window attention", kFullAttention};
constexpr MissingFeature kSliding{"sliding-window attention", kFullAttention};
constexpr MissingFeature kChunked{"chunked-local attention", kFullAttention};
constexpr MissingFeature kRecurrent{"linear-attention or state-space layers", kFullAttention};
constexpr MissingFeature kSparse{"sparse attention", "use the dense model of the same family"};
constexpr MissingFeature kMultimodal{"images or audio as input", "use the text model of the same family"};
constexpr MissingFeature kNoText{"embeddings, scores or classes as output", "use a model that generates text"};

struct Known {
  std::string_view part;  ///< of the architecture's name
  const MissingFeature* feature;
};
// The first one that fits counts.
constexpr Known kKnown[] = {
    {"GptOss", &kSinks},
    {"MiMoV2", &kSinks},
    {"Llama4", &kChunked},
    {"Qwen3Next", &kRecurrent},
    {"Qwen3_5", &kRecurrent},
    {"KimiLinear", &kRecurrent},
    {"BailingMoeV2_5", &kRecurrent},
    {"MiniMaxText", &kRecurrent},
    {"MiniMaxM1", &kRecurrent},
    {"Mamba", &kRecurrent},
    {"Jamba", &kRecurrent},
    {"Bamba", &kRecurrent},
    {"Zamba", &kRecurrent},
    {"FalconH1", &kRecurrent},
    {"NemotronH", &kRecurrent},
    {"GraniteMoeHybrid", &kRecurrent},
    {"Lfm2", &kRecurrent},
    {"Rwkv", &kRecurrent},
    {"RecurrentGemma", &kRecurrent},
    {"DeepseekV32", &kSparse},
    {"GlmMoeDsa", &kSparse},
    {"ForConditionalGeneration", &kMultimodal},
    {"Llava", &kMultimodal},
    {"Whisper", &kMultimodal},
    {"VLFor", &kMultimodal},
    {"VLChat", &kMultimodal},
    {"Phi4MM", &kMultimodal},
    {"Gemma2", &kSliding},
    {"Gemma3", &kSliding},
    {"Cohere2", &kSliding},
    {"Olmo3", &kSliding},
    {"Exaone4", &kSliding},
    {"ForSequenceClassification", &kNoText},
    {"ForTokenClassification", &kNoText},
    {"ForMaskedLM", &kNoText},
    {"Bert", &kNoText},
    {"RewardModel", &kNoText},
};

constexpr MissingFeatureField kFields[] = {
    {"attention_chunk_size", &kChunked},
    {"linear_attn_config", &kRecurrent},
    {"mamba_d_state", &kRecurrent},
    {"ssm_cfg", &kRecurrent},
    {"add_full_attention_sink_bias", &kSinks},
    {"add_swa_attention_sink_bias", &kSinks},
    {"attention_sinks", &kSinks},
    {"index_topk", &kSparse},
    {"vision_config", &kMultimodal},
    {"audio_config", &kMultimodal},
};

}  // namespace

const MissingFeature* missing_feature_of(std::string_view architecture) {
  for (const Known& known : kKnown)
    if (architecture.find(known.part) != std::string_view::npos) return known.feature;
  return nullptr;
}

std::span<const MissingFeatureField> missing_feature_fields() { return kFields; }

std::string to_string(const MissingFeature& feature) {
  return fmt::format("has {}, which this version does not support: {}", feature.name, feature.instead);
}

}  // namespace weft
