#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "model/strict_json.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
constexpr size_t kMaxDims = 8;

constexpr std::array<std::pair<std::string_view, DType>, 8> kDTypes{{{"F32", DType::f32},
                                                                     {"BF16", DType::bf16},
                                                                     {"F16", DType::f16},
                                                                     {"F8_E4M3", DType::f8_e4m3},
                                                                     {"I32", DType::i32},
                                                                     {"I64", DType::i64},
                                                                     {"U8", DType::u8},
                                                                     {"U64", DType::u64}}};

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (known == name) return dtype;
  }
  return {};
}

std::string_view name_of(DType dtype) {
  for (const auto& [name, known] : kDTypes) {
    if (known == dtype) return name;
  }
  return "?";
}

template <typename... Args>
[[noreturn]] void refuse(std::string_view path, fmt::format_string<Args...> format, Args&&... args) {
  throw UserError("{}, path {}", fmt::format(format, std::forward<Args>(args)...), path);
}

/// Reads {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value"}} and
/// nothing else: nesting is bounded by the states below, and no key may come twice.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(std::string_view path) : path_(path) {}
  std::map<std::string, TensorEntry, std::less<>> tensors;

  bool start_object(std::size_t) override {
    if (at_ == At::file) return enter(At::names);
    if (at_ == At::metadata_value) return enter(At::metadata);
    if (at_ == At::tensor_value) return enter(At::tensor);
    return unexpected("an object");
  }
  bool key(string_t& name) override {
    if (at_ == At::names && name == "__metadata__") {
      if (has_metadata_) refuse(path_, "safetensors header holds __metadata__ twice");
      has_metadata_ = true;
      return enter(At::metadata_value);
    }
    if (at_ == At::names) {
      const auto [entry, is_new] = tensors.try_emplace(name);
      if (!is_new) refuse(path_, "safetensors header holds a tensor twice: {}", in_quotes(name));
      entry_ = &*entry;
      seen_ = 0;
      offsets_ = 0;
      return enter(At::tensor_value);
    }
    if (at_ == At::metadata) {
      if (!metadata_keys_.insert(name).second) refuse(path_, "safetensors metadata holds a key twice: {}", in_quotes(name));
      return enter(At::metadata_text);
    }
    if (at_ == At::tensor) {
      if (name == "dtype") return field(1, At::dtype);
      if (name == "shape") return field(2, At::shape_value);
      if (name == "data_offsets") return field(4, At::offsets_value);
      refuse(path_, "safetensors header: tensor {} has an unknown field {}: accepted dtype, shape, data_offsets",
             in_quotes(entry_->first), in_quotes(name));
    }
    return unexpected("a key");
  }
  bool end_object() override {
    if (at_ == At::names) return enter(At::end);
    if (at_ == At::metadata) return enter(At::names);
    if (seen_ != 7 || offsets_ != 2) {
      refuse(path_, "safetensors header: tensor {} needs dtype, shape and two data_offsets", in_quotes(entry_->first));
    }
    return enter(At::names);
  }
  bool start_array(std::size_t) override {
    if (at_ == At::shape_value) return enter(At::shape);
    if (at_ == At::offsets_value) return enter(At::offsets);
    return unexpected("a list");
  }
  bool end_array() override { return enter(At::tensor); }
  bool string(string_t& text) override {
    if (at_ == At::metadata_text) return enter(At::metadata);
    if (at_ != At::dtype) return unexpected("a string");
    entry_->second.dtype_name = text;
    entry_->second.dtype = dtype_named(text);
    return enter(At::tensor);
  }
  bool number_unsigned(number_unsigned_t value) override {
    TensorEntry* tensor = entry_ == nullptr ? nullptr : &entry_->second;
    if (at_ == At::shape) {
      if (value > uint64_t{INT64_MAX} || tensor->shape.size() == kMaxDims) {
        refuse(path_, "safetensors header: shape of {} is too large: at most {} sizes below 2^63", in_quotes(entry_->first),
               kMaxDims);
      }
      tensor->shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (at_ != At::offsets || offsets_ == 2) return unexpected("a number");
    (offsets_++ == 0 ? tensor->begin : tensor->end) = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a number that is not whole"); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refuse(path_, "safetensors header is not valid JSON: error at byte {} of it", position);
  }

 private:
  // `_value` states wait for the object or list that follows a key.
  enum class At {
    file,
    names,
    metadata_value,
    metadata,
    metadata_text,
    tensor_value,
    tensor,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    end
  };
  bool enter(At next) {
    at_ = next;
    return true;
  }
  bool field(unsigned bit, At next) {
    if ((seen_ & bit) != 0) refuse(path_, "safetensors header: tensor {} holds a field twice", in_quotes(entry_->first));
    seen_ |= bit;
    return enter(next);
  }
  bool unexpected(std::string_view what) const {
    refuse(path_, "safetensors header holds {} where the format has none{}", what,
           entry_ == nullptr ? "" : ", at or after tensor " + in_quotes(entry_->first));
  }

  std::string_view path_;
  At at_ = At::file;
  std::pair<const std::string, TensorEntry>* entry_ = nullptr;
  unsigned seen_ = 0, offsets_ = 0;
  bool has_metadata_ = false;
  std::set<std::string> metadata_keys_;
};

