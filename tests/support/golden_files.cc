#include "support/golden_files.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace weft::test {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string read_bytes(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

double decode_f16(uint16_t code) {
  const int exponent = code >> 10 & 31, fraction = code & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction != 0 ? std::nan("") : HUGE_VAL)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return code >> 15 != 0 ? -magnitude : magnitude;
}

double decode_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double magnitude = exponent == 15 && fraction == 7 ? std::nan("")
                           : exponent == 0                 ? std::ldexp(fraction, -9)
                                                           : std::ldexp(8 + fraction, exponent - 10);
  return code >> 7 != 0 ? -magnitude : magnitude;
}

template <typename Code, typename Decode>
std::vector<double> widen(const std::string& bytes, Decode decode) {
  std::vector<double> values(bytes.size() / sizeof(Code));
  for (size_t i = 0; i < values.size(); ++i) {
    Code code;
    std::memcpy(&code, bytes.data() + i * sizeof(Code), sizeof(Code));
    values[i] = static_cast<double>(decode(code));
  }
  return values;
}

std::vector<double> widen(const std::string& dtype, const std::string& bytes) {
  if (dtype == "F32") return widen<float>(bytes, [](float v) { return v; });
  if (dtype == "I32") return widen<int32_t>(bytes, [](int32_t v) { return v; });
  if (dtype == "BF16") return widen<uint16_t>(bytes, [](uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); });
  if (dtype == "F16") return widen<uint16_t>(bytes, decode_f16);
  if (dtype == "F8_E4M3") return widen<uint8_t>(bytes, decode_e4m3);
  throw std::runtime_error("cannot read elements of type " + dtype);
}

template <typename T>
std::vector<T> narrow(const std::vector<double>& values) {
  std::vector<T> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](double v) { return static_cast<T>(v); });
  return out;
}

}  // namespace

StoredTensors read_stored_tensors(const fs::path& file) {
  const std::string data = read_bytes(file);
  const auto require = [&](bool ok) {
    if (!ok) throw std::runtime_error("not a safetensors file: " + file.string());
  };
  require(data.size() >= 8);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data.data(), 8);
  require(header_bytes <= data.size() - 8);
  const Json header = Json::parse(data.substr(8, header_bytes));
  const size_t body = 8 + header_bytes;

  StoredTensors out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).get<size_t>(), end = entry.at("data_offsets").at(1).get<size_t>();
    require(begin <= end && end <= data.size() - body);
    StoredTensor tensor{.dtype = entry.at("dtype"), .shape = entry.at("shape"), .values = {}};
    tensor.values = widen(tensor.dtype, data.substr(body + begin, end - begin));
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    require(static_cast<size_t>(elements) == tensor.values.size());
    out.emplace(name, std::move(tensor));
  }
  return out;
}

StoredTensors read_stored_checkpoint(const fs::path& model_dir) {
  const fs::path index = model_dir / "model.safetensors.index.json";
  if (!fs::exists(index)) return read_stored_tensors(model_dir / "model.safetensors");
  std::set<std::string> shards;
  const Json where = Json::parse(read_bytes(index)).at("weight_map");
  for (const auto& [name, shard] : where.items()) shards.insert(shard);
  StoredTensors out;
  for (const std::string& shard : shards) out.merge(read_stored_tensors(model_dir / shard));
  return out;
}

double mean_row_std(const std::vector<double>& values, int64_t width) {
  const size_t columns = static_cast<size_t>(width), rows = values.size() / columns;
  double total = 0;
  for (size_t row = 0; row < rows; ++row) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < columns; ++i) sum += values[row * columns + i];
    for (size_t i = 0; i < columns; ++i) squares += std::pow(values[row * columns + i] - sum / static_cast<double>(columns), 2);
    total += std::sqrt(squares / static_cast<double>(columns));
  }
  return total / static_cast<double>(rows);
}

std::vector<fs::path> golden_folders(const fs::path& root) {
  const auto is_golden = [](const fs::path& dir) {
    return fs::exists(dir / "config.json") && fs::exists(dir / "golden.safetensors");
  };
  if (is_golden(root)) return {root};
  if (!fs::is_directory(root)) throw std::runtime_error("no such folder: " + root.string());
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (is_golden(entry.path())) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string folder_name(const fs::path& dir) {
  const fs::path path = fs::absolute(dir).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::string stored_architecture(const fs::path& model_dir) {
  return Json::parse(read_bytes(model_dir / "config.json")).at("architectures").at(0);
}

Golden load_golden(const fs::path& dir) {
  const StoredTensors tensors = read_stored_tensors(dir / "golden.safetensors");
  const auto values = [&](const std::string& key) {
    const auto found = tensors.find(key);
    return found == tensors.end() ? std::vector<double>{} : found->second.values;
  };

  Golden golden{.name = folder_name(dir), .dir = dir, .architecture = stored_architecture(dir), .prompts = {}};
  const std::string ids_suffix = ".input_ids";
  std::vector<double> known_rows;
  for (const auto& [key, ids] : tensors) {
    if (!key.ends_with(ids_suffix)) continue;
    GoldenPrompt prompt{.name = key.substr(0, key.size() - ids_suffix.size()),
                        .input_ids = narrow<int32_t>(ids.values),
                        .gen_ids = {},
                        .gen_margin = {},
                        .last_logits = {},
                        .gen_logits = {},
                        .logits = {},
                        .hidden = {},
                        .router = {}};
    const std::string prefix = prompt.name + ".";
    prompt.gen_ids = narrow<int32_t>(values(prefix + "gen_ids"));
    prompt.gen_margin = values(prefix + "gen_margin");
    prompt.last_logits = values(prefix + "last_logits");
    prompt.gen_logits = values(prefix + "gen_logits");
    prompt.logits = values(prefix + "logits");
    if (prompt.last_logits.empty() || prompt.gen_ids.empty()) {
      throw std::runtime_error(prefix + "last_logits or gen_ids is missing in " + dir.string());
    }
    for (int i = 0; tensors.contains(prefix + "hidden" + std::to_string(i)); ++i) {
      prompt.hidden.push_back(values(prefix + "hidden" + std::to_string(i)));
    }
    constexpr int kMostLayers = 1000;
    for (int layer = 0; layer < kMostLayers; ++layer) {
      const std::string router = prefix + "router.layer" + std::to_string(layer) + ".";
      const auto experts = tensors.find(router + "experts");
      if (experts == tensors.end()) continue;
      prompt.router.push_back({.layer = layer,
                               .top_k = static_cast<int>(experts->second.size(1)),
                               .experts = narrow<int32_t>(experts->second.values),
                               .weights = values(router + "weights")});
      golden.sparse_mlp = true;
    }
    golden.vocab = static_cast<int64_t>(prompt.last_logits.size());
    for (const auto* rows : {&prompt.logits, &prompt.gen_logits, &prompt.last_logits}) {
      known_rows.insert(known_rows.end(), rows->begin(), rows->end());
    }
    golden.prompts.push_back(std::move(prompt));
  }
  if (golden.prompts.empty()) throw std::runtime_error("no prompts in " + (dir / "golden.safetensors").string());
  std::sort(golden.prompts.begin(), golden.prompts.end(),
            [](const GoldenPrompt& a, const GoldenPrompt& b) { return a.input_ids.size() < b.input_ids.size(); });
  golden.logit_std = mean_row_std(known_rows, golden.vocab);
  return golden;
}

}  // namespace weft::test
