#include "server/reasoning.h"

#include <algorithm>

namespace weft {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

/// Bytes at the end of `text` that `mark` begins with.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n)
    if (text.ends_with(mark.substr(0, n))) return n;
  return 0;
}

}  // namespace

bool ReasoningSplitter::leaves_open(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != prompt.npos && prompt.substr(0, end + 1).ends_with(kOpen);
}

ReasoningSplitter::Piece ReasoningSplitter::add(std::string_view text) {
  Piece out;
  held_ += text;
  advance(out, false);
  return out;
}

ReasoningSplitter::Piece ReasoningSplitter::finish() {
  Piece out;
  advance(out, true);
  return out;
}

void ReasoningSplitter::advance(Piece& out, bool last) {
  if (state_ == State::before) {
    const size_t text = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
    const std::string_view rest = std::string_view(held_).substr(text);
    if (rest.starts_with(kOpen)) {
      held_.erase(0, text + kOpen.size());
      state_ = State::thinking;
      skips_lines_ = true;
    } else if (last || !kOpen.starts_with(rest)) {
      state_ = State::saying;
    } else {
      return;
    }
  }
  if (skips_lines_) {
    held_.erase(0, std::min(held_.find_first_not_of("\r\n"), held_.size()));
    skips_lines_ = held_.empty();
  }
  if (state_ == State::thinking) {
    const size_t end = held_.find(kClose);
    if (end == held_.npos) {
      const size_t sure = held_.size() - (last ? 0 : begun(held_, kClose));
      out.reasoning += held_.substr(0, sure);
      held_.erase(0, sure);
      return;
    }
    out.reasoning += held_.substr(0, end);
    held_.erase(0, end + kClose.size());
    state_ = State::saying;
    skips_lines_ = true;
    return advance(out, last);
  }
  out.content += held_;
  held_.clear();
}

}  // namespace weft
