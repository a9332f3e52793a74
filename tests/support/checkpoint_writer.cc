#include "support/checkpoint_writer.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/check.h"
#include "model/families.h"
#include "model/safetensors.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
constexpr int kTile = 128;

/// Where the values of a parameter lie: mean and standard deviation.
struct Spread {
  double mean = 0, deviation = 1;
};

Spread spread_of(const ParamSpec& spec, const ModelConfig& config) {
  const double unit = 1 / std::sqrt(static_cast<double>(spec.shape.back()));  // Keeps a vector's length, on average.
  switch (spec.param) {
    case Param::embedding:
      return {0, config.tied_embeddings ? 2.5 * unit : 1};
    case Param::head:
      return {0, 2.5 * unit};
    case Param::final_norm:
    case Param::input_norm:
    case Param::post_norm:
    case Param::q_norm:
    case Param::k_norm:
    case Param::q_a_norm:
    case Param::kv_a_norm:
      return {1, 0.2};
    case Param::q_bias:
    case Param::k_bias:
    case Param::v_bias:
      return {0, 0.3};
    case Param::o_bias:
    case Param::gate_bias:
    case Param::up_bias:
    case Param::down_bias:
      return {0, 0.2};
    case Param::choice_bias:
      return {0, 0.15};
    case Param::router:
      return {0, unit};
    default:
      return {0, 1.4 * unit};
  }
}

/// Values of one tensor: depends on the seed and the name alone.
std::vector<float> random_values(const ParamSpec& spec, const ModelConfig& config, uint64_t seed) {
  const Spread spread = spread_of(spec, config);
  std::mt19937_64 engine(seed ^ std::hash<std::string>{}(spec.name));
  size_t count = 1;
  for (const int64_t size : spec.shape) count *= static_cast<size_t>(size);
  std::vector<float> values(count);
  for (float& value : values) {
    // The sum of four uniform numbers of deviation 1/2: bounded, and close enough to normal.
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += (static_cast<double>(engine() >> 11) * 0x1p-53 - 0.5) * std::sqrt(3.0);
    value = static_cast<float>(spread.mean + spread.deviation * sum);
  }
  return values;
}

/// The code of a format whose values rise with their bits: the one nearest to `magnitude`, at most `largest`. By search, which
/// is obvious and fast enough.
template <typename Decode>
uint16_t nearest_code(float magnitude, uint16_t largest, Decode decode) {
  uint16_t low = 0, high = largest;
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    decode(middle) < magnitude ? low = static_cast<uint16_t>(middle + 1) : high = middle;
  }
  const bool below_is_nearer = low > 0 && magnitude - decode(static_cast<uint16_t>(low - 1)) < decode(low) - magnitude;
  return static_cast<uint16_t>(low - (below_is_nearer ? 1 : 0));
}

uint16_t to_f16(float value) {
  return static_cast<uint16_t>(nearest_code(std::fabs(value), 0x7bff, f16_to_float) | (value < 0 ? 0x8000 : 0));
}

uint8_t to_e4m3(float value) {
  const auto decode = [](uint16_t code) { return f8_e4m3_to_float(static_cast<uint8_t>(code)); };
  return static_cast<uint8_t>(nearest_code(std::fabs(value), 0x7e, decode) | (value < 0 ? 0x80 : 0));
}

StoredBytes stored(std::string name, DType dtype, std::vector<int64_t> shape, const std::vector<float>& values) {
  StoredBytes tensor{std::move(name), dtype, std::move(shape), std::vector<std::byte>(values.size() * size_of(dtype))};
  std::byte* out = tensor.bytes.data();
  for (const float value : values) {
    const bf16 brain(value);
    const uint16_t half = dtype == DType::f16 ? to_f16(value) : uint16_t{0};
    const void* from = dtype == DType::f32    ? static_cast<const void*>(&value)
                       : dtype == DType::bf16 ? static_cast<const void*>(&brain)
                                              : &half;
    std::memcpy(out, from, size_of(dtype));
    out += size_of(dtype);
  }
  return tensor;
}

/// The fp8 tensor and its scales. A scale is the least that keeps its tile in range, times a power of two and a bit, so that
/// neighbours differ clearly and a wrong one is seen.
void add_fp8(std::vector<StoredBytes>& out, const ParamSpec& spec, const std::vector<float>& values, DType scale_dtype) {
  const int64_t rows = spec.shape[0], cols = spec.shape[1];
  const int64_t tile_rows = (rows + kTile - 1) / kTile, tile_cols = (cols + kTile - 1) / kTile;
  std::vector<float> scales(static_cast<size_t>(tile_rows * tile_cols), 0);
  for (int64_t i = 0; i < rows * cols; ++i) {
    float& most = scales[static_cast<size_t>(i / cols / kTile * tile_cols + i % cols / kTile)];
    most = std::max(most, std::fabs(values[static_cast<size_t>(i)]));
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    const float wanted = scales[i] / 448 * static_cast<float>(1 << i % 3) * 1.1f;
    scales[i] = scale_dtype == DType::bf16 ? static_cast<float>(bf16(wanted)) : wanted;
  }
  StoredBytes codes{spec.name, DType::f8_e4m3, spec.shape, std::vector<std::byte>(values.size())};
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float scale = scales[static_cast<size_t>(i / cols / kTile * tile_cols + i % cols / kTile)];
    codes.bytes[static_cast<size_t>(i)] = std::byte{to_e4m3(values[static_cast<size_t>(i)] / scale)};
  }
  out.push_back(std::move(codes));
  out.push_back(stored(spec.name + "_scale_inv", scale_dtype, {tile_rows, tile_cols}, scales));
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw SystemError("cannot write {}", path.string());
}

}  // namespace

std::vector<StoredBytes> random_tensors(const nlohmann::json& config, const CheckpointOptions& options) {
  const ModelConfig model = parse_config(config.dump(), "config.json");
  std::vector<StoredBytes> out;
  for (const ParamSpec& spec : parameters(model)) {
    const std::vector<float> values = random_values(spec, model, options.seed);
    if (spec.scaled) {
      add_fp8(out, spec, values, options.scale_dtype);
    } else {
      out.push_back(stored(spec.name, spec.param == Param::choice_bias ? DType::f32 : options.dtype, spec.shape, values));
    }
  }
  return out;
}

void write_checkpoint(const fs::path& dir, const nlohmann::json& config, const std::vector<StoredBytes>& tensors, int shards) {
  fs::create_directories(dir);
  write_text(dir / "config.json", config.dump(2));
  std::vector<SafetensorsWriter> files(static_cast<size_t>(shards));
  nlohmann::json weight_map = nlohmann::json::object();
  const auto name_of = [&](size_t shard) {
    return shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t shard = i % files.size();
    files[shard].add(tensors[i].name, tensors[i].dtype, tensors[i].shape, tensors[i].bytes);
    weight_map[tensors[i].name] = name_of(shard);
  }
  for (size_t shard = 0; shard < files.size(); ++shard) files[shard].write(dir / name_of(shard));
  if (shards > 1) write_text(dir / "model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump(2));
}

void write_checkpoint(const fs::path& dir, const nlohmann::json& config, const CheckpointOptions& options, int shards) {
  write_checkpoint(dir, config, random_tensors(config, options), shards);
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "weft-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw SystemError("cannot create {}", name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace weft::test
