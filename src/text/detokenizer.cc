#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weft {

StopTexts::StopTexts(const std::vector<std::string>& texts) {
  std::vector<One> all;
  for (const std::string& text : texts) {
    if (text.empty()) throw UserError("a stop string must not be empty");
    if (valid_utf8_prefix(text) != text.size()) throw UserError("a stop string must be UTF-8");
    std::vector<uint32_t> fallback(text.size() + 1, 0);
    for (size_t length = 2, end = 0; length <= text.size(); ++length) {
      while (end > 0 && text[end] != text[length - 1]) end = fallback[end];
      if (text[end] == text[length - 1]) ++end;
      fallback[length] = static_cast<uint32_t>(end);
    }
    all.push_back({.text = text, .fallback = std::move(fallback)});
  }
  all_ = std::make_shared<const std::vector<One>>(std::move(all));
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), matched_(options_.stops.size(), 0) {}

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
  if (matched_.empty()) return std::string(text);
  for (const char next : text) {
    held_ += next;
    for (size_t i = 0; i < matched_.size(); ++i) {
      const bool complete = advance(i, next);
      if (complete && (!stop_ || options_.stops.text(i).size() > options_.stops.text(*stop_).size())) stop_ = i;
    }
    if (!stop_) continue;
    std::string last = std::exchange(held_, "");
    if (!options_.include_stop) last.resize(last.size() - options_.stops.text(*stop_).size());
    return last;
  }
  const size_t longest = *std::max_element(matched_.begin(), matched_.end());
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  return certain;
}

/// Whether a stop string is complete with the next byte.
bool Detokenizer::advance(size_t stop, char next) {
  const std::string& wanted = options_.stops.text(stop);
  const std::vector<uint32_t>& fallback = options_.stops.fallback(stop);
  uint32_t& matched = matched_[stop];
  while (matched > 0 && wanted[matched] != next) matched = fallback[matched];
  if (wanted[matched] == next) ++matched;
  return matched == wanted.size();
}

}  // namespace weft
