#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace weft {

/// What becomes of the pieces that a pattern matches, and of those between them.
enum class SplitBehavior : uint8_t {
  isolated,              ///< each is a word
  removed,               ///< matches are dropped
  merged_with_previous,  ///< a match ends the word before it
  merged_with_next,      ///< a match begins the word after it
  contiguous,            ///< neighbouring matches are one word
};

/// Cuts a text into the words that byte pair encoding works on: each stage cuts every piece that the stage before it made.
///
/// Immutable: any number of threads may use one object, each with a scratch of its own.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< what lies between the matches counts as match, and the other way round
  };

  /// After the splits, with `prefix_space` every piece gets a space in front that does not begin with one, and then is cut by
  /// `after_prefix`, if there is such a stage.
  PreTokenizer(std::vector<Split> splits, bool prefix_space, std::optional<Split> after_prefix)
      : splits_(std::move(splits)), prefix_space_(prefix_space), after_prefix_(std::move(after_prefix)) {}

  bool drops_text() const;
  bool adds_text() const { return prefix_space_; }

  /// Calls `word` with each word of the text in order until it returns false; a word is valid during the call. Throws UserError
  /// as Regex::find does. Requires: valid UTF-8.
  using Sink = std::function<bool(std::string_view word)>;
  void cut(std::string_view text, Regex::Scratch& scratch, const Sink& word) const;

 private:
  /// A text and how it looks to the patterns; the same length.
  struct Piece {
    std::string_view text, look;
    Piece part(size_t begin, size_t end) const { return {text.substr(begin, end - begin), look.substr(begin, end - begin)}; }
  };
  bool cut_from(size_t stage, Piece piece, Regex::Scratch& scratch, const Sink& word) const;
  bool finish(Piece piece, Regex::Scratch& scratch, const Sink& word) const;

  std::vector<Split> splits_;
  bool prefix_space_;
  std::optional<Split> after_prefix_;
};

}  // namespace weft
