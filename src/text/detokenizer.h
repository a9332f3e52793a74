#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace weft {

/// Texts that end an answer, made ready for the search once for all its choices. Copies share one memory.
class StopTexts {
 public:
  StopTexts() = default;
  /// Throws UserError if one is empty or not UTF-8.
  explicit StopTexts(const std::vector<std::string>& texts);
  StopTexts(std::initializer_list<std::string> texts) : StopTexts(std::vector<std::string>(texts)) {}

  size_t size() const { return all_ == nullptr ? 0 : all_->size(); }
  const std::string& text(size_t i) const { return (*all_)[i].text; }
  /// Per length of a beginning of a text, the longest proper end of it that is a beginning too (Knuth, Morris and Pratt).
  const std::vector<uint32_t>& fallback(size_t i) const { return (*all_)[i].fallback; }

 private:
  struct One {
    std::string text;
    std::vector<uint32_t> fallback;
  };
  std::shared_ptr<const std::vector<One>> all_;
};

struct DetokenizerOptions {
  bool skip_special = true;   ///< special tokens are no text
  StopTexts stops = {};       ///< the text ends before the first of these
  bool include_stop = false;  ///< or rather after it
};

/// The text of one growing answer, in pieces that may be sent at once. Each piece is valid UTF-8: of a character whose bytes
/// come with several tokens nothing is given before the last, and bytes that no character begins with are U+FFFD. Nothing of a
/// stop string is given; text that might become one is kept back until it is clear. All pieces together are
/// Tokenizer::decode_further of all tokens, cut at the stop, however the text was cut into tokens.
///
/// The stop string that is complete first ends the text; of several complete at once, the one that began first.
///
/// Thread: one at a time. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {});

  /// The text that is certain now and was not before, possibly none. After a stop: none.
  std::string append(int32_t id);
  /// The end of the answer: what was kept back, an incomplete character as U+FFFD.
  std::string finish();

  /// Set once a stop string came: an index into `stops`.
  std::optional<size_t> stop() const { return stop_; }
  /// Bytes kept back so far, of an incomplete character or a possible stop string.
  size_t held_bytes() const { return held_.size() + characters_.held_bytes(); }

 private:
  std::string pass(std::string_view text);
  bool advance(size_t stop, char next);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  Utf8Stream characters_;
  std::vector<uint32_t> matched_;  ///< per stop string, how much of it the end of the text is
  std::string held_;               ///< the longest end of the text that a stop string begins with
  std::optional<size_t> stop_;
};

}  // namespace weft
