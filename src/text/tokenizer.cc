#include "text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/sentence_piece.h"
#include "text/token_model.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace weft {
namespace {

constexpr size_t kLongestText = 1 << 30;
constexpr const char *kJsonFile = "tokenizer.json", *kSentencePieceFile = "tokenizer.model";

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file.is_open() || file.bad() || !text) throw SystemError("cannot read {}: {}", path.string(), std::strerror(errno));
  return std::move(text).str();
}

/// The text of a file that a model folder may have; empty if it has none.
std::string read_optional(const std::filesystem::path& path) { return std::filesystem::exists(path) ? read_file(path) : ""; }

std::vector<AddedToken> those_normalized(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string memory;
    if (normalized) token.content = file.model->normalize(token.content, memory);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<AddedToken> those_special(const TokenizerFile& file) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : file.added_tokens)
    if (token.special) tokens.push_back(token);
  return tokens;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerFile file);

  AddedTokenFinder added, normalized_added, specials;
  std::unique_ptr<const TokenModel> model;
  std::vector<int32_t> before, after;
  std::vector<std::string> bytes;  ///< by id
  std::vector<bool> special;       ///< by id
  std::optional<int32_t> bos, eos;
  bool drops_first_space;
  int64_t longest_token = 0;  ///< in bytes; 0: one may stand for any number of bytes
};

Tokenizer::Parts::Parts(TokenizerFile file)
    : added(those_normalized(file, false)),
      normalized_added(those_normalized(file, true)),
      specials(those_special(file)),
      model(std::move(file.model)),
      before(std::move(file.before)),
      after(std::move(file.after)),
      bytes(std::move(file.bytes)),
      special(bytes.size(), false),
      bos(file.bos),
      eos(file.eos),
      drops_first_space(file.drops_first_space) {
  bool strips = false;
  for (const AddedToken& token : file.added_tokens) {
    special[token.id] = token.special;
    strips = strips || token.strip_left || token.strip_right;
  }
  if (strips || model->bytes_per_token_byte() == 0) return;
  for (const std::string& one : bytes) longest_token = std::max(longest_token, static_cast<int64_t>(one.size()));
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::of(TokenizerFile file) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const Parts>(std::move(file))));
}

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view config, std::string_view path) {
  return of(read_tokenizer_file(json, config, path));
}

bool Tokenizer::is_in(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kJsonFile) || std::filesystem::exists(folder / kSentencePieceFile);
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& folder_or_file) {
  const bool is_folder = std::filesystem::is_directory(folder_or_file);
  const std::filesystem::path folder = is_folder ? folder_or_file : std::filesystem::path();
  const std::string config = is_folder ? read_optional(folder / "tokenizer_config.json") : "";
  if (is_folder && !is_in(folder)) {
    throw UserError("the model folder has no tokenizer.json and no tokenizer.model: path {}", folder.string());
  }
  std::filesystem::path file = folder_or_file;
  if (is_folder) file = std::filesystem::exists(folder / kJsonFile) ? folder / kJsonFile : folder / kSentencePieceFile;
  if (file.extension() != ".model") return parse(read_file(file), config, file.string());
  const std::string special_tokens = is_folder ? read_optional(folder / "special_tokens_map.json") : "",
                    added = is_folder ? read_optional(folder / "added_tokens.json") : "";
  return of(read_sentence_piece(
      {.model = read_file(file), .config = config, .special_tokens_map = special_tokens, .added_tokens = added},
      file.string()));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kLongestText) throw UserError("the text is too long: {} bytes, at most {}", text.size(), kLongestText);
  if (const size_t valid = valid_utf8_prefix(text); valid != text.size()) {
    throw UserError("the text is not UTF-8: byte {} of {}", valid, text.size());
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  const auto wants_more = [&] { return static_cast<int64_t>(ids.size()) <= options.max_tokens; };
  const auto add = [&](int32_t id) {
    ids.push_back(id);
    return wants_more();
  };
  bool begins = true;  // Nothing has been read yet.
  const auto add_normalized = [&](std::string_view part, int32_t id) {
    const bool first = std::exchange(begins, false);
    if (id >= 0) return add(id);
    std::string unmarked;
    if (!options.mark.empty() && part.find(options.mark) != part.npos) part = unmarked = replaced(part, options.mark, "");
    parts_->model->encode(part, first, options.max_tokens, ids);
    return wants_more();
  };
  const auto add_raw = [&](std::string_view part, int32_t id) {
    if (id >= 0 || part == options.mark) return id < 0 || add_normalized({}, id);
    std::string memory;
    part = parts_->model->normalize(part, memory);
    if (!options.parse_added_tokens) return add_normalized(part, -1);
    return parts_->normalized_added.find(part, add_normalized);
  };

  if (options.add_special_tokens) ids = parts_->before;
  if (options.parse_added_tokens) {
    parts_->added.find(text, add_raw);
  } else {
    add_raw(text, -1);
  }
  if (options.add_special_tokens) ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
  return ids;
}

std::string Tokenizer::break_special(std::string_view text, std::string_view mark) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool begins = parts_->specials.begins_at(text, at);
    do {
      out += text[at++];
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    if (begins) out += mark;
  }
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(parts_->bytes[id]) : std::string_view();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text = decode_further(ids, skip_special);
  if (parts_->drops_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string Tokenizer::decode_further(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  Utf8Stream characters;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) characters.append(token_bytes(id), text);
  }
  characters.finish(text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->bytes.size()); }

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && parts_->special[id]; }

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto found = std::find(parts_->bytes.begin(), parts_->bytes.end(), token);
  if (token.empty() || found == parts_->bytes.end()) return std::nullopt;
  return static_cast<int32_t>(found - parts_->bytes.begin());
}

std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos; }

int64_t Tokenizer::least_tokens(int64_t bytes) const {
  if (parts_->longest_token == 0) return 0;
  return bytes / parts_->model->bytes_per_token_byte() / parts_->longest_token;
}

int64_t Tokenizer::most_tokens(int64_t bytes) const {
  return bytes * parts_->model->most_tokens_per_byte() + static_cast<int64_t>(parts_->before.size() + parts_->after.size());
}

}  // namespace weft
