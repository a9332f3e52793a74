#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "layout/even_cut.h"
#include "model/families.h"

namespace weft {
namespace {

/// Rows and columns of a tensor; a vector is one column.
struct Slice {
  Range rows, cols;
  int64_t count() const { return rows.size() * cols.size(); }
};

int64_t rows_of(const ParamSpec& spec) { return spec.shape[0]; }
int64_t cols_of(const ParamSpec& spec) { return spec.shape.size() > 1 ? spec.shape[1] : 1; }

Range scaled(Range heads, int64_t unit) { return {heads.begin * unit, heads.end * unit}; }

/// The part of a tensor that belongs to a rank.
Slice slice_of(const ParamSpec& spec, const RankGrid& grid, int tp_rank) {
  const Range all_rows{0, rows_of(spec)}, all_cols{0, cols_of(spec)};
  switch (spec.cut) {
    case Cut::whole:
      return {all_rows, all_cols};
    case Cut::q_head_rows:
      return {scaled(grid.q_heads_of(tp_rank), spec.unit), all_cols};
    case Cut::kv_head_rows:
      return {scaled(grid.kv_heads_of(tp_rank), spec.unit), all_cols};
    case Cut::q_head_cols:
      return {all_rows, scaled(grid.q_heads_of(tp_rank), spec.unit)};
    case Cut::even_rows:
      return {EvenCut{all_rows.end, grid.tp()}.part(tp_rank), all_cols};
    case Cut::even_cols:
      return {all_rows, EvenCut{all_cols.end, grid.tp()}.part(tp_rank)};
    case Cut::first_rank:
      return {tp_rank == 0 ? all_rows : Range{0, 0}, all_cols};
  }
  return {};
}

// --- where elements come from
// -------------------------------------------------------------------------------------------------

/// Gives any part of any parameter in any compute dtype.
class Source {
 public:
  virtual ~Source() = default;
  /// Writes the slice, row-major and packed, as elements of `dtype` (float32 or bfloat16).
  virtual void read(const ParamSpec& spec, const Slice& slice, DType dtype, std::byte* out) = 0;
  /// The slice where it lies already, as `dtype`, row-major and packed; null where it must be read.
  virtual const std::byte* in_place(const ParamSpec&, const Slice&, DType) { return nullptr; }
};

template <typename T>
T element(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));  // Files promise no alignment.
  return value;
}

/// Rounds once, to nearest even. By way of float a product that is just off a tie could be rounded twice.
template <typename Out>
Out rounded(double value) {
  float nearest = static_cast<float>(value);
  if constexpr (std::is_same_v<Out, bf16>) {
    const uint32_t bits = std::bit_cast<uint32_t>(nearest);
    const bool is_tie = (bits & 0xffffu) == 0x8000u;
    if (is_tie && static_cast<double>(nearest) != value) {
      const bool away_from_zero = std::fabs(value) > std::fabs(static_cast<double>(nearest));
      nearest = std::bit_cast<float>(away_from_zero ? bits + 1 : bits - 1);
    }
  }
  return Out(nearest);
}

class CheckpointSource final : public Source {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void read(const ParamSpec& spec, const Slice& slice, DType dtype, std::byte* out) override {
    dtype == DType::f32 ? read_as<float>(spec, slice, out) : read_as<bf16>(spec, slice, out);
  }
  const std::byte* in_place(const ParamSpec& spec, const Slice& slice, DType dtype) override {
    const Checkpoint::Tensor& tensor = *checkpoint_.find(spec.name);
    if (tensor.dtype != dtype || slice.cols.size() != cols_of(spec)) return nullptr;
    const std::byte* at = tensor.bytes.data() + slice.rows.begin * cols_of(spec) * static_cast<int64_t>(size_of(dtype));
    return reinterpret_cast<uintptr_t>(at) % size_of(dtype) == 0 ? at : nullptr;
  }

