#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

/// Unicode's composed normal form (NFC), as Unicode 9 has it. Time is linear in the text but for a logarithm, also where
/// thousands of combining marks follow one letter. Requires: valid UTF-8, below 1 GiB.
std::string composed(std::string_view text);

/// What is done to a whole text before it is cut, step by step.
class NormalForm {
 public:
  void compose() { steps_.push_back({Kind::compose, {}, {}}); }
  /// Puts `prefix` in front of a text that is not empty.
  void prepend(std::string prefix) { steps_.push_back({Kind::prepend, {}, std::move(prefix)}); }
  /// Requires: `from` is not empty.
  void replace(std::string from, std::string to) { steps_.push_back({Kind::replace, std::move(from), std::move(to)}); }

  bool composes() const { return has(Kind::compose); }
  bool prepends() const { return has(Kind::prepend); }
  /// In `memory`, or `text` itself where nothing is to be done. Requires: as composed().
  std::string_view apply(std::string_view text, std::string& memory) const;

 private:
  enum class Kind : uint8_t { compose, prepend, replace };
  struct Step {
    Kind kind;
    std::string from, to;
  };
  bool has(Kind kind) const;

  std::vector<Step> steps_;
};

/// `text` with every `from` made `to`, from left to right. Requires: `from` is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace weft
