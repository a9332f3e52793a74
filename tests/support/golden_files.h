#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace weft::test {

/// A tensor of a safetensors file with its elements widened to float64, whatever they are stored as. fp8 is not yet scaled.
struct StoredTensor {
  std::string dtype;  ///< as the file spells it: BF16, F32, ...
  std::vector<int64_t> shape;
  std::vector<double> values;

  int64_t size(size_t axis) const { return shape.at(axis); }
};
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

/// Reads one safetensors file. Shares no code with src/model, so that a misreading there cannot hide here. Trusts the file no
/// further than its sizes: throws std::runtime_error where they do not fit.
StoredTensors read_stored_tensors(const std::filesystem::path& file);
/// All tensors of a checkpoint folder, single or sharded.
StoredTensors read_stored_checkpoint(const std::filesystem::path& model_dir);

/// What the goldens know of one prompt. L: prompt length, V: vocabulary, H: hidden size. Absent parts are empty.
struct GoldenPrompt {
  std::string name;  ///< prompt33
  std::vector<int32_t> input_ids;
  std::vector<int32_t> gen_ids;             ///< the greedy continuation
  std::vector<double> gen_margin;           ///< first minus second logit at each step
  std::vector<double> last_logits;          ///< [V]
  std::vector<double> gen_logits;           ///< [gen_ids, V]; row 0 is last_logits
  std::vector<double> logits;               ///< [L, V]
  std::vector<std::vector<double>> hidden;  ///< [layers + 1][L, H]

  struct Router {
    int layer = 0, top_k = 0;
    std::vector<int32_t> experts;  ///< [L, top_k] ascending
    std::vector<double> weights;
  };
  std::vector<Router> router;  ///< sparse layers in order
};

/// One folder of golden data: a checkpoint beside what it must compute.
struct Golden {
  std::string name;  ///< of the folder
  std::filesystem::path dir;
  std::string architecture;  ///< architectures[0] of config.json
  bool sparse_mlp = false;   ///< some prompt has router records
  int64_t vocab = 0;
  double logit_std = 0;  ///< mean over the known rows of the standard deviation of a row
  std::vector<GoldenPrompt> prompts;
};

/// The folders of `root` that hold config.json and golden.safetensors, in name order; `root` itself if it is one.
std::vector<std::filesystem::path> golden_folders(const std::filesystem::path& root);
/// The last part of a folder's path, also of "." and of one that ends in a slash.
std::string folder_name(const std::filesystem::path& dir);
/// architectures[0] of a folder's config.json.
std::string stored_architecture(const std::filesystem::path& model_dir);
/// Reads a folder. Throws std::runtime_error if it is not of the format that tests/goldens/README.md describes.
Golden load_golden(const std::filesystem::path& dir);

/// Standard deviation of each row of [rows, width], averaged over the rows.
double mean_row_std(const std::vector<double>& values, int64_t width);

}  // namespace weft::test
