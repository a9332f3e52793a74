#include "text/sentence_piece_model.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace weft {
namespace {

// A part costs the library some megabytes, also where all of it is one row of unknown characters.
constexpr size_t kPart = 8 << 10;
constexpr size_t kLongestPart = 2 << 20, kLongestUnknown = 64 << 10;
constexpr char32_t kMark = 0x2581;
// Of all characters U+FDFA grows most in the normal form NFKC, from 3 bytes to 33; and there may be a space in front.
constexpr int64_t kNfkcFactor = 12;

/// The fields of a serialized protocol buffer, one after the other.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view message) : rest_(message) {}

  /// False at the end, and where the bytes are no message.
  bool next() {
    const auto tag = varint();
    if (!tag) return false;
    number = static_cast<int>(*tag >> 3);
    value = 0;
    bytes = {};
    switch (*tag & 7) {
      case 0: {
        const auto read = varint();
        value = read.value_or(0);
        return read.has_value();
      }
      case 1:
        return skip(8);
      case 2: {
        const auto size = varint();
        if (!size || *size > rest_.size()) return false;
        bytes = rest_.substr(0, *size);
        return skip(*size);
      }
      case 5:
        return skip(4);
      default:
        return false;
    }
  }

  int number = 0;
  uint64_t value = 0;      ///< of a number
  std::string_view bytes;  ///< of a text or a message