/// Files that are often found in the place of a checkpoint file. Asked only where the length cannot be one: a header of 60
/// bytes begins with '<' too.
void refuse_lookalikes(std::string_view head, std::string_view path) {
  if (head.starts_with("version https://git-lfs")) {
    refuse(path, "this is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`");
  }
  if (head.starts_with("<")) {
    refuse(path, "this is a web page, not a safetensors file: the download went wrong (access denied, or a wrong address?)");
  }
}

/// The header's text, after all that can be said of its length.
std::string_view header_text(std::string_view head, uint64_t file_bytes, std::string_view path) {
  if (file_bytes < kLengthBytes) {
    refuse_lookalikes(head, path);
    refuse(path, "safetensors file is too short: expected at least {} bytes, file {} bytes, incomplete download?",
           kLengthBytes + 2, file_bytes);
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(head[static_cast<size_t>(i)]);
  if (length > kMaxHeaderBytes) {
    refuse_lookalikes(head, path);
    refuse(path, "not a safetensors file: it announces a header of {} bytes, at most {} are allowed", length, kMaxHeaderBytes);
  }
  if (length > file_bytes - kLengthBytes) {
    refuse(path, "safetensors header is longer than the file: expected at least {} bytes, file {} bytes, incomplete download?",
           length + kLengthBytes, file_bytes);
  }
  WEFT_CHECK_GE(head.size(), kLengthBytes + length) << "caller must pass the whole header";
  const std::string_view text = head.substr(kLengthBytes, length);
  if (!text.starts_with("{")) refuse(path, "not a safetensors file: its header does not begin with an opening brace");
  return text;
}

/// Offsets first, whatever the element type: a tensor that Weft cannot read must still lie inside the file.
void check_ranges(const SafetensorsHeader& header, uint64_t file_bytes, std::string_view path) {
  const uint64_t data_bytes = file_bytes - header.data_offset;
  using Item = const std::pair<const std::string, TensorEntry>*;
  std::vector<Item> order;
  uint64_t end = 0;
  for (const auto& item : header.tensors) {
    if (item.second.begin > item.second.end) {
      refuse(path, "safetensors header: tensor {} ends before it begins: data_offsets [{}, {}]", in_quotes(item.first),
             item.second.begin, item.second.end);
    }
    end = std::max(end, item.second.end);
    order.push_back(&item);
  }
  if (end > data_bytes) {
    const uint64_t expected = end > UINT64_MAX - header.data_offset ? UINT64_MAX : end + header.data_offset;
    refuse(path, "safetensors file is shorter than its header says: expected {} bytes, file {} bytes, incomplete download?",
           expected, file_bytes);
  }
  std::sort(order.begin(), order.end(), [](Item a, Item b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t at = 0;
  for (const Item item : order) {
    if (item->second.begin != at) {
      refuse(path, "safetensors header: {} before tensor {}: it begins at byte {}, the one before ends at {}",
             item->second.begin < at ? "overlap" : "hole", in_quotes(item->first), item->second.begin, at);
    }
    at = item->second.end;
  }
  if (at != data_bytes) {
    refuse(path, "safetensors file has {} bytes after its last tensor: expected {} bytes, file {} bytes", data_bytes - at,
           at + header.data_offset, file_bytes);
  }
}

void check_sizes(const SafetensorsHeader& header, std::string_view path) {
  for (const auto& [name, tensor] : header.tensors) {
    // Empty if some size is 0; otherwise the product must not overflow on the way.
    uint64_t elements = 1;
    bool overflow = false;
    const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
    for (const int64_t size : tensor.shape) {
      overflow = overflow || __builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements);
    }
    if (is_empty) {
      elements = 0;
      overflow = false;
    }
    if (!overflow && !tensor.dtype) continue;  // Fails when it is needed.
    uint64_t bytes = 0;
    if (overflow || __builtin_mul_overflow(elements, uint64_t{size_of(*tensor.dtype)}, &bytes)) {
      refuse(path, "safetensors header: shape of {} has more elements than a file can hold", in_quotes(name));
    }
    if (bytes != tensor.end - tensor.begin) {
      refuse(path, "safetensors header: tensor {} of type {} and this shape takes {} bytes, its data_offsets span {}",
             in_quotes(name), tensor.dtype_name, bytes, tensor.end - tensor.begin);
    }
  }
}

std::string read_text(const fs::path& path, uint64_t limit) {
  std::error_code error;
  // Asked first: opening a pipe waits for its writer.
  if (!fs::is_regular_file(path, error)) throw UserError("a checkpoint file must be a regular file, path {}", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemError("cannot open {}", path.string());
  const uint64_t bytes = fs::file_size(path, error);
  if (error) throw SystemError("cannot read {}: {}", path.string(), error.message());
  if (bytes > limit) throw UserError("file is larger than {} bytes: {} bytes, path {}", limit, bytes, path.string());
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() != static_cast<std::streamsize>(text.size())) throw SystemError("cannot read {}", path.string());
  return text;
}

/// A shard lies in the model folder itself. Symbolic links found there are followed: the Hugging Face cache stores every file
/// as one. Names from the index are not trusted to lead anywhere else.
void check_shard_name(std::string_view name, std::string_view path) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~' && c != '/' && c != '\\'; });
  if (!plain || !name.ends_with(".safetensors") || name.starts_with(".")) {
    refuse(path, "index names a file that is not a plain NAME.safetensors in the model folder: {}", in_quotes(name));
  }
}

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// file -> names of the tensors that it is to provide. Without an index: one file, and all that is in it.
using Shards = std::map<std::string, std::set<std::string, std::less<>>>;

Shards read_index(const fs::path& path) {
  const json index = parse_strict_json(read_text(path, kMaxIndexBytes), "index", path.string(), 4);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    refuse(path.string(), "index has no weight_map from tensor names to file names");
  }
  Shards shards;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) refuse(path.string(), "index maps {} to {}: must be a file name", in_quotes(name), shown(file));
    const auto& text = file.get_ref<const std::string&>();
    if (!shards.contains(text)) check_shard_name(text, path.string());
    shards[text].insert(name);
  }
  return shards;
}

