#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace weft::test {

struct StoredBytes {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

struct CheckpointOptions {
  uint64_t seed = 1;
  DType dtype = DType::bf16;       ///< of what is not fp8: float32, bfloat16 or float16; the choice bias is float32
  DType scale_dtype = DType::f32;  ///< of fp8 tiles: float32 or bfloat16
};

/// Every tensor that a checkpoint of `config` (a config.json of any supported architecture) holds, with seeded random values:
/// logits spread by about 2.5, attention and routing are far from uniform, norms lie around 1. With a quantization_config the
/// projections are fp8 with 128x128 tiles whose scales differ clearly.
std::vector<StoredBytes> random_tensors(const nlohmann::json& config, const CheckpointOptions& options = {});

/// A Hugging Face folder: config.json and model.safetensors, or that many shards and their index. Creates `dir`.
void write_checkpoint(const std::filesystem::path& dir, const nlohmann::json& config, const std::vector<StoredBytes>& tensors,
                      int shards = 1);
/// The same with random_tensors.
void write_checkpoint(const std::filesystem::path& dir, const nlohmann::json& config, const CheckpointOptions& options = {},
                      int shards = 1);

/// A fresh folder, removed with all that is in it at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace weft::test
