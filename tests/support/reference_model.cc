#include "support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>

#include "support/golden_files.h"

namespace weft::test {
namespace {

using Json = nlohmann::json;

/// `count` rows of `width` elements.
struct Rows {
  int64_t count = 0, width = 0;
  std::vector<double> data;

  Rows() = default;
  Rows(int64_t n, int64_t w) : count(n), width(w), data(static_cast<size_t>(n * w)) {}
  double* operator[](int64_t row) { return data.data() + row * width; }
  const double* operator[](int64_t row) const { return data.data() + row * width; }

  Rows& operator+=(const Rows& other) {
    for (size_t i = 0; i < data.size(); ++i) data[i] += other.data[i];
    return *this;
  }
};

/// out[i] = a . rows[i]. Four sums at a time keep the adder busy.
void dot_rows(const double* a, const double* rows, int64_t stride, int64_t count, int64_t width, double* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const double *r0 = rows + i * stride, *r1 = r0 + stride, *r2 = r1 + stride, *r3 = r2 + stride;
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int64_t k = 0; k < width; ++k) {
      s0 += a[k] * r0[k];
      s1 += a[k] * r1[k];
      s2 += a[k] * r2[k];
      s3 += a[k] * r3[k];
    }
    out[i] = s0, out[i + 1] = s1, out[i + 2] = s2, out[i + 3] = s3;
  }
  for (; i < count; ++i) out[i] = std::inner_product(a, a + width, rows + i * stride, 0.0);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void softmax(double* values, int64_t count) {
  const double top = *std::max_element(values, values + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - top);
  for (int64_t i = 0; i < count; ++i) values[i] /= sum;
}

/// Columns [begin, begin + width) of every row.
Rows columns(const Rows& x, int64_t begin, int64_t width) {
  Rows out(x.count, width);
  for (int64_t t = 0; t < x.count; ++t) std::copy_n(x[t] + begin, width, out[t]);
  return out;
}

/// The `keep` indices of the largest values, ties to the lower index, in ascending order.
std::vector<int32_t> largest(const std::vector<double>& values, size_t keep) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  return order;
}

/// A value of a JSON object, or `otherwise` where it is absent or null.
template <typename T>
T value_or(const Json& object, const char* key, T otherwise) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? otherwise : found->template get<T>();
}

/// Rotary embedding: angles per position, and the two places where yarn's mscale enters.
struct Rope {
  std::vector<double> inv_freq;
  double on_cos = 1, on_softmax = 1;
  bool interleaved = false;  ///< pairs (2i, 2i + 1), else (i, i + dim / 2)

