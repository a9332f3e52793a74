#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weft {

/// A token that stands for itself wherever it is written, beside the vocabulary.
struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool special = false;      ///< no text: left out of what the model said
  bool single_word = false;  ///< only where no letter, digit or the like touches it
  bool strip_left = false;   ///< takes the white space before it along
  bool strip_right = false;  ///< and that after it
  bool normalized = false;   ///< looked for in the normalized text, by its normalized content
};

/// Finds added tokens in a text: at each place the longest one, from left to right, without overlap.
///
/// Immutable. Time is the length of the text times that of the longest token, at worst.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  /// Calls `piece` for each part of `text` in order, with the id of a token or -1 for text between, until it returns false;
  /// returns what it returned last. Requires: valid UTF-8.
  using Sink = std::function<bool(std::string_view text, int32_t id)>;
  bool find(std::string_view text, const Sink& piece) const;
  /// Whether one of the tokens is written at byte `at`.
  bool begins_at(std::string_view text, size_t at) const {
    return begins_[static_cast<unsigned char>(text[at])] && longest_at(text, at).token != kNone;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Match {
    uint32_t token;
    size_t end;
  };
  /// The longest token that begins at `at`; token kNone if there is none.
  Match longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  bool begins_[256] = {};
  std::unordered_map<uint64_t, uint32_t> next_;  ///< the tree of all contents: node << 8 | byte -> node
  std::vector<uint32_t> ends_;                   ///< per node, the token that ends there
};

}  // namespace weft
