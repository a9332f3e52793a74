#include "text/byte_pair_model.h"

#include <algorithm>
#include <unordered_map>

#include "text/utf8.h"

namespace weft {
namespace {

// A normalized text is at most this many times longer or shorter than the text, in bytes (Unicode's annex 15).
constexpr int64_t kNfcFactor = 3;
constexpr char32_t kMarkCode = 0x2581;

/// Those that stand directly before a mark within the result of some merge, sorted.
std::vector<char32_t> joined_to_mark(const Bpe::Vocabulary& vocabulary) {
  std::unordered_map<int32_t, std::string_view> contents;
  for (const auto& [content, id] : vocabulary.tokens) contents.emplace(id, content);
  std::vector<char32_t> joined;
  for (const Bpe::Merge& merge : vocabulary.merges) {
    const std::string_view result = contents[merge.merged];
    for (size_t at = result.find(kSpaceMark); at != result.npos; at = result.find(kSpaceMark, at + kSpaceMark.size())) {
      if (at > 0) joined.push_back(character_before(result, at).code);
    }
  }
  std::sort(joined.begin(), joined.end());
  joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
  return joined;
}

}  // namespace

BytePairModel::BytePairModel(NormalForm form, std::optional<SpaceMarks> marks, PreTokenizer words, Bpe::Vocabulary vocabulary)
    : form_(std::move(form)),
      marks_(marks),
      words_(std::move(words)),
      by_character_(!vocabulary.byte_fallback.empty()),
      joined_to_mark_(by_character_ ? joined_to_mark(vocabulary) : std::vector<char32_t>()),
      bpe_(std::move(vocabulary)) {}

std::string_view BytePairModel::normalize(std::string_view text, std::string& memory) const {
  return form_.apply(text, memory);
}

void BytePairModel::encode(std::string_view text, bool begins, int64_t max_tokens, std::vector<int32_t>& ids) const {
  std::string marked;
  if (marks_ && !text.empty()) {
    marked = replaced(text, " ", kSpaceMark);
    const bool wanted = marks_->prefix == Prefix::always || (marks_->prefix == Prefix::first && begins);
    if (wanted && !marked.starts_with(kSpaceMark)) marked.insert(0, kSpaceMark);
    text = marked;
  }
  Regex::Scratch scratch;
  words_.cut(text, scratch, [&](std::string_view word) {
    if (by_character_) return encode_marked(word, max_tokens, ids);
    bpe_.encode(word, ids);
    return static_cast<int64_t>(ids.size()) <= max_tokens;
  });
}

bool BytePairModel::encode_marked(std::string_view word, int64_t max_tokens, std::vector<int32_t>& ids) const {
  const bool always = marks_ && marks_->cuts;
  size_t begin = 0;
  for (size_t at = word.find(kSpaceMark); at != word.npos; at = word.find(kSpaceMark, at + kSpaceMark.size())) {
    if (at == 0) continue;
    if (!always) {
      const char32_t before = character_before(word, at).code;
      if (before == kMarkCode || std::binary_search(joined_to_mark_.begin(), joined_to_mark_.end(), before)) continue;
    }
    bpe_.encode(word.substr(begin, at - begin), ids);
    if (static_cast<int64_t>(ids.size()) > max_tokens) return false;
    begin = at;
  }
  bpe_.encode(word.substr(begin), ids);
  return static_cast<int64_t>(ids.size()) <= max_tokens;
}

int64_t BytePairModel::most_tokens_per_byte() const {
  const bool adds = words_.adds_text() || form_.prepends() || marks_;
  return (form_.composes() ? kNfcFactor : 1) * (adds ? 2 : 1);
}

int64_t BytePairModel::bytes_per_token_byte() const {
  if (words_.drops_text() || !bpe_.knows_all_bytes()) return 0;
  return form_.composes() ? kNfcFactor : 1;
}

}  // namespace weft