  Rope() = default;
  Rope(const Json& config, int64_t dim, bool latent) : interleaved(latent) {
    Json scaling = Json::object();
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (config.contains(key) && config[key].is_object()) scaling.update(config[key]);
    }
    const double theta = value_or(scaling, "rope_theta", value_or(config, "rope_theta", 10000.0));
    const auto kind = value_or<std::string>(scaling, "rope_type", value_or<std::string>(scaling, "type", "default"));
    for (int64_t i = 0; i < dim / 2; ++i) {
      inv_freq.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
    }
    if (kind == "llama3") {
      stretch_by_wavelength(scaling);
    } else if (kind == "yarn") {
      stretch_by_turns(scaling, theta, static_cast<double>(dim));
      const double factor = scaling.at("factor"), all = value_or(scaling, "mscale_all_dim", 0.0);
      const double some = value_or(scaling, "mscale", 0.0);
      on_cos = some != 0 && all != 0 ? mscale(factor, some) / mscale(factor, all) : mscale(factor, 1);
      on_cos = value_or(scaling, "attention_factor", on_cos);
      if (latent && all != 0) on_softmax = mscale(factor, all) * mscale(factor, all);
    } else if (kind != "default") {
      throw std::runtime_error("unknown rope type " + kind);
    }
  }

  static double mscale(double factor, double m) { return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1; }

  /// llama3: slow pairs are divided by the factor, fast ones kept, those between blended by their turns in the old context.
  void stretch_by_wavelength(const Json& scaling) {
    const double old = scaling.at("original_max_position_embeddings"), factor = scaling.at("factor");
    const double low = scaling.at("low_freq_factor"), high = scaling.at("high_freq_factor");
    for (double& f : inv_freq) {
      const double turns = old * f / (2 * std::numbers::pi);
      const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      f = f * keep + f / factor * (1 - keep);
    }
  }

  /// yarn: the blend is a ramp over pair numbers, between those that turn beta_fast and beta_slow times in the old context.
  void stretch_by_turns(const Json& scaling, double theta, double dim) {
    const double old = scaling.at("original_max_position_embeddings"), factor = scaling.at("factor");
    const auto pair_with = [&](double turns) {
      return dim * std::log(old / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    const double first = std::max(std::floor(pair_with(value_or(scaling, "beta_fast", 32.0))), 0.0);
    const double last = std::min(std::ceil(pair_with(value_or(scaling, "beta_slow", 1.0))), dim - 1);
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const double slow = std::clamp((static_cast<double>(i) - first) / std::max(last - first, 0.001), 0.0, 1.0);
      inv_freq[i] = inv_freq[i] * (1 - slow) + inv_freq[i] / factor * slow;
    }
  }

  /// Turns the first 2 * inv_freq.size() elements of a head at position `pos`, in place.
  void turn(double* head, int64_t pos) const {
    const size_t pairs = inv_freq.size();
    for (size_t i = 0; i < pairs; ++i) {
      double& a = head[interleaved ? 2 * i : i];
      double& b = head[interleaved ? 2 * i + 1 : i + pairs];
      const double angle = static_cast<double>(pos) * inv_freq[i];
      const double c = std::cos(angle) * on_cos, s = std::sin(angle) * on_cos, old_a = a;
      a = old_a * c - b * s;
      b = b * c + old_a * s;
    }
  }
};

}  // namespace

struct ReferenceModel::Parts {
  Json config;
  StoredTensors weights;
  bool latent = false;  ///< MLA
  int64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 0;
  Rope rope;

  explicit Parts(const std::filesystem::path& dir)
      : config(Json::parse(std::ifstream(dir / "config.json"))), weights(read_stored_checkpoint(dir)) {
    const std::string architecture = config.at("architectures").at(0);
    const std::vector<std::string> known = {"LlamaForCausalLM",     "Qwen2ForCausalLM",   "Qwen3ForCausalLM",
                                            "Qwen3MoeForCausalLM",  "Glm4MoeForCausalLM", "DeepseekV2ForCausalLM",
                                            "DeepseekV3ForCausalLM"};
    if (std::find(known.begin(), known.end(), architecture) == known.end()) {
      throw std::runtime_error("the reference model does not know " + architecture);
    }
    latent = architecture.starts_with("Deepseek");
    layers = number("num_hidden_layers");
    heads = number("num_attention_heads");
    eps = config.at("rms_norm_eps");
    if (latent) {
      rope = Rope(config, number("qk_rope_head_dim"), true);
    } else {
      kv_heads = value_or(config, "num_key_value_heads", heads);
      head_dim = value_or(config, "head_dim", number("hidden_size") / heads);
      const double usual = architecture == "Glm4MoeForCausalLM" ? 0.5 : 1.0;
      const Json& rope_parameters = config.contains("rope_parameters") ? config["rope_parameters"] : config;
      const double part = value_or(rope_parameters, "partial_rotary_factor", value_or(config, "partial_rotary_factor", usual));
      rope = Rope(config, static_cast<int64_t>(static_cast<double>(head_dim) * part), false);
    }
    scale_fp8_tiles();
  }

  int64_t number(const char* key) const { return config.at(key).get<int64_t>(); }
  bool flag(const char* key) const { return value_or(config, key, false); }

  const StoredTensor* find(const std::string& name) const {
    const auto found = weights.find(name);
    return found == weights.end() ? nullptr : &found->second;
  }
  const StoredTensor& weight(const std::string& name) const {
    const StoredTensor* found = find(name);
    if (found == nullptr) throw std::runtime_error("no tensor " + name);
    return *found;
  }

