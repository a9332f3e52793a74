#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <numbers>

#include "base/log.h"
#include "model/strict_json.h"
#include "model/unsupported.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Largest accepted sizes. They leave room above every released model (DeepSeek-V3: 61 layers of 256 experts, hidden 7168) and
// keep every product of sizes, and the list of a model's parameters, small enough to compute with. Ops::route takes no more
// experts.
constexpr int64_t kMaxHidden = 1 << 17, kMaxIntermediate = 1 << 20, kMaxHeads = 1 << 10, kMaxHeadDim = 1 << 11;
constexpr int64_t kMaxLayers = 1 << 10, kMaxExperts = 1 << 10, kMaxExpertsOfAllLayers = 1 << 18;
constexpr int64_t kMaxVocab = 1 << 22, kMaxPositions = 1 << 30;

constexpr std::array<std::pair<const char*, Architecture>, 7> kArchitectures{{
    {"LlamaForCausalLM", Architecture::llama},
    {"Qwen2ForCausalLM", Architecture::qwen2},
    {"Qwen3ForCausalLM", Architecture::qwen3},
    {"Qwen3MoeForCausalLM", Architecture::qwen3_moe},
    {"Glm4MoeForCausalLM", Architecture::glm4_moe},
    {"DeepseekV2ForCausalLM", Architecture::deepseek_v2},
    {"DeepseekV3ForCausalLM", Architecture::deepseek_v3},
}};

/// One JSON object of a config.json. Every reader checks type and range and throws a UserError that names the field, its value
/// and what would be accepted. A null counts as absent.
class Fields {
 public:
  Fields(const json& object, std::string prefix, const std::filesystem::path& path)
      : object_(object), prefix_(std::move(prefix)), path_(path.string()) {}

  const json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* name) const { return find(name) != nullptr; }
  const json& object() const { return object_; }

  int64_t integer(const char* name, int64_t low, int64_t high, std::optional<int64_t> absent = {}) const {
    const json* value = find(name);
    const std::string accepted = fmt::format("a whole number from {} to {}", low, high);
    if (value == nullptr) return absent ? *absent : missing<int64_t>(name, accepted);
    const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= uint64_t{INT64_MAX} : value->is_number_integer();
    if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) refuse(name, accepted);
    return value->get<int64_t>();
  }
  int size(const char* name, int64_t low, int64_t high, std::optional<int64_t> absent = {}) const {
    return static_cast<int>(integer(name, low, high, absent));
  }
  double number(const char* name, double low, double high, std::optional<double> absent = {}) const {
    const json* value = find(name);
    const std::string accepted = fmt::format("a number from {:g} to {:g}", low, high);
    if (value == nullptr) return absent ? *absent : missing<double>(name, accepted);
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) refuse(name, accepted);
    return value->get<double>();
  }
  bool flag(const char* name, bool absent) const {
    const json* value = find(name);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse(name, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* name, std::optional<std::string> absent = {}) const {
    const json* value = find(name);
    if (value == nullptr) return absent ? *absent : missing<std::string>(name, "a string");
    if (!value->is_string()) refuse(name, "a string");
    return value->get<std::string>();
  }
  /// One of `accepted`; the first is meant where the field is absent, unless `required`.
  std::string choice(const char* name, const std::vector<std::string>& accepted, bool required = false) const {
    const std::string list = fmt::format("one of {}", fmt::join(accepted, ", "));
    if (!has(name)) return required ? missing<std::string>(name, list) : accepted.front();
    const json& value = *find(name);
    if (!value.is_string() || std::find(accepted.begin(), accepted.end(), value.get<std::string>()) == accepted.end()) {
      refuse(name, list);
    }
    return value.get<std::string>();
  }
  /// A list of whole numbers; empty where absent.
  std::vector<int> sizes(const char* name, int64_t low, int64_t high) const {
    const json* value = find(name);
    if (value == nullptr) return {};
    const std::string accepted = fmt::format("a list of whole numbers from {} to {}", low, high);
    if (!value->is_array()) refuse(name, accepted);
    std::vector<int> out;
    for (const json& item : *value) {
      if (!item.is_number_integer() || item < low || item > high) refuse(name, accepted);
      out.push_back(item.get<int>());
    }
    return out;
  }
  /// Another object inside this one, or nothing.
  std::optional<Fields> nested(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_object()) refuse(name, "an object");
    return Fields(*value, prefix_ + name + ".", path_);
  }
  /// Refuses a value that this version does not implement.
  void only(const char* name, bool is_accepted, std::string_view accepted) const {
    if (!is_accepted) refuse(name, accepted);
  }

  [[noreturn]] void refuse(const char* name, std::string_view accepted) const {
    const json* value = find(name);
    throw UserError("config.json: {}{} must be {}: got {}, path {}", prefix_, name, accepted,
                    value == nullptr ? "nothing" : shown(*value), path_);
  }
  [[noreturn]] void complain(std::string_view what) const { throw UserError("config.json: {}, path {}", what, path_); }

 private:
  template <typename T>
  [[noreturn]] T missing(const char* name, std::string_view accepted) const {
    throw UserError("config.json: {}{} is missing: must be {}, path {}", prefix_, name, accepted, path_);
  }

  const json& object_;
  std::string prefix_, path_;
};

