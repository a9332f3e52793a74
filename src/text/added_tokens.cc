#include "text/added_tokens.h"

#include <unicode/uchar.h>

#include "text/utf8.h"

namespace weft {
namespace {

bool is_space(char32_t code) { return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_WHITE_SPACE) != 0; }

/// What a regex calls a word character, by Unicode's technical standard 18.
bool is_word_character(char32_t code) {
  const auto c = static_cast<UChar32>(code);
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return (U_GET_GC_MASK(c) & kCategories) != 0 || u_hasBinaryProperty(c, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(character_before(text, begin).code)) &&
         (end == text.size() || !is_word_character(character_at(text, end).code));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), ends_(1, kNone) {
  for (uint32_t token = 0; token < tokens_.size(); ++token) {
    uint32_t node = 0;
    for (const char c : tokens_[token].content) {
      const auto byte = static_cast<uint8_t>(c);
      if (node == 0) begins_[byte] = true;
      const auto [place, is_new] = next_.emplace(uint64_t{node} << 8 | byte, static_cast<uint32_t>(ends_.size()));
      if (is_new) ends_.push_back(kNone);
      node = place->second;
    }
    if (node != 0 && ends_[node] == kNone) ends_[node] = token;
  }
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  Match longest{kNone, at};
  uint32_t node = 0;
  while (at < text.size()) {
    const auto place = next_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
    if (place == next_.end()) break;
    node = place->second;
    ++at;
    if (ends_[node] != kNone) longest = {ends_[node], at};
  }
  return longest;
}

bool AddedTokenFinder::find(std::string_view text, const Sink& piece) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at);
    if (match.token == kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    size_t begin = at, end = match.end;
    at = match.end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.strip_left) {
      while (begin > done && is_space(character_before(text, begin).code)) begin -= character_before(text, begin).bytes;
    }
    if (token.strip_right) {
      while (end < text.size() && is_space(character_at(text, end).code)) end += character_at(text, end).bytes;
    }
    if (begin > done && !piece(text.substr(done, begin - done), -1)) return false;
    if (!piece(text.substr(begin, end - begin), token.id)) return false;
    done = end;
  }
  return done == text.size() || piece(text.substr(done), -1);
}

}  // namespace weft