 private:
  template <typename Out>
  void read_as(const ParamSpec& spec, const Slice& slice, std::byte* out) {
    const Checkpoint::Tensor& tensor = *checkpoint_.find(spec.name);
    switch (*tensor.dtype) {
      case DType::f32:
        return convert<Out, float>(tensor, spec, slice, out, [](float x) { return Out(x); });
      case DType::bf16:
        return convert<Out, bf16>(tensor, spec, slice, out, [](bf16 x) { return Out(static_cast<float>(x)); });
      case DType::f16:
        return convert<Out, uint16_t>(tensor, spec, slice, out, [](uint16_t x) { return Out(f16_to_float(x)); });
      case DType::f8_e4m3:
        return scale_tiles<Out>(tensor, spec, slice, out);
      default:
        WEFT_CHECK(false) << spec.name << " of type " << tensor.dtype_name << " passed the check";
    }
  }
  template <typename Out, typename In, typename Convert>
  static void convert(const Checkpoint::Tensor& tensor, const ParamSpec& spec, const Slice& slice, std::byte* out,
                      Convert convert) {
    for (int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
      const std::byte* in = tensor.bytes.data() + row * cols_of(spec) * static_cast<int64_t>(sizeof(In));
      if constexpr (std::is_same_v<In, Out>) {
        const size_t bytes = static_cast<size_t>(slice.cols.size()) * sizeof(Out);
        std::memcpy(out, in + slice.cols.begin * static_cast<int64_t>(sizeof(In)), bytes);
        out += bytes;
      } else {
        for (int64_t col = slice.cols.begin; col < slice.cols.end; ++col, out += sizeof(Out)) {
          const Out value = convert(element<In>(in, col));
          std::memcpy(out, &value, sizeof(Out));
        }
      }
    }
  }
  /// An element keeps the scale of the tile that it lies in, counted in the whole tensor, wherever the slice begins. One table
  /// of 256 products per tile: a tile has 16384 elements.
  template <typename Out>
  void scale_tiles(const Checkpoint::Tensor& tensor, const ParamSpec& spec, const Slice& slice, std::byte* out) {
    const BlockFp8Config tile;
    const Checkpoint::Tensor& scales = *checkpoint_.find(spec.name + "_scale_inv");
    const int64_t cols = cols_of(spec), tile_cols = (cols + tile.cols - 1) / tile.cols;
    std::array<Out, 256> product;
    for (int64_t row0 = slice.rows.begin; row0 < slice.rows.end; row0 = (row0 / tile.rows + 1) * tile.rows) {
      for (int64_t col0 = slice.cols.begin; col0 < slice.cols.end; col0 = (col0 / tile.cols + 1) * tile.cols) {
        const int64_t index = row0 / tile.rows * tile_cols + col0 / tile.cols;
        const double scale = scales.dtype == DType::f32 ? element<float>(scales.bytes.data(), index)
                                                        : static_cast<float>(element<bf16>(scales.bytes.data(), index));
        for (int code = 0; code < 256; ++code)
          product[code] = rounded<Out>(f8_e4m3_to_float(static_cast<uint8_t>(code)) * scale);
        const int64_t row1 = std::min(slice.rows.end, (row0 / tile.rows + 1) * tile.rows);
        const int64_t col1 = std::min(slice.cols.end, (col0 / tile.cols + 1) * tile.cols);
        for (int64_t row = row0; row < row1; ++row) {
          const std::byte* in = tensor.bytes.data() + row * cols;
          const int64_t place = (row - slice.rows.begin) * slice.cols.size() + col0 - slice.cols.begin;
          Out* target = reinterpret_cast<Out*>(out) + place;
          for (int64_t col = col0; col < col1; ++col) *target++ = product[static_cast<size_t>(in[col])];
        }
      }
    }
  }

  const Checkpoint& checkpoint_;
};

constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;  // The finaliser of SplitMix64.
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// Random weights of the scales that training keeps: activations and logits stay of order one.
class DummySource final : public Source {
 public:
  explicit DummySource(uint64_t seed) : seed_(seed) {}