// --- rotary embedding -------------------------------------------------------------------------------------------------------

/// The object that describes the scaling: rope_parameters (new spelling) or rope_scaling (old), which must agree if both are
/// there.
std::optional<Fields> rope_fields(const Fields& top) {
  std::optional<Fields> parameters = top.nested("rope_parameters"), scaling = top.nested("rope_scaling");
  if (parameters && scaling && parameters->object() != scaling->object()) {
    top.complain("rope_parameters and rope_scaling differ: keep one of them");
  }
  return parameters ? std::move(parameters) : std::move(scaling);
}

void refuse_unknown_rope_fields(const Fields& rope) {
  static constexpr std::array<std::string_view, 16> kKnown = {"rope_type",        "type",
                                                              "rope_theta",       "partial_rotary_factor",
                                                              "factor",           "original_max_position_embeddings",
                                                              "low_freq_factor",  "high_freq_factor",
                                                              "beta_fast",        "beta_slow",
                                                              "mscale",           "mscale_all_dim",
                                                              "attention_factor", "truncate",
                                                              "finetuned",        "max_position_embeddings"};
  for (const auto& [name, value] : rope.object().items()) {
    if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
      rope.complain(fmt::format("rotary scaling has a field that is not supported: {}, accepted {}", in_quotes(name),
                                fmt::join(kKnown, ", ")));
    }
  }
}

/// A number that may stand in the object, beside it, or in both with the same value.
double inside_or_beside(const Fields& top, const std::optional<Fields>& rope, const char* name, double low, double high,
                        std::optional<double> absent) {
  const bool inside = rope && rope->has(name);
  if (inside && top.has(name) && rope->number(name, low, high) != top.number(name, low, high)) {
    top.complain(
        fmt::format("{} has two values: {:g} and {:g}", name, rope->number(name, low, high), top.number(name, low, high)));
  }
  return inside ? rope->number(name, low, high) : top.number(name, low, high, absent);
}

std::string rope_kind(const Fields& rope) {
  static const std::vector<std::string> kAccepted = {"default", "llama3", "yarn"};
  if (!rope.has("rope_type") && !rope.has("type")) {
    if (rope.has("factor")) rope.refuse("rope_type", "default, llama3 or yarn where a factor is given");
    return "default";
  }
  const char* name = rope.has("rope_type") ? "rope_type" : "type";
  std::string kind = rope.choice(name, kAccepted);
  if (rope.has("type") && rope.choice("type", kAccepted) != kind) rope.refuse("type", "the same as rope_type");
  return kind;
}

