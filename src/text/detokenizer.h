#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace weft {

struct DetokenizerOptions {
  bool skip_special = true;             ///< special tokens are no text
  std::vector<std::string> stops = {};  ///< the text ends before the first of these
  bool include_stop = false;            ///< or rather after it
};

/// The text of one growing answer, in pieces that may be sent at once. Each piece is valid UTF-8: of a character whose bytes
/// come with several tokens nothing is given before the last, and bytes that no character begins with are U+FFFD. Nothing of a
/// stop string is given; text that might become one is kept back until it is clear. All pieces together are Tokenizer::decode
/// of all tokens, cut at the stop, however the text was cut into tokens.
///
/// The stop string that is complete first ends the text; of several complete at once, the one that began first.
///
/// Thread: one at a time. The tokenizer must outlive it.
class Detokenizer {
 public:
  /// Throws UserError if a stop string is empty or not UTF-8.
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
  /// How much of one stop string the end of the text is (Knuth, Morris and Pratt).
  struct Matcher {
    std::vector<uint32_t> fallback;  ///< [length] of each beginning, its longest proper end that is a beginning too
    size_t matched = 0;
  };
  std::string pass(std::string_view text);
  bool advance(size_t stop, char next);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  Utf8Stream characters_;
  std::vector<Matcher> matchers_;
  std::string held_;  ///< the longest end of the text that a stop string begins with
  std::optional<size_t> stop_;
};

}  // namespace weft