  void read(const ParamSpec& spec, const Slice& slice, DType dtype, std::byte* out) override {
    uint64_t key = mixed(seed_ + 0x9e3779b97f4a7c15u);
    for (const char c : spec.name) key = mixed(key ^ static_cast<unsigned char>(c));
    const bool is_norm = spec.shape.size() == 1 && spec.name.ends_with("norm.weight");
    const float mean = is_norm ? 1.0f : 0.0f;
    const float spread = spec.param == Param::embedding ? 1.0f
                         : spec.shape.size() == 1       ? 0.1f
                                                        : 1.0f / std::sqrt(static_cast<float>(cols_of(spec)));
    // Uniform in mean +- spread * sqrt(3), so the deviation is `spread`.
    const float step = spread * 1.7320508f * 0x1p-31f;
    for (int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
      for (int64_t col = slice.cols.begin; col < slice.cols.end; ++col, out += size_of(dtype)) {
        const auto index = static_cast<uint64_t>(row * cols_of(spec) + col);
        const auto noise = static_cast<int32_t>(mixed(key + index * 0x9e3779b97f4a7c15u) >> 32);
        // Rounded to bfloat16 in every dtype: the same model whatever it computes in.
        const bf16 value(mean + static_cast<float>(noise) * step);
        const auto wide = static_cast<float>(value);
        dtype == DType::f32 ? std::memcpy(out, &wide, sizeof wide) : std::memcpy(out, &value, sizeof value);
      }
    }
  }

 private:
  uint64_t seed_;
};

// --- does the checkpoint fit?
// -------------------------------------------------------------------------------------------------

/// What is wrong, by kind: the first few of each and how many.
class Complaints {
 public:
  void add(const std::string& kind, std::string what) {
    auto& [count, first] = kinds_[kind];
    if (++count <= kShown) first.push_back(std::move(what));
  }
  void throw_if_any() const {
    if (kinds_.empty()) return;
    std::vector<std::string> parts;
    for (const auto& [kind, list] : kinds_) {
      parts.push_back(
          fmt::format("{} {} ({}{})", list.first, kind, fmt::join(list.second, ", "), list.first > kShown ? ", ..." : ""));
    }
    throw UserError("the checkpoint does not fit its config.json: {}", fmt::join(parts, "; "));
  }

 private:
  static constexpr int kShown = 4;
  std::map<std::string, std::pair<int, std::vector<std::string>>> kinds_;
};

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool has_shape(const Checkpoint::Tensor& tensor, const std::vector<int64_t>& shape) {
  return std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end());
}

void check_scale(const ParamSpec& spec, const Checkpoint& checkpoint, std::set<std::string, std::less<>>& used,
                 Complaints& wrong) {
  const BlockFp8Config tile;
  const std::string name = spec.name + "_scale_inv";
  const Checkpoint::Tensor* scale = checkpoint.find(name);
  if (scale == nullptr) return wrong.add("missing", name);
  used.insert(name);
  const std::vector<int64_t> shape = {(spec.shape[0] + tile.rows - 1) / tile.rows, (spec.shape[1] + tile.cols - 1) / tile.cols};
  if (!has_shape(*scale, shape)) {
    wrong.add("of the wrong shape", fmt::format("{} is {}, must be {}", name, shape_text(scale->shape), shape_text(shape)));
  }
  if (scale->dtype != DType::f32 && scale->dtype != DType::bf16) {
    wrong.add("of the wrong type", fmt::format("{} is {}, must be F32 or BF16", name, scale->dtype_name));
  }
}

void check_tensor(const ParamSpec& spec, const Checkpoint& checkpoint, std::set<std::string, std::less<>>& used,
                  Complaints& wrong) {
  const Checkpoint::Tensor* tensor = checkpoint.find(spec.name);
  if (tensor == nullptr) return wrong.add("missing", spec.name);
  used.insert(spec.name);
  if (!has_shape(*tensor, spec.shape)) {
    wrong.add("of the wrong shape",
              fmt::format("{} is {}, must be {}", spec.name, shape_text(tensor->shape), shape_text(spec.shape)));
  }
  const bool is_fp8 = tensor->dtype == DType::f8_e4m3 && spec.scaled;
  if (is_fp8) check_scale(spec, checkpoint, used, wrong);
  if (!is_fp8 && tensor->dtype != DType::f32 && tensor->dtype != DType::bf16 && tensor->dtype != DType::f16) {
    wrong.add("of the wrong type", fmt::format("{} is {}, must be F32, BF16{}", spec.name, tensor->dtype_name,
                                               spec.scaled ? ", F16 or F8_E4M3" : " or F16"));
  }
}

