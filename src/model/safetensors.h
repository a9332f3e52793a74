#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace weft {

/// A tensor of a safetensors file: where its bytes lie. `dtype` is empty for element types that Weft cannot read; such a tensor
/// only fails when it is needed.
struct TensorEntry {
  std::string dtype_name;
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< bytes, relative to the data section
};

/// The parsed and checked header of one file: byte ranges lie inside the file, cover it without holes or overlaps, and agree
/// with shape and element size.
struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  uint64_t data_offset = 0;  ///< 8 + header bytes
};

/// Parses the first bytes of a file of `file_bytes` bytes; `head` must hold the whole header (or the whole file if shorter).
/// Pure; fuzzed. Throws UserError with `path` in the message.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, uint64_t file_bytes, std::string_view path);

/// A checkpoint folder's tensors, mapped read-only: model.safetensors, or the shards named by model.safetensors.index.json,
/// which is then the only truth: other files are ignored with one log line.
class Checkpoint {
 public:
  /// Throws UserError for a bad file or index (names with a separator, a name the shard does not hold, ...).
  explicit Checkpoint(const std::filesystem::path& model_dir);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  struct Tensor {
    std::string_view name, dtype_name;
    std::optional<DType> dtype;
    std::span<const int64_t> shape;
    std::span<const std::byte> bytes;
    std::string_view file;
  };
  /// All tensors, by name. Names are unique.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  uint64_t bytes() const;  ///< of all tensors

 private:
  struct File;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

/// Writes tensors as one safetensors file: golden results, test checkpoints.
class SafetensorsWriter {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes);
  /// Throws SystemError when the file cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  struct Item {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::vector<Item> items_;
};

}  // namespace weft
