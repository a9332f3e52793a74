#include "text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace weft {
namespace {

constexpr size_t kLongestText = 1 << 30;
// A normalized text is at most this many times longer or shorter than the text, in bytes (Unicode's annex 15).
constexpr int64_t kNfcFactor = 3;

// What the pre_tokenizer ByteLevel brings along.
constexpr std::string_view kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) throw SystemError("cannot read {}: {}", path.string(), std::strerror(errno));
  return std::move(text).str();
}

PreTokenizer pre_tokenizer(TokenizerFile& file) {
  std::optional<PreTokenizer::Split> after_prefix;
  if (file.byte_level_regex) after_prefix.emplace(PreTokenizer::Split{.pattern = Regex(kByteLevelPattern, "ByteLevel")});
  return PreTokenizer(std::move(file.splits), file.prefix_space, std::move(after_prefix));
}

/// The vocabulary by bytes. Tokens outside the byte-level alphabet cannot come of merging bytes.
Bpe bpe(TokenizerFile& file) {
  Bpe::Vocabulary vocabulary;
  vocabulary.merges = std::move(file.merges);
  vocabulary.whole_words = file.ignore_merges;
  vocabulary.unknown = file.unknown.value_or(-1);
  vocabulary.fuse_unknown = file.fuse_unknown;
  for (const auto& [content, id] : file.vocabulary) {
    if (auto bytes = byte_level_bytes(content)) vocabulary.tokens.emplace_back(std::move(*bytes), id);
  }
  return Bpe(std::move(vocabulary));
}

std::vector<AddedToken> those_normalized(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && file.nfc) token.content = composed(token.content);
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

std::string without(std::string_view text, std::string_view mark) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(mark, at), text.size());
    out += text.substr(at, end - at);
    at = end + mark.size();
  }
  return out;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerFile file);

  AddedTokenFinder added, normalized_added, specials;
  bool nfc;
  PreTokenizer words;
  Bpe bpe;
  std::vector<int32_t> before, after;
  std::vector<std::string> bytes;  ///< by id
  std::vector<bool> special;       ///< by id
  std::optional<int32_t> bos, eos;
  int64_t longest_token = 0;  ///< in bytes; 0: one may stand for any number of bytes
};

Tokenizer::Parts::Parts(TokenizerFile file)
    : added(those_normalized(file, false)),
      normalized_added(those_normalized(file, true)),
      specials(those_special(file)),
      nfc(file.nfc),
      words(pre_tokenizer(file)),
      bpe(weft::bpe(file)),
      before(std::move(file.before)),
      after(std::move(file.after)),
      bos(file.bos),
      eos(file.eos) {
  int32_t last = 0;
  for (const auto& [content, id] : file.vocabulary) last = std::max(last, id);
  for (const AddedToken& token : file.added_tokens) last = std::max(last, token.id);
  bytes.resize(last + 1);
  special.resize(last + 1);
  for (auto& [content, id] : file.vocabulary) {
    auto decoded = byte_level_bytes(content);
    bytes[id] = decoded ? std::move(*decoded) : std::move(content);
  }
  for (AddedToken& token : file.added_tokens) {
    if (bytes[token.id].empty()) bytes[token.id] = std::move(token.content);  // else it is one of the vocabulary
    special[token.id] = token.special;
  }
  for (const std::string& one : bytes) longest_token = std::max(longest_token, static_cast<int64_t>(one.size()));
  const bool strips = std::any_of(file.added_tokens.begin(), file.added_tokens.end(),
                                  [](const AddedToken& token) { return token.strip_left || token.strip_right; });
  if (strips || words.drops_text() || !bpe.knows_all_bytes()) longest_token = 0;
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view config, std::string_view path) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const Parts>(read_tokenizer_file(json, config, path))));
}

bool Tokenizer::is_in(const std::filesystem::path& folder) { return std::filesystem::exists(folder / "tokenizer.json"); }

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& folder_or_file) {
  if (!std::filesystem::is_directory(folder_or_file)) return parse(read_file(folder_or_file), "", folder_or_file.string());
  const std::filesystem::path file = folder_or_file / "tokenizer.json", config = folder_or_file / "tokenizer_config.json";
  if (!is_in(folder_or_file)) {
    throw UserError("the model folder has no tokenizer.json, the only kind of tokenizer that is read: path {}",
                    folder_or_file.string());
  }
  return parse(read_file(file), std::filesystem::exists(config) ? read_file(config) : "", file.string());
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kLongestText) throw UserError("the text is too long: {} bytes, at most {}", text.size(), kLongestText);
  if (const size_t valid = valid_utf8_prefix(text); valid != text.size()) {
    throw UserError("the text is not UTF-8: byte {} of {}", valid, text.size());
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  Regex::Scratch scratch;
  const auto wants_more = [&] { return static_cast<int64_t>(ids.size()) <= options.max_tokens; };
  const auto add = [&](int32_t id) {
    ids.push_back(id);
    return wants_more();
  };
  const PreTokenizer::Sink add_word = [&](std::string_view word) {
    parts_->bpe.encode(word, ids);
    return wants_more();
  };
  const auto add_normalized = [&](std::string_view part, int32_t id) {
    if (id >= 0) return add(id);
    std::string unmarked;
    if (!options.mark.empty() && part.find(options.mark) != part.npos) part = unmarked = without(part, options.mark);
    parts_->words.cut(part, scratch, add_word);
    return wants_more();
  };
  const auto add_raw = [&](std::string_view part, int32_t id) {
    if (id >= 0) return add(id);
    std::string normalized;
    if (parts_->nfc) part = normalized = composed(part);
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
  return bytes / (parts_->nfc ? kNfcFactor : 1) / parts_->longest_token;
}

int64_t Tokenizer::most_tokens(int64_t bytes) const {
  const auto around = static_cast<int64_t>(parts_->before.size() + parts_->after.size());
  return bytes * (parts_->nfc ? kNfcFactor : 1) * (parts_->words.adds_text() ? 2 : 1) + around;
}

}  // namespace weft