  /// Element (i, j) of a weight with NAME_scale_inv beside it is multiplied by the scale of its tile.
  void scale_fp8_tiles() {
    const std::string suffix = "_scale_inv";
    if (!config.contains("quantization_config")) return;
    const auto tile = config["quantization_config"].at("weight_block_size").get<std::vector<int64_t>>();
    for (const auto& [name, scale] : weights) {
      if (!name.ends_with(suffix)) continue;
      StoredTensor& scaled = weights.at(name.substr(0, name.size() - suffix.size()));
      const int64_t cols = scaled.size(1), tiles_across = (cols + tile[1] - 1) / tile[1];
      for (int64_t i = 0; i < scaled.size(0); ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          const int64_t of_tile = i / tile[0] * tiles_across + j / tile[1];
          scaled.values[static_cast<size_t>(i * cols + j)] *= scale.values.at(static_cast<size_t>(of_tile));
        }
      }
    }
  }

  // ---- Building blocks: [T, in] -> [T, out] ----

  Rows linear(const Rows& x, const std::string& name) const {
    const StoredTensor& w = weight(name + ".weight");
    if (w.size(1) != x.width) throw std::runtime_error("wrong width: " + name);
    Rows y(x.count, w.size(0));
    for (int64_t t = 0; t < x.count; ++t) dot_rows(x[t], w.values.data(), x.width, y.width, x.width, y[t]);
    if (const StoredTensor* bias = find(name + ".bias")) {
      for (int64_t t = 0; t < x.count; ++t) {
        for (int64_t i = 0; i < y.width; ++i) y[t][i] += bias->values[static_cast<size_t>(i)];
      }
    }
    return y;
  }

  /// RMS norm of every run of `weight` elements: whole rows, or the heads in them.
  Rows norm(Rows x, const std::string& name, double epsilon) const {
    const std::vector<double>& w = weight(name + ".weight").values;
    for (size_t at = 0; at < x.data.size(); at += w.size()) {
      double squares = 0;
      for (size_t i = 0; i < w.size(); ++i) squares += x.data[at + i] * x.data[at + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(w.size()) + epsilon);
      for (size_t i = 0; i < w.size(); ++i) x.data[at + i] *= scale * w[i];
    }
    return x;
  }

  Rows mlp(const Rows& x, const std::string& prefix) const {
    Rows gate = linear(x, prefix + "gate_proj");
    const Rows up = linear(x, prefix + "up_proj");
    for (size_t i = 0; i < gate.data.size(); ++i) gate.data[i] *= sigmoid(gate.data[i]) * up.data[i];
    return linear(gate, prefix + "down_proj");
  }

  // ---- Attention ----

  /// q [T, heads * dk], k [T, groups * dk], v [T, groups * dv]; row t sees rows 0..t. Head h reads group h / (heads / groups).
  Rows attend(const Rows& q, const Rows& k, const Rows& v, int64_t groups, double scale) const {
    const int64_t dk = q.width / heads, dv = v.width / groups;
    Rows out(q.count, heads * dv);
    std::vector<double> p(static_cast<size_t>(q.count));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t group = h / (heads / groups);
      for (int64_t t = 0; t < q.count; ++t) {
        dot_rows(q[t] + h * dk, k.data.data() + group * dk, k.width, t + 1, dk, p.data());
        for (int64_t s = 0; s <= t; ++s) p[static_cast<size_t>(s)] *= scale;
        softmax(p.data(), t + 1);
        double* row = out[t] + h * dv;
        for (int64_t s = 0; s <= t; ++s) {
          const double* value = v[s] + group * dv;
          for (int64_t i = 0; i < dv; ++i) row[i] += p[static_cast<size_t>(s)] * value[i];
        }
      }
    }
    return out;
  }

  void turn_heads(Rows& x, int64_t head_width, int64_t offset) const {
    for (int64_t t = 0; t < x.count; ++t) {
      for (int64_t at = offset; at < x.width; at += head_width) rope.turn(x[t] + at, t);
    }
  }

  Rows grouped_attention(const Rows& x, const std::string& prefix) const {
    Rows q = linear(x, prefix + "q_proj"), k = linear(x, prefix + "k_proj");
    const Rows v = linear(x, prefix + "v_proj");
    if (find(prefix + "q_norm.weight") != nullptr) {
      q = norm(std::move(q), prefix + "q_norm", eps);
      k = norm(std::move(k), prefix + "k_norm", eps);
    }
    turn_heads(q, head_dim, 0);
    turn_heads(k, head_dim, 0);
    return linear(attend(q, k, v, kv_heads, 1 / std::sqrt(static_cast<double>(head_dim))), prefix + "o_proj");
  }

  Rows latent_attention(const Rows& x, const std::string& prefix) const {
    constexpr double kLatentEps = 1e-6;  // The two latent norms do not follow rms_norm_eps.
    const int64_t nope = number("qk_nope_head_dim"), turned = number("qk_rope_head_dim"), dv = number("v_head_dim");
    const int64_t rank = number("kv_lora_rank"), dk = nope + turned;

    Rows q = value_or<int64_t>(config, "q_lora_rank", 0) == 0
                 ? linear(x, prefix + "q_proj")
                 : linear(norm(linear(x, prefix + "q_a_proj"), prefix + "q_a_layernorm", kLatentEps), prefix + "q_b_proj");
    turn_heads(q, dk, nope);

    const Rows compressed = linear(x, prefix + "kv_a_proj_with_mqa");
    Rows shared_key = columns(compressed, rank, turned);
    turn_heads(shared_key, turned, 0);
    const Rows kv = linear(norm(columns(compressed, 0, rank), prefix + "kv_a_layernorm", kLatentEps), prefix + "kv_b_proj");

    Rows k(x.count, heads * dk), v(x.count, heads * dv);
    for (int64_t t = 0; t < x.count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const double* head = kv[t] + h * (nope + dv);
        std::copy_n(head, nope, k[t] + h * dk);
        std::copy_n(shared_key[t], turned, k[t] + h * dk + nope);
        std::copy_n(head + nope, dv, v[t] + h * dv);
      }
    }
    const double scale = rope.on_softmax / std::sqrt(static_cast<double>(dk));
    return linear(attend(q, k, v, heads, scale), prefix + "o_proj");
  }

  // ---- Mixture of experts ----

  /// Which experts one row goes to, from its scores, and with what weights.
  std::vector<int32_t> choose(const std::vector<double>& score, const std::string& prefix) const {
    std::vector<double> choice = score;
    if (const StoredTensor* bias = find(prefix + "gate.e_score_correction_bias")) {
      for (size_t e = 0; e < choice.size(); ++e) choice[e] += bias->values[e];
    }
    const auto method = value_or<std::string>(config, "topk_method", sigmoid_scores() ? "noaux_tc" : "greedy");
    if (method != "greedy") {
      const auto groups = value_or<size_t>(config, "n_group", 1), each = choice.size() / groups;
      std::vector<double> rank(groups);
      for (size_t g = 0; g < groups; ++g) {
        std::vector<double> members(choice.begin() + static_cast<ptrdiff_t>(g * each),
                                    choice.begin() + static_cast<ptrdiff_t>((g + 1) * each));
        std::sort(members.rbegin(), members.rend());
        rank[g] = members[0] + (method == "noaux_tc" && each > 1 ? members[1] : 0);
      }
      const std::vector<int32_t> open = largest(rank, value_or<size_t>(config, "topk_group", 1));
      for (size_t e = 0; e < choice.size(); ++e) {
        if (!std::binary_search(open.begin(), open.end(), static_cast<int32_t>(e / each))) choice[e] = -HUGE_VAL;
      }
    }
    return largest(choice, static_cast<size_t>(number("num_experts_per_tok")));
  }

  bool sigmoid_scores() const {
    const std::string architecture = config.at("architectures").at(0);
    return architecture == "DeepseekV3ForCausalLM" || architecture == "Glm4MoeForCausalLM";
  }

  Router route(const Rows& x, const std::string& prefix, int layer) const {
    const Rows logits = linear(x, prefix + "gate");
    Router router{.layer = layer, .top_k = static_cast<int>(number("num_experts_per_tok")), .experts = {}, .weights = {}};
    // DeepSeek-V2 is published without normalisation, whatever its config says.
    const bool normalise = flag("norm_topk_prob") && config.at("architectures").at(0) != "DeepseekV2ForCausalLM";
    const double factor = value_or(config, "routed_scaling_factor", 1.0);
    for (int64_t t = 0; t < x.count; ++t) {
      std::vector<double> score(logits[t], logits[t] + logits.width);
      if (sigmoid_scores()) {
        std::transform(score.begin(), score.end(), score.begin(), sigmoid);
      } else {
        softmax(score.data(), logits.width);
      }
      const std::vector<int32_t> experts = choose(score, prefix);
      double sum = 0;
      for (const int32_t e : experts) sum += score[static_cast<size_t>(e)];
      for (const int32_t e : experts) {
        router.experts.push_back(e);
        router.weights.push_back(score[static_cast<size_t>(e)] / (normalise ? sum : 1) * factor);
      }
    }
    return router;
  }

  Rows mixture(const Rows& x, const std::string& prefix, const Router& router) const {
    Rows y(x.count, x.width);
    const int64_t experts = weight(prefix + "gate.weight").size(0);
    for (int32_t e = 0; e < experts; ++e) {
      std::vector<int64_t> places;
      for (size_t i = 0; i < router.experts.size(); ++i) {
        if (router.experts[i] == e) places.push_back(static_cast<int64_t>(i));
      }
      if (places.empty()) continue;
      Rows mine(static_cast<int64_t>(places.size()), x.width);
      for (int64_t i = 0; i < mine.count; ++i) {
        std::copy_n(x[places[static_cast<size_t>(i)] / router.top_k], x.width, mine[i]);
      }
      const Rows done = mlp(mine, prefix + "experts." + std::to_string(e) + ".");
      for (int64_t i = 0; i < mine.count; ++i) {
        const int64_t place = places[static_cast<size_t>(i)];
        const double share = router.weights[static_cast<size_t>(place)];
        for (int64_t j = 0; j < x.width; ++j) y[place / router.top_k][j] += share * done[i][j];
      }
    }
    if (find(prefix + "shared_experts.gate_proj.weight") != nullptr) y += mlp(x, prefix + "shared_experts.");
    return y;
  }

  Output forward(std::span<const int32_t> ids) const {
    Output out;
    const StoredTensor& embedding = weight("model.embed_tokens.weight");
    Rows x(static_cast<int64_t>(ids.size()), embedding.size(1));
    for (int64_t t = 0; t < x.count; ++t) {
      std::copy_n(embedding.values.data() + ids[static_cast<size_t>(t)] * x.width, x.width, x[t]);
    }
    out.hidden.push_back(x.data);
    for (int layer = 0; layer < layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      const Rows in = norm(x, prefix + "input_layernorm", eps);
      x += latent ? latent_attention(in, prefix + "self_attn.") : grouped_attention(in, prefix + "self_attn.");
      const Rows mid = norm(x, prefix + "post_attention_layernorm", eps);
      if (find(prefix + "mlp.gate.weight") != nullptr) {
        out.router.push_back(route(mid, prefix + "mlp.", layer));
        x += mixture(mid, prefix + "mlp.", out.router.back());
      } else {
        x += mlp(mid, prefix + "mlp.");
      }
      out.hidden.push_back(x.data);
    }
    const bool tied = flag("tie_word_embeddings");
    out.logits = linear(norm(x, "model.norm", eps), tied ? "model.embed_tokens" : "lm_head").data;
    return out;
  }
};

ReferenceModel::ReferenceModel(const std::filesystem::path& model_dir) : parts_(std::make_unique<Parts>(model_dir)) {}
ReferenceModel::~ReferenceModel() = default;

ReferenceModel::Output ReferenceModel::forward(std::span<const int32_t> ids) const { return parts_->forward(ids); }

int64_t ReferenceModel::vocab() const { return parts_->weight("model.embed_tokens.weight").size(0); }

}  // namespace weft::test