/// The scale under the first of these names that the checkpoint has.
const Checkpoint::Tensor* find_scale(const Checkpoint& checkpoint,
                                     std::initializer_list<const std::vector<std::string>*> lists) {
  for (const std::vector<std::string>* names : lists) {
    for (const std::string& name : *names) {
      if (const Checkpoint::Tensor* tensor = checkpoint.find(name)) return tensor;
    }
  }
  return nullptr;
}

/// Its number; NaN where it has none.
float scale_value(const Checkpoint::Tensor& tensor) {
  const bool one = tensor.shape.empty() || (tensor.shape.size() == 1 && tensor.shape[0] == 1);
  if (!one || !tensor.dtype) return NAN;
  if (*tensor.dtype == DType::f32) return element<float>(tensor.bytes.data(), 0);
  if (*tensor.dtype == DType::bf16) return static_cast<float>(element<bf16>(tensor.bytes.data(), 0));
  if (*tensor.dtype == DType::f16) return f16_to_float(element<uint16_t>(tensor.bytes.data(), 0));
  return NAN;
}

/// The scales of a layer's fp8 keys and values: 1 where the checkpoint names none. Latent rows are keys and values at once.
KvScales kv_scales(const Checkpoint& checkpoint, int layer, bool latent) {
  const KvScaleNames names = kv_scale_names(layer);
  const Checkpoint::Tensor* k = find_scale(checkpoint, {&names.k, &names.both});
  const Checkpoint::Tensor* v = find_scale(checkpoint, {&names.v, &names.both});
  if (latent) v = k = k != nullptr ? k : v;
  return {.k = k != nullptr ? scale_value(*k) : 1, .v = v != nullptr ? scale_value(*v) : 1};
}

void check_kv_scales(const ModelConfig& config, const Checkpoint& checkpoint, int layer,
                     std::set<std::string, std::less<>>& used, Complaints& wrong) {
  const KvScaleNames names = kv_scale_names(layer);
  for (const auto* list : {&names.k, &names.v, &names.both}) {
    for (const std::string& name : *list) {
      const Checkpoint::Tensor* tensor = checkpoint.find(name);
      if (tensor == nullptr) continue;
      used.insert(name);
      const float value = scale_value(*tensor);
      if (std::isfinite(value) && value > 0) continue;
      wrong.add("not a positive number",
                fmt::format("{} is {} of {} {}", name, value, tensor->dtype_name, shape_text(tensor->shape)));
    }
  }
  const bool has_k = find_scale(checkpoint, {&names.k, &names.both}) != nullptr;
  const bool has_v = find_scale(checkpoint, {&names.v, &names.both}) != nullptr;
  if (!config.mla && has_k != has_v) wrong.add("missing", (has_k ? names.v : names.k).front());
}

/// Every parameter is there, in its shape, in a type that can be read, and nothing else is. Returns the number of known extras.
size_t check_fit(const ModelConfig& config, const std::vector<ParamSpec>& specs, const Checkpoint& checkpoint) {
  Complaints wrong;
  std::set<std::string, std::less<>> used;
  for (const ParamSpec& spec : specs) check_tensor(spec, checkpoint, used, wrong);
  for (int layer = 0; layer < config.layers; ++layer) check_kv_scales(config, checkpoint, layer, used, wrong);
  size_t extras = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.contains(name)) continue;
    is_known_extra(config, name) ? static_cast<void>(++extras) : wrong.add("unknown", name);
  }
  wrong.throw_if_any();
  return extras;
}

// --- putting a rank's weights together
// ----------------------------------------------------------------------------------------

