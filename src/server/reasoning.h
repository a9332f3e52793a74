#pragma once

#include <string>
#include <string_view>

namespace weft {

/// Parts a growing answer into what the model thought, between <think> and </think>, and what it says. Text that might become
/// one of the two marks is kept back until that is clear. Line ends behind a mark belong to neither.
///
/// Thread: one at a time.
class ReasoningSplitter {
 public:
  /// `inside`: the prompt has opened the thoughts already.
  explicit ReasoningSplitter(bool inside) : state_(inside ? State::thinking : State::before) {}

  struct Piece {
    std::string reasoning, content;
  };
  Piece add(std::string_view text);
  /// The end of the answer: what was kept back.
  Piece finish();

  /// Whether a prompt ends with <think>, so that the answer begins within.
  static bool leaves_open(std::string_view prompt);

 private:
  enum class State { before, thinking, saying };
  void advance(Piece& out, bool last);

  State state_;
  bool skips_lines_ = false;  ///< just behind a mark
  std::string held_;
};

}  // namespace weft