 private:
  std::optional<uint64_t> varint() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return std::nullopt;
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      out |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return out;
    }
    return std::nullopt;
  }
  bool skip(size_t size) {
    if (size > rest_.size()) return false;
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

constexpr uint64_t pair_of(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }
constexpr char32_t as_mark(char32_t code) { return code == ' ' ? kMark : code; }
bool is_word_character(char32_t code) {
  return (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') || (code >= 'a' && code <= 'z');
}

}  // namespace

/// ModelProto of sentencepiece_model.proto: 2 is the trainer_spec, 3 the normalizer_spec, 5 the denormalizer_spec.
SentencePieceModel::Spec SentencePieceModel::read_spec(std::string_view serialized) {
  Spec spec;
  for (ProtoFields model(serialized); model.next();) {
    for (ProtoFields part(model.bytes); part.next();) {
      if (model.number == 2 && part.number == 24) spec.marks_behind = part.value != 0;
      if (model.number == 5 && part.number == 2) spec.rewrites_back = !part.bytes.empty();
      if (model.number != 3) continue;
      if (part.number == 2) spec.rewrites_text = !part.bytes.empty();
      if (part.number == 3) spec.adds_prefix = part.value != 0;
      if (part.number == 4) spec.collapses = part.value != 0;
      if (part.number == 5) spec.writes_marks = part.value != 0;
    }
  }
  return spec;
}

SentencePieceModel::Processor SentencePieceModel::load(std::string serialized, std::optional<bool> adds_prefix,
                                                       std::string_view path) {
  // Of a field that is there twice the later one counts: normalizer_spec, two bytes, its add_dummy_prefix.
  if (adds_prefix) serialized.append({0x1A, 0x02, 0x18, static_cast<char>(*adds_prefix)});
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (const auto status = processor->LoadFromSerializedProto(serialized); !status.ok()) {
    throw UserError("the tokenizer is no SentencePiece model: {}, path {}", status.error_message(), path);
  }
  return processor;
}

SentencePieceModel::SentencePieceModel(std::string_view serialized, Prefix prefix, std::string_view path)
    : spec_(read_spec(serialized)), prefix_(prefix) {
  const auto refuse = [&](const char* what) {
    throw UserError("the tokenizer's SentencePiece model is not supported: {}, path {}", what, path);
  };
  if (spec_.marks_behind) refuse("treat_whitespace_as_suffix");
  if (!spec_.writes_marks) refuse("escape_whitespaces is false");
  if (spec_.rewrites_back) refuse("it has a denormalizer");
  if (spec_.collapses && prefix != Prefix::as_trained) {
    refuse("remove_extra_whitespaces together with \"legacy\": false in tokenizer_config.json");
  }
  // The space is put there by the library where it also takes spaces away, else here.
  first_ = load(std::string(serialized), spec_.collapses ? std::nullopt : std::optional(false), path);
  if (spec_.collapses && !spec_.adds_prefix) further_ = load(std::string(serialized), true, path);
  read_pieces();
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::read_pieces() {
  int bytes = 0;
  for (int32_t id = 0; id < size(); ++id) {
    bytes += first_->IsByte(id) ? 1 : 0;
    if (first_->IsByte(id) || is_control(id) || is_unknown(id)) continue;
    const std::string& content = piece(id);
    if (valid_utf8_prefix(content) != content.size())
      throw UserError("a piece of the SentencePiece model is not UTF-8: id {}", id);
    char32_t before = 0;
    for (size_t at = 0; at < content.size();) {
      const auto [code, length] = character_at(content, at);
      if (at > 0) {
        marks_lead_ = marks_lead_ && (as_mark(code) != kMark || before == kMark);
        joined_.insert(pair_of(before, as_mark(code)));
      }
      before = as_mark(code);
      at += length;
    }
  }
  knows_bytes_ = bytes == 256;
}

int32_t SentencePieceModel::size() const { return first_->GetPieceSize(); }
const std::string& SentencePieceModel::piece(int32_t id) const { return first_->IdToPiece(id); }
bool SentencePieceModel::is_control(int32_t id) const { return first_->IsControl(id); }
bool SentencePieceModel::is_unknown(int32_t id) const { return first_->IsUnknown(id); }

std::optional<uint8_t> SentencePieceModel::byte(int32_t id) const {
  if (!first_->IsByte(id)) return std::nullopt;
  return static_cast<uint8_t>(std::stoul(piece(id).substr(3, 2), nullptr, 16));
}

std::optional<int32_t> SentencePieceModel::bos() const {
  return first_->bos_id() < 0 ? std::nullopt : std::optional<int32_t>(first_->bos_id());
}
std::optional<int32_t> SentencePieceModel::eos() const {
  return first_->eos_id() < 0 ? std::nullopt : std::optional<int32_t>(first_->eos_id());
}

bool SentencePieceModel::adds_space() const {
  return prefix_ == Prefix::as_trained ? spec_.adds_prefix || spec_.collapses : prefix_ == Prefix::first;
}

void SentencePieceModel::encode(std::string_view text, bool begins, int64_t max_tokens, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string prefixed;
  const bool prefix = prefix_ == Prefix::as_trained ? spec_.adds_prefix : prefix_ == Prefix::first && begins;
  if (prefix && !spec_.collapses) text = prefixed.append(" ").append(text);

  const size_t longest = knows_bytes_ || !(spec_.collapses || spec_.rewrites_text) ? kLongestPart : kLongestUnknown;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.size() - begin > kPart ? next_cut(text, begin + kPart / 2) : text.size();
    if (end - begin > longest) {
      throw UserError(
          "the text has too long a part without a place to cut it for this SentencePiece model: {} bytes, at most {}; put "
          "spaces "
          "into it",
          end - begin, longest);
    }
    encode_part(begin > 0 && further_ ? further_ : first_, text.substr(begin, end - begin), ids);
    if (static_cast<int64_t>(ids.size()) > max_tokens) return;
    begin = end;
  }
}

size_t SentencePieceModel::next_cut(std::string_view text, size_t from) const {
  while ((static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
  const bool plain = !spec_.collapses && !spec_.rewrites_text;
  if (!plain && !marks_lead_) return text.size();
  char32_t before = character_before(text, from).code;
  for (size_t at = from; at < text.size();) {
    const auto [code, length] = character_at(text, at);
    if (plain ? !joined_.contains(pair_of(as_mark(before), as_mark(code)))
              : code == ' ' && is_word_character(before) && at + 1 < text.size() &&
                    is_word_character(static_cast<unsigned char>(text[at + 1]))) {
      return at;
    }
    before = code;
    at += length;
  }
  return text.size();
}

void SentencePieceModel::encode_part(const Processor& processor, std::string_view part, std::vector<int32_t>& ids) const {
  std::vector<int> found;
  if (const auto status = processor->Encode(part, &found); !status.ok()) {
    throw UserError("SentencePiece cannot encode a text of {} bytes: {}", part.size(), status.error_message());
  }
  // Neighbours that are unknown are one token.
  const bool joins = !found.empty() && !ids.empty() && is_unknown(found[0]) && ids.back() == found[0];
  ids.insert(ids.end(), found.begin() + (joins ? 1 : 0), found.end());
}

int64_t SentencePieceModel::most_tokens_per_byte() const { return spec_.rewrites_text ? kNfkcFactor : 2; }

int64_t SentencePieceModel::bytes_per_token_byte() const {
  return knows_bytes_ && !spec_.collapses && !spec_.rewrites_text ? 1 : 0;
}

}  // namespace weft