/// A log line every few seconds.
class Progress {
 public:
  Progress(const LoadOptions& options, size_t total)
      : enabled_(options.progress), told_(options.on_progress), total_(std::max<size_t>(total, 1)) {}
  void at(size_t bytes) {
    if (!enabled_) return;
    const double share = static_cast<double>(bytes) / static_cast<double>(total_);
    if (told_) told_(share);
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + kPause;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    log::info("loading weights: {:.1f} of {:.1f} GB of this rank, {:.0f}%, {:.0f} s", static_cast<double>(bytes) * 1e-9,
              static_cast<double>(total_) * 1e-9, 100 * share, seconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPause{5};
  const bool enabled_;
  const std::function<void(double)> told_;
  const size_t total_;
  Clock::time_point start_ = Clock::now(), next_ = start_ + kPause;
};

/// Walks over the parameters of a rank, fuses and packs them. Without a source it only counts the bytes that this would take,
/// so the count cannot differ from the load. Holds one fused matrix at a time beside what is already packed.
class Assembler {
 public:
  Assembler(const ModelConfig& config, const RankGrid& grid, const LoadOptions& options, const std::vector<ParamSpec>& specs,
            const Ops& sizes)
      : config_(config), grid_(grid), options_(options), sizes_(sizes) {
    WEFT_CHECK(options.dtype == DType::f32 || options.dtype == DType::bf16) << to_string(options.dtype);
    for (const ParamSpec& spec : specs) {
      const bool is_new = by_key_.emplace(Key{spec.param, spec.layer, spec.expert}, &spec).second;
      WEFT_CHECK(is_new) << spec.name << " has the place of another parameter";
    }
  }

  Weights load(Source& source, Ops& ops, size_t total_bytes) {
    Progress progress(options_, total_bytes);
    source_ = &source;
    ops_ = &ops;
    progress_ = &progress;
    return assemble();
  }
  size_t count() {
    assemble();
    return bytes_;
  }

 private:
  using Key = std::tuple<Param, int, int>;
  using Parts = std::initializer_list<const ParamSpec*>;

  Weights assemble() {
    Weights out;
    out.first_layer = options_.first_layer;
    const int last = options_.last_layer < 0 ? config_.layers : options_.last_layer;
    WEFT_CHECK(options_.first_layer >= 0 && options_.first_layer <= last && last <= config_.layers)
        << "layers [" << options_.first_layer << ", " << last << ") of " << config_.layers;
    out.embedding = embedding();
    for (layer_ = options_.first_layer; layer_ < last; ++layer_) out.layers.push_back(decoder_layer());
    layer_ = -1;
    out.final_norm = floats(Param::final_norm);
    out.head = config_.tied_embeddings ? matrix({need(Param::embedding)}) : matrix({take(Param::head)});
    check_all_taken(last);
    return out;
  }

  LayerWeights decoder_layer() {
    LayerWeights w;
    w.input_norm = floats(Param::input_norm);
    w.post_norm = floats(Param::post_norm);
    config_.mla ? latent_attention(w) : grouped_query_attention(w);
    config_.is_sparse(layer_) ? sparse_mlp(w) : dense_mlp(w);
    return w;
  }

  void grouped_query_attention(LayerWeights& w) {
    w.qkv = matrix({take(Param::q), take(Param::k), take(Param::v)});
    if (config_.qkv_bias) w.qkv_bias = floats(Param::q_bias, Param::k_bias, Param::v_bias);
    if (config_.qk_norm) {
      w.q_norm = floats(Param::q_norm);
      w.k_norm = floats(Param::k_norm);
    }
    w.o = matrix({take(Param::o)});
    if (config_.o_bias) w.o_bias = floats(Param::o_bias);
  }

  void latent_attention(LayerWeights& w) {
    if (config_.mla->q_lora_rank > 0) {
      w.a = matrix({take(Param::q_a), take(Param::kv_a)});
      w.q_a_norm = floats(Param::q_a_norm);
      w.q_b = matrix({take(Param::q_b)});
    } else {
      w.a = matrix({take(Param::q), take(Param::kv_a)});
    }
    w.kv_a_norm = floats(Param::kv_a_norm);
    up_projection(w);
    w.o = matrix({take(Param::o)});
  }

  /// kv_b [heads (nope + v), latent] three times: whole, and a head's two parts as separate matrices, the first transposed.
  void up_projection(LayerWeights& w) {
    const MlaConfig& mla = *config_.mla;
    const int64_t nope = mla.qk_nope_head_dim, v = mla.v_head_dim, latent = mla.kv_lora_rank, up = nope + v;
    const std::byte* rows = stage({take(Param::kv_b)});
    w.kv_b = pack(rows, grid_.rank_q_heads() * up, latent);
    for (int head = 0; head < grid_.rank_q_heads(); ++head) {
      const std::byte* from = rows == nullptr ? nullptr : rows + head * up * latent * element_bytes();
      w.w_uk.push_back(pack(from == nullptr ? nullptr : transpose(from, nope, latent), latent, nope));
      w.w_uv.push_back(pack(from == nullptr ? nullptr : from + nope * latent * element_bytes(), v, latent));
    }
  }

  void dense_mlp(LayerWeights& w) {
    w.gate_up = matrix({take(Param::gate), take(Param::up)});
    w.down = matrix({take(Param::down)});
    if (!config_.mlp_bias) return;
    w.gate_up_bias = floats(Param::gate_bias, Param::up_bias);
    w.down_bias = floats(Param::down_bias);
  }

  void sparse_mlp(LayerWeights& w) {
    w.router = matrix({take(Param::router)});
    if (config_.moe.has_choice_bias) w.choice_bias = floats(Param::choice_bias);
    for (int e = 0; e < config_.moe.num_experts; ++e) {
      w.expert_gate_up.push_back(matrix({take(Param::expert_gate, e), take(Param::expert_up, e)}));
      w.expert_down.push_back(matrix({take(Param::expert_down, e)}));
    }
    if (config_.moe.shared_intermediate == 0) return;
    w.shared_gate_up = matrix({take(Param::shared_gate), take(Param::shared_up)});
    w.shared_down = matrix({take(Param::shared_down)});
  }

  const ParamSpec* need(Param param, int expert = -1) const {
    const auto it = by_key_.find({param, param == Param::embedding ? -1 : layer_, expert});
    WEFT_CHECK(it != by_key_.end()) << "layer " << layer_ << " has no parameter " << static_cast<int>(param);
    return it->second;
  }
  /// The parameter, which nobody has taken before.
  const ParamSpec* take(Param param, int expert = -1) {
    const ParamSpec* spec = need(param, expert);
    WEFT_CHECK(taken_.insert(spec).second) << spec->name << " is filled twice";
    return spec;
  }
  void check_all_taken(int last) const {
    for (const auto& [key, spec] : by_key_) {
      const bool wanted = spec->layer < 0 || (spec->layer >= options_.first_layer && spec->layer < last);
      WEFT_CHECK(!wanted || taken_.contains(spec)) << spec->name << " is never filled";
    }
  }

  Slice own(const ParamSpec& spec) const { return slice_of(spec, grid_, options_.tp_rank); }
  int64_t element_bytes() const { return static_cast<int64_t>(size_of(options_.dtype)); }

  /// The rank's slices of `parts`, one below the other, in the compute dtype; null when counting. Valid until the next call.
  const std::byte* stage(Parts parts) {
    if (source_ == nullptr) return nullptr;
    if (parts.size() == 1) {
      const ParamSpec& spec = **parts.begin();
      if (const std::byte* at = source_->in_place(spec, own(spec), options_.dtype)) return at;
    }
    int64_t elements = 0;
    for (const ParamSpec* spec : parts) elements += own(*spec).count();
    reserve(staged_, elements);
    std::byte* out = staged_.data();
    for (const ParamSpec* spec : parts) {
      source_->read(*spec, own(*spec), options_.dtype, out);
      out += own(*spec).count() * element_bytes();
    }
    return staged_.data();
  }

  /// [rows, cols] -> [cols, rows]. Valid until the next call.
  const std::byte* transpose(const std::byte* in, int64_t rows, int64_t cols) {
    reserve(transposed_, rows * cols);
    const auto swap = [&](auto zero) {
      using T = decltype(zero);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          std::memcpy(transposed_.data() + (col * rows + row) * element_bytes(), in + (row * cols + col) * element_bytes(),
                      sizeof(T));
        }
      }
    };
    options_.dtype == DType::f32 ? swap(float{}) : swap(bf16{});
    return transposed_.data();
  }