RopeConfig read_rope(const Fields& top, Architecture architecture, int head_dim, int64_t max_positions) {
  const std::optional<Fields> rope = rope_fields(top);
  if (rope) refuse_unknown_rope_fields(*rope);
  RopeConfig out;
  // Llama 2 was released without rope_theta, so there 10000 is the known meaning of its absence; nowhere else.
  const std::optional<double> theta = architecture == Architecture::llama ? std::optional<double>(10000.0) : std::nullopt;
  out.theta = inside_or_beside(top, rope, "rope_theta", 1.001, 1e12, theta);

  const bool partial = architecture == Architecture::glm4_moe;
  const double turned =
      inside_or_beside(top, rope, "partial_rotary_factor", 0.001, 1, partial ? std::nullopt : std::optional<double>(1.0));
  if (!partial && turned != 1)
    top.complain(fmt::format("partial_rotary_factor must be 1 for this architecture: got {:g}", turned));
  out.rotary = static_cast<int>(head_dim * turned);
  if (out.rotary < 2 || out.rotary % 2 != 0) {
    top.complain(fmt::format("the rotated part of a head must be even: got {} of {} elements", out.rotary, head_dim));
  }
  if (!rope) return out;

  const std::string kind = rope_kind(*rope);
  if (kind == "default") return out;
  out.factor = rope->number("factor", 1, 1e6);
  const bool beside = !rope->has("original_max_position_embeddings");
  const Fields& holder = beside ? top : *rope;
  if (kind == "llama3") {
    out.kind = RopeConfig::Kind::llama3;
    out.original_max_positions = holder.integer("original_max_position_embeddings", 1, kMaxPositions);
    out.low_freq_factor = rope->number("low_freq_factor", 1e-6, 1e6);
    out.high_freq_factor = rope->number("high_freq_factor", 1e-6, 1e6);
    rope->only("high_freq_factor", out.high_freq_factor > out.low_freq_factor, "more than low_freq_factor");
    return out;
  }
  out.kind = RopeConfig::Kind::yarn;
  out.original_max_positions = holder.integer("original_max_position_embeddings", 1, kMaxPositions, max_positions);
  out.beta_fast = rope->number("beta_fast", 1e-6, 1e6, 32);
  out.beta_slow = rope->number("beta_slow", 1e-6, 1e6, 1);
  out.mscale = rope->number("mscale", 0, 100, 1);
  out.mscale_all_dim = rope->number("mscale_all_dim", 0, 100, 0);
  if (rope->has("attention_factor")) out.attention_factor = rope->number("attention_factor", 1e-3, 1e3);
  rope->only("truncate", rope->flag("truncate", true), "true");
  return out;
}

// --- the parts of a model
// -----------------------------------------------------------------------------------------------------

Architecture read_architecture(const Fields& top) {
  std::vector<std::string> supported;
  for (const auto& [name, value] : kArchitectures) supported.emplace_back(name);
  const std::string accepted = fmt::format("a list of one of {}", fmt::join(supported, ", "));
  const json* list = top.find("architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !list->front().is_string()) {
    top.refuse("architectures", accepted);
  }
  for (const auto& [name, value] : kArchitectures) {
    if (list->front() == name) return value;
  }
  const auto name = list->front().get<std::string>();
  const MissingFeature* missing = missing_feature_of(name);
  top.refuse("architectures", missing == nullptr ? accepted : fmt::format("{}; this one {}", accepted, to_string(*missing)));
}

/// Fields that older readers pass over, though the model would be computed wrongly.
void refuse_missing_features(const Fields& top) {
  for (const auto& [field, feature] : missing_feature_fields()) {
    const json* value = top.find(field);
    if (value == nullptr || *value == json(false) || *value == json(0) || (value->is_structured() && value->empty())) continue;
    top.refuse(field, fmt::format("absent: with it the model {}", to_string(*feature)));
  }
}