std::vector<std::string> safetensors_files(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, uint64_t file_bytes, std::string_view path) {
  const std::string_view bytes(reinterpret_cast<const char*>(head.data()), head.size());
  const std::string_view text = header_text(bytes, file_bytes, path);
  HeaderReader reader(path);
  json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header{std::move(reader.tensors), kLengthBytes + text.size()};
  check_ranges(header, file_bytes, path);
  check_sizes(header, path);
  return header;
}

/// One file, mapped for reading.
struct Checkpoint::File {
  explicit File(const fs::path& file_path) : path(file_path.string()), name(file_path.filename().string()) {
    // O_NONBLOCK: opening a pipe must not wait for its writer; for files it means nothing.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      const std::string why = std::generic_category().message(errno);
      throw UserError("cannot open a checkpoint file: {}, path {}", why, path);
    }
    struct stat info {};
    const bool is_file = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    bytes = is_file ? static_cast<size_t>(info.st_size) : 0;
    if (bytes > 0) map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const std::string why = std::generic_category().message(errno);
    ::close(fd);
    if (!is_file) throw UserError("a checkpoint file must be a regular file, path {}", path);
    if (map == MAP_FAILED) throw SystemError("cannot map a checkpoint file: {}, path {}", why, path);
    if (bytes > 0) ::madvise(map, bytes, MADV_SEQUENTIAL);
    try {
      header = parse_safetensors_header({static_cast<const std::byte*>(map), bytes}, bytes, path);
    } catch (...) {
      unmap();
      throw;
    }
  }
  ~File() { unmap(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  void unmap() {
    if (bytes > 0) ::munmap(map, bytes);
  }
  const std::byte* data() const { return static_cast<const std::byte*>(map) + header.data_offset; }

  std::string path, name;
  void* map = nullptr;
  size_t bytes = 0;
  SafetensorsHeader header;
};

Checkpoint::Checkpoint(const fs::path& model_dir) {
  std::error_code error;
  if (!fs::is_directory(model_dir, error)) throw UserError("no such model folder, path {}", model_dir.string());
  const std::vector<std::string> present = safetensors_files(model_dir);
  const bool has_index = fs::exists(model_dir / kIndex, error);
  if (!has_index && !fs::exists(model_dir / kSingle, error)) {
    throw UserError("the model folder has neither {} nor {}: {} other safetensors files, path {}", kSingle, kIndex,
                    present.size(), model_dir.string());
  }
  const Shards shards = has_index ? read_index(model_dir / kIndex) : Shards{{kSingle, {}}};

  size_t overlaid = 0;
  for (const auto& [name, wanted] : shards) {
    files_.push_back(std::make_unique<File>(model_dir / name));
    const File& file = *files_.back();
    for (const std::string& tensor : wanted) {
      if (!file.header.tensors.contains(tensor)) {
        throw UserError(
            "index says that {} is in {}, but it is not: incomplete download, or an index of another checkpoint? path {}",
            in_quotes(tensor), name, file.path);
      }
    }
    for (const auto& [tensor, entry] : file.header.tensors) {
      if (has_index && !wanted.contains(tensor)) {
        ++overlaid;
        continue;
      }
      tensors_.emplace(tensor, Tensor{.name = tensor,
                                      .dtype_name = entry.dtype_name,
                                      .dtype = entry.dtype,
                                      .shape = entry.shape,
                                      .bytes = {file.data() + entry.begin, entry.end - entry.begin},
                                      .file = file.name});
    }
  }
  const auto ignored = std::count_if(present.begin(), present.end(), [&](const auto& name) { return !shards.contains(name); });
  if (ignored > 0)
    log::info("ignoring {} safetensors files that are not part of the checkpoint, in {}", ignored, model_dir.string());
  if (overlaid > 0) log::info("ignoring {} tensors that the index takes from another file, or from none", overlaid);
}

Checkpoint::~Checkpoint() = default;

const Checkpoint::Tensor* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t Checkpoint::bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes.size();
  return sum;
}

