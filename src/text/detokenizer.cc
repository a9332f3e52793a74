#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)) {
  for (const std::string& stop : options_.stops) {
    if (stop.empty()) throw UserError("a stop string must not be empty");
    if (valid_utf8_prefix(stop) != stop.size()) throw UserError("a stop string must be UTF-8");
    Matcher& matcher = matchers_.emplace_back();
    matcher.fallback.assign(stop.size() + 1, 0);
    for (size_t length = 2, end = 0; length <= stop.size(); ++length) {
      while (end > 0 && stop[end] != stop[length - 1]) end = matcher.fallback[end];
      if (stop[end] == stop[length - 1]) ++end;
      matcher.fallback[length] = static_cast<uint32_t>(end);
    }
  }
}

std::string Detokenizer::append(int32_t id) {
  if (stop_ || (options_.skip_special && tokenizer_.is_special(id))) return "";
  std::string text;
  characters_.append(tokenizer_.token_bytes(id), text);
  return pass(text);
}

std::string Detokenizer::finish() {
  if (stop_) return "";
  std::string text;
  characters_.finish(text);
  text = pass(text);
  if (!stop_) text += std::exchange(held_, "");
  return text;
}

/// Takes certain characters, gives those that are in no stop string.
std::string Detokenizer::pass(std::string_view text) {
  if (matchers_.empty()) return std::string(text);
  for (const char next : text) {
    held_ += next;
    for (size_t i = 0; i < matchers_.size(); ++i) {
      const bool complete = advance(i, next);
      if (complete && (!stop_ || options_.stops[i].size() > options_.stops[*stop_].size())) stop_ = i;
    }
    if (!stop_) continue;
    std::string last = std::exchange(held_, "");
    if (!options_.include_stop) last.resize(last.size() - options_.stops[*stop_].size());
    return last;
  }
  size_t longest = 0;
  for (const Matcher& matcher : matchers_) longest = std::max(longest, matcher.matched);
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  return certain;
}

/// Whether a stop string is complete with the next byte.
bool Detokenizer::advance(size_t stop, char next) {
  const std::string& wanted = options_.stops[stop];
  auto& [fallback, matched] = matchers_[stop];
  while (matched > 0 && wanted[matched] != next) matched = fallback[matched];
  if (wanted[matched] == next) ++matched;
  return matched == wanted.size();
}

}  // namespace weft