DType read_stored_dtype(const Fields& top) {
  const char* name = top.has("dtype") ? "dtype" : "torch_dtype";
  const std::string text = top.choice(name, {"bfloat16", "float16", "float32"});
  return text == "float32" ? DType::f32 : text == "float16" ? DType::f16 : DType::bf16;
}

std::vector<int32_t> read_eos(const Fields& top) {
  const json* value = top.find("eos_token_id");
  if (value != nullptr && value->is_array()) return top.sizes("eos_token_id", 0, INT32_MAX);
  if (value == nullptr) return {};
  return {top.size("eos_token_id", 0, INT32_MAX)};
}

std::optional<BlockFp8Config> read_quantization(const Fields& top) {
  const std::optional<Fields> q = top.nested("quantization_config");
  if (!q) return {};
  if (const std::string method = q->text("quant_method"); method != "fp8") {
    q->refuse(
        "quant_method",
        "fp8 (e4m3 in blocks of 128x128): int4, AWQ, GPTQ, NVFP4 and MXFP4 weights are not supported by this version, use "
        "the bfloat16 checkpoint");
  }
  q->choice("fmt", {"e4m3"});
  q->choice("activation_scheme", {"dynamic"});
  const BlockFp8Config block;
  const std::string accepted = fmt::format("[{}, {}]", block.rows, block.cols);
  q->only("weight_block_size", q->sizes("weight_block_size", 1, 1 << 20) == std::vector<int>{block.rows, block.cols}, accepted);
  return block;
}

/// Weft attends to all earlier tokens in every layer.
void refuse_sliding_window(const Fields& top, int stored_layers) {
  if (const json* types = top.find("layer_types")) {
    const bool full =
        types->is_array() && std::all_of(types->begin(), types->end(), [](const json& t) { return t == "full_attention"; });
    top.only("layer_types", full,
             "a list of full_attention only: sliding-window, chunked-local, linear and state-space layers are not supported by "
             "this version");
  }
  if (top.flag("use_sliding_window", false) && top.has("sliding_window")) {
    const int first = top.size("max_window_layers", 0, kMaxLayers, 0);
    top.only(
        "use_sliding_window", first >= stored_layers,
        "false, or max_window_layers at least num_hidden_layers: sliding-window attention is not supported by this version");
  }
}

void read_grouped_query_attention(const Fields& top, ModelConfig& config) {
  config.kv_heads = top.size("num_key_value_heads", 1, config.q_heads, config.q_heads);
  top.only("num_key_value_heads", config.q_heads % config.kv_heads == 0,
           fmt::format("a divisor of num_attention_heads = {}", config.q_heads));
  if (!top.has("head_dim") && config.hidden % config.q_heads != 0) {
    top.refuse("head_dim",
               fmt::format("given where num_attention_heads {} does not divide hidden_size {}", config.q_heads, config.hidden));
  }
  config.head_dim = top.size("head_dim", 2, kMaxHeadDim, config.hidden / config.q_heads);
}

void read_latent_attention(const Fields& top, ModelConfig& config) {
  top.size("num_key_value_heads", 1, config.q_heads, config.q_heads);  // Without meaning here; checked all the same.
  config.kv_heads = config.q_heads;
  MlaConfig mla;
  mla.q_lora_rank = top.size("q_lora_rank", 1, kMaxHidden, 0);
  mla.kv_lora_rank = top.size("kv_lora_rank", 1, kMaxHidden);
  mla.qk_nope_head_dim = top.size("qk_nope_head_dim", 1, kMaxHeadDim);
  mla.qk_rope_head_dim = top.size("qk_rope_head_dim", 2, kMaxHeadDim);
  mla.v_head_dim = top.size("v_head_dim", 1, kMaxHeadDim);
  config.head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  config.mla = mla;
}