void SafetensorsWriter::add(std::string name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
  size_t expected = size_of(dtype);
  for (const int64_t size : shape) expected *= static_cast<size_t>(size);
  WEFT_CHECK_EQ(expected, bytes.size()) << name;
  items_.push_back({std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}});
}

void SafetensorsWriter::write(const fs::path& path) const {
  std::string text = "{";
  std::set<std::string_view> names;
  uint64_t at = 0;
  for (const Item& item : items_) {
    WEFT_CHECK(names.insert(item.name).second) << item.name;
    const nlohmann::ordered_json entry = {
        {"dtype", name_of(item.dtype)}, {"shape", item.shape}, {"data_offsets", {at, at + item.bytes.size()}}};
    text += (names.size() > 1 ? "," : "") + json(item.name).dump() + ":" + entry.dump();
    at += item.bytes.size();
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');  // The data section begins aligned.
  // Beside the target first: a full disk leaves an older file as it was. Pipes and devices are written as they are.
  const bool special = fs::exists(path) && !fs::is_regular_file(path);
  const fs::path target = special ? path : fs::path(path.string() + ".partial");
  std::ofstream file(target, std::ios::binary | std::ios::trunc);
  const uint64_t length = text.size();
  std::array<char, kLengthBytes> prefix{};
  for (size_t i = 0; i < prefix.size(); ++i) prefix[i] = static_cast<char>(length >> (8 * i) & 255);
  file.write(prefix.data(), prefix.size());
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const Item& item : items_) {
    file.write(reinterpret_cast<const char*>(item.bytes.data()), static_cast<std::streamsize>(item.bytes.size()));
  }
  file.close();
  std::error_code error;
  if (file && !special) fs::rename(target, path, error);
  if (file && !error) return;
  if (!special) fs::remove(target, error);
  throw SystemError("cannot write {}", path.string());
}

}  // namespace weft