  void reserve(Buffer& buffer, int64_t elements) const {
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(elements, 1) * element_bytes());
    if (buffer.bytes() < bytes) buffer = Buffer::host(bytes);
  }

  MatrixPtr pack(const std::byte* rows, int64_t out, int64_t in) {
    bytes_ += sizes_.packed_bytes(out, in, options_.dtype);
    if (source_ == nullptr) return nullptr;
    progress_->at(bytes_);
    return ops_->pack({rows, options_.dtype, {out, in}}, options_.dtype);
  }

  /// One matrix of the rank's rows of each parameter, one below the other.
  MatrixPtr matrix(Parts parts) {
    int64_t out = 0;
    for (const ParamSpec* spec : parts) out += own(*spec).rows.size();
    return pack(stage(parts), out, own(**parts.begin()).cols.size());
  }

  /// The rank's elements of each parameter, one behind the other.
  template <typename... Params>
  std::vector<float> floats(Params... params) {
    std::vector<float> out;
    for (const Param param : {params...}) {
      const ParamSpec& spec = *take(param);
      const Slice slice = own(spec);
      const size_t at = out.size();
      out.resize(at + static_cast<size_t>(slice.count()));
      if (source_ != nullptr) source_->read(spec, slice, DType::f32, reinterpret_cast<std::byte*>(out.data() + at));
    }
    bytes_ += out.size() * sizeof(float);
    return out;
  }

  /// The rank's rows of the embedding table, moved in runs of rows that fit a small staging buffer.
  Buffer embedding() {
    constexpr int64_t kRunBytes = int64_t{64} << 20;
    const ParamSpec& spec = *take(Param::embedding);
    const Slice slice = own(spec);
    const int64_t row_bytes = slice.cols.size() * element_bytes(), run = std::max<int64_t>(1, kRunBytes / row_bytes);
    const size_t bytes = static_cast<size_t>(slice.rows.size() * row_bytes);
    bytes_ += bytes;
    if (source_ == nullptr) return {};
    Buffer out = ops_->allocate(bytes);
    if (slice.rows.empty()) return out;
    const View table(out.data(), options_.dtype, {slice.rows.size(), slice.cols.size()});
    for (int64_t row = 0; row < slice.rows.size(); row += run) {
      const int64_t count = std::min(run, slice.rows.size() - row);
      const Slice part{{slice.rows.begin + row, slice.rows.begin + row + count}, slice.cols};
      const std::byte* from = source_->in_place(spec, part, options_.dtype);
      if (from == nullptr) {
        reserve(staged_, part.count());
        source_->read(spec, part, options_.dtype, staged_.data());
        from = staged_.data();
      }
      ops_->upload(from, table.rows(row, count));
    }
    return out;
  }

  const ModelConfig& config_;
  const RankGrid& grid_;
  const LoadOptions& options_;
  const Ops& sizes_;
  Source* source_ = nullptr;  ///< null: count only
  Ops* ops_ = nullptr;
  Progress* progress_ = nullptr;
  int layer_ = -1;
  std::map<Key, const ParamSpec*> by_key_;
  std::set<const ParamSpec*> taken_;
  Buffer staged_, transposed_;
  size_t bytes_ = 0;
};

}  // namespace