/// Biases and norms of the attention and MLP projections.
void read_projections(const Fields& top, ModelConfig& config) {
  const bool attention_bias = top.flag("attention_bias", false);
  switch (config.architecture) {
    case Architecture::llama:
      config.qkv_bias = config.o_bias = attention_bias;
      config.mlp_bias = top.flag("mlp_bias", false);
      break;
    case Architecture::qwen2:
      config.qkv_bias = true;
      break;
    case Architecture::qwen3:
    case Architecture::qwen3_moe:
      config.qkv_bias = config.o_bias = attention_bias;
      config.qk_norm = true;
      break;
    case Architecture::glm4_moe:
      config.qkv_bias = attention_bias;
      config.qk_norm = top.flag("use_qk_norm", false);
      break;
    case Architecture::deepseek_v2:
    case Architecture::deepseek_v3:
      top.only("attention_bias", !attention_bias, "false for this architecture");
      break;
  }
}

void read_expert_sizes(const Fields& top, const char* experts_field, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.num_experts = top.size(experts_field, 1, kMaxExperts);
  if (int64_t{moe.num_experts} * config.stored_layers > kMaxExpertsOfAllLayers) {
    top.refuse(experts_field,
               fmt::format("at most {} for {} layers", kMaxExpertsOfAllLayers / config.stored_layers, config.stored_layers));
  }
  moe.routing.top_k = top.size("num_experts_per_tok", 1, moe.num_experts);
  moe.expert_intermediate = top.size("moe_intermediate_size", 1, kMaxIntermediate);
}

void read_expert_groups(const Fields& top, MoeConfig& moe) {
  Routing& routing = moe.routing;
  routing.n_group = top.size("n_group", 1, moe.num_experts);
  routing.topk_group = top.size("topk_group", 1, routing.n_group);
  top.only("n_group", moe.num_experts % routing.n_group == 0, fmt::format("a divisor of the {} experts", moe.num_experts));
  const int group = moe.num_experts / routing.n_group;
  const bool pairs = routing.group_rank == Routing::GroupRank::top2_sum && routing.n_group > 1;
  top.only("n_group", !pairs || group >= 2, "small enough for two experts in a group, whose sum ranks it");
  top.only("num_experts_per_tok", routing.top_k <= group * routing.topk_group,
           fmt::format("at most {}, the experts of topk_group {} groups", group * routing.topk_group, routing.topk_group));
}

/// The layers that are sparse, the shared experts and the scale: the same fields in DeepSeek and GLM-4.
void read_deepseek_moe(const Fields& top, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  read_expert_sizes(top, "n_routed_experts", config);
  moe.first_dense_layers = top.size("first_k_dense_replace", 0, config.stored_layers, 0);
  top.only("moe_layer_freq", top.size("moe_layer_freq", 1, kMaxLayers, 1) == 1, "1");
  const int64_t shared = top.integer("n_shared_experts", 0, kMaxExperts, 0) * moe.expert_intermediate;
  top.only("n_shared_experts", shared <= kMaxIntermediate, fmt::format("at most {} rows in all", kMaxIntermediate));
  moe.shared_intermediate = static_cast<int>(shared);
}

void read_sigmoid_routing(const Fields& top, ModelConfig& config) {
  read_deepseek_moe(top, config);
  top.choice("topk_method", {"noaux_tc"});
  top.choice("scoring_func", {"sigmoid"});
  Routing& routing = config.moe.routing;
  routing.scores = Routing::Scores::sigmoid;
  routing.group_rank = Routing::GroupRank::top2_sum;
  routing.normalize = top.flag("norm_topk_prob", true);
  routing.scale = static_cast<float>(top.number("routed_scaling_factor", 1e-6, 1e6));
  read_expert_groups(top, config.moe);
  config.moe.has_choice_bias = true;
}

void read_softmax_routing(const Fields& top, ModelConfig& config) {
  read_deepseek_moe(top, config);
  const std::string method = top.choice("topk_method", {"greedy", "group_limited_greedy"});
  top.choice("scoring_func", {"softmax"});
  // The released models have it false, and implementations disagree about what true would mean.
  top.only("norm_topk_prob", !top.flag("norm_topk_prob", false), "false for this architecture");
  config.moe.routing.scale = static_cast<float>(top.number("routed_scaling_factor", 1e-6, 1e6, 1));
  if (method == "group_limited_greedy") read_expert_groups(top, config.moe);
}

void read_moe(const Fields& top, ModelConfig& config) {
  switch (config.architecture) {
    case Architecture::llama:
    case Architecture::qwen2:
    case Architecture::qwen3:
      return;
    case Architecture::qwen3_moe:
      read_expert_sizes(top, "num_experts", config);
      config.moe.routing.normalize = top.flag("norm_topk_prob", false);
      config.moe.layer_step = top.size("decoder_sparse_step", 1, kMaxLayers, 1);
      config.moe.dense_layers = top.sizes("mlp_only_layers", 0, config.stored_layers - 1);
      return;
    case Architecture::deepseek_v2:
      if (top.has("n_routed_experts")) read_softmax_routing(top, config);
      return;
    case Architecture::glm4_moe:
    case Architecture::deepseek_v3:
      read_sigmoid_routing(top, config);
      config.mtp_layers = top.size("num_nextn_predict_layers", 0, 16, 0);
      return;
  }
}

/// Newer files also spell out which layers are sparse; it must be what the other fields say.
void check_mlp_layer_types(const Fields& top, const ModelConfig& config) {
  const json* types = top.find("mlp_layer_types");
  if (types == nullptr) return;
  bool same = types->is_array() && types->size() == static_cast<size_t>(config.stored_layers);
  for (int i = 0; same && i < config.stored_layers; ++i) same = (*types)[i] == (config.is_sparse(i) ? "sparse" : "dense");
  top.only("mlp_layer_types", same, "what first_k_dense_replace says of every layer");
}

ModelConfig read_model(const Fields& top, int num_layers) {
  ModelConfig config;
  config.architecture = read_architecture(top);
  refuse_missing_features(top);
  config.model_type = top.text("model_type", "");
  config.hidden = top.size("hidden_size", 1, kMaxHidden);
  config.stored_layers = top.size("num_hidden_layers", 1, kMaxLayers);
  config.q_heads = top.size("num_attention_heads", 1, kMaxHeads);
  config.intermediate = top.size("intermediate_size", 1, kMaxIntermediate);
  config.vocab = top.integer("vocab_size", 1, kMaxVocab);
  config.max_positions = top.integer("max_position_embeddings", 1, kMaxPositions);
  config.norm_eps = static_cast<float>(top.number("rms_norm_eps", 1e-12, 1));
  config.tied_embeddings = top.flag("tie_word_embeddings", false);
  config.stored_dtype = read_stored_dtype(top);
  config.eos_ids = read_eos(top);
  config.block_fp8 = read_quantization(top);
  top.choice("hidden_act", {"silu"});
  refuse_sliding_window(top, config.stored_layers);

  const bool latent = config.architecture == Architecture::deepseek_v2 || config.architecture == Architecture::deepseek_v3;
  latent ? read_latent_attention(top, config) : read_grouped_query_attention(top, config);
  read_projections(top, config);
  read_moe(top, config);
  check_mlp_layer_types(top, config);
  const int rotated_head = latent ? config.mla->qk_rope_head_dim : config.head_dim;
  config.rope = read_rope(top, config.architecture, rotated_head, config.max_positions);
  config.rope.interleaved = latent && top.flag("rope_interleave", true);

  if (num_layers < 0 || num_layers > config.stored_layers) {
    throw UserError("--num-layers must be 1 to {}, or all: got {}", config.stored_layers, num_layers);
  }
  config.layers = num_layers > 0 ? num_layers : config.stored_layers;
  return config;
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

/// At most 1 MiB.
std::string read_json_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) throw SystemError("cannot read {}", path.string());
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