Weights load_weights(const ModelConfig& config, const RankGrid& grid, const Checkpoint& checkpoint, const LoadOptions& options,
                     Ops& ops) {
  const std::vector<ParamSpec> specs = parameters(config);
  const size_t extras = check_fit(config, specs, checkpoint);
  if (extras > 0 && options.tp_rank == 0) log::info("skipping {} tensors that this model does not use", extras);
  CheckpointSource source(checkpoint);
  const size_t total = options.progress ? Assembler(config, grid, options, specs, ops).count() : 0;
  Weights weights = Assembler(config, grid, options, specs, ops).load(source, ops, total);
  int layer = weights.first_layer;
  for (LayerWeights& w : weights.layers) w.kv_scales = kv_scales(checkpoint, layer++, config.mla.has_value());
  return weights;
}

Weights dummy_weights(const ModelConfig& config, const RankGrid& grid, uint64_t seed, const LoadOptions& options, Ops& ops) {
  const std::vector<ParamSpec> specs = parameters(config);
  DummySource source(seed);
  const size_t total = options.progress ? Assembler(config, grid, options, specs, ops).count() : 0;
  return Assembler(config, grid, options, specs, ops).load(source, ops, total);
}

size_t weight_bytes(const ModelConfig& config, const RankGrid& grid, const LoadOptions& options, const Ops& ops) {
  const std::vector<ParamSpec> specs = parameters(config);
  return Assembler(config, grid, options, specs, ops).count();
}

}  // namespace weft