/// The tokens that end an answer, as generation_config.json has them beside config.json.
std::vector<int32_t> read_generation_eos(const std::filesystem::path& path) {
  const std::string text = read_json_file(path);
  if (text.size() > kMaxConfigBytes) {
    throw UserError("generation_config.json is larger than {} bytes, path {}", kMaxConfigBytes, path.string());
  }
  const json object = parse_strict_json(text, "generation_config.json", path.string());
  if (!object.is_object())
    throw UserError("generation_config.json must be a JSON object: got {}, path {}", shown(object), path.string());
  return read_eos(Fields(object, "", path));
}

}  // namespace

const char* to_string(Architecture architecture) {
  for (const auto& [name, value] : kArchitectures) {
    if (value == architecture) return name;
  }
  return "?";
}

std::vector<double> RopeConfig::inv_freq() const {
  const int pairs = rotary / 2;
  std::vector<double> out(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) out[i] = std::pow(theta, -2.0 * i / rotary);
  if (kind == Kind::llama3) {
    // Pairs that turn often within the original length keep their frequency, slow ones are stretched, a ramp lies between.
    for (double& f : out) {
      const double turns = static_cast<double>(original_max_positions) * f / (2 * std::numbers::pi);
      const double keep = std::clamp((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0);
      f *= keep + (1 - keep) / factor;
    }
  } else if (kind == Kind::yarn) {
    // The pair that makes `turns` turns within the original length, as a real number.
    const auto pair_of = [&](double turns) {
      return rotary * std::log(static_cast<double>(original_max_positions) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    const double low = std::max(std::floor(pair_of(beta_fast)), 0.0);
    const double high = std::min(std::ceil(pair_of(beta_slow)), rotary - 1.0);
    for (int i = 0; i < pairs; ++i) {
      const double stretch = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
      out[i] *= 1 - stretch + stretch / factor;
    }
  }
  return out;
}

double RopeConfig::cos_factor() const {
  if (kind != Kind::yarn) return 1;
  if (attention_factor) return *attention_factor;
  return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim);
}

double RopeConfig::softmax_factor() const {
  if (kind != Kind::yarn) return 1;
  const double m = yarn_mscale(factor, mscale_all_dim);
  return m * m;
}

bool ModelConfig::is_sparse(int layer) const {
  const auto& dense = moe.dense_layers;
  return moe.num_experts > 0 && layer >= moe.first_dense_layers && (layer + 1) % moe.layer_step == 0 &&
         std::find(dense.begin(), dense.end(), layer) == dense.end();
}

float ModelConfig::softmax_scale() const {
  // Only latent attention puts yarn's factor here; elsewhere cos and sin carry all of it.
  return static_cast<float>(std::pow(head_dim, -0.5) * (mla ? rope.softmax_factor() : 1.0));
}

ModelConfig parse_config(std::string_view text, const std::filesystem::path& path, int num_layers) {
  if (text.size() > kMaxConfigBytes) {
    throw UserError("config.json is larger than {} bytes: {} bytes, path {}", kMaxConfigBytes, text.size(), path.string());
  }
  const json object = parse_strict_json(text, "config.json", path.string());
  if (!object.is_object()) throw UserError("config.json must be a JSON object: got {}, path {}", shown(object), path.string());
  return read_model(Fields(object, "", path), num_layers);
}

ModelConfig load_config(const std::filesystem::path& model_dir, int num_layers) {
  const std::filesystem::path path = model_dir / "config.json", generation = model_dir / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(model_dir, error)) throw UserError("no such model folder: {}", model_dir.string());
  if (!std::filesystem::is_regular_file(path, error)) {
    throw UserError("no config.json in the model folder, path {}", path.string());
  }
  ModelConfig config = parse_config(read_json_file(path), path, num_layers);
  if (std::filesystem::is_regular_file(generation, error)) {
    for (const int32_t id : read_generation_eos(generation)) {
      if (std::find(config.eos_ids.begin(), config.eos_ids.end(), id) == config.eos_ids.end()) config.eos_ids.push_back(id);
    }
  }
  return config;
}

}  // namespace weft
