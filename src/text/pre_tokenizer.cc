#include "text/pre_tokenizer.h"

#include "text/newer_characters.h"
#include "text/utf8.h"

namespace weft {
namespace {

/// Joins a row of matches and gaps into words as a behavior has it. One element is kept until its right neighbour is known.
template <typename Emit>
class Joiner {
 public:
  Joiner(SplitBehavior behavior, Emit emit) : behavior_(behavior), emit_(emit) {}

  /// The next element; returns false once the receiver wants no more.
  bool add(size_t begin, size_t end, bool is_match) {
    if (has_word_ && joins(is_match)) {
      end_ = end;
    } else {
      if (!flush()) return false;
      begin_ = begin;
      end_ = end;
      has_word_ = true;
    }
    last_is_match_ = is_match;
    return true;
  }
  bool flush() {
    const bool wanted = has_word_ && begin_ < end_ && !(behavior_ == SplitBehavior::removed && last_is_match_);
    has_word_ = false;
    return !wanted || emit_(begin_, end_);
  }

 private:
  /// Whether the next element belongs to the same word as the last one.
  bool joins(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::isolated:
      case SplitBehavior::removed:
        return false;
      case SplitBehavior::merged_with_previous:
        return is_match && !last_is_match_;
      case SplitBehavior::merged_with_next:
        return !is_match && last_is_match_;
      case SplitBehavior::contiguous:
        return is_match == last_is_match_;
    }
    return false;
  }

  SplitBehavior behavior_;
  Emit emit_;
  size_t begin_ = 0, end_ = 0;
  bool has_word_ = false, last_is_match_ = false;
};

/// Calls `emit(begin, end)` for every word of `text` until it returns false, and returns what it returned last.
template <typename Emit>
bool cut_once(const PreTokenizer::Split& split, std::string_view text, Regex::Scratch& scratch, Emit emit) {
  Joiner<Emit> joiner(split.behavior, emit);
  size_t done = 0, from = 0;
  bool after_match = false;
  while (from <= text.size()) {
    const auto match = split.pattern.find(text, from, scratch);
    if (!match) break;
    // An empty match does not count directly after another match.
    const bool empty = match->begin == match->end;
    if (!(empty && after_match && match->begin == done)) {
      if (match->begin > done && !joiner.add(done, match->begin, split.invert)) return false;
      if (!joiner.add(match->begin, match->end, !split.invert)) return false;
      done = match->end;
      after_match = true;
    }
    from = match->end;
    if (empty) from += from < text.size() ? character_at(text, from).bytes : 1;
  }
  if (done < text.size() && !joiner.add(done, text.size(), split.invert)) return false;
  return joiner.flush();
}

}  // namespace

bool PreTokenizer::drops_text() const {
  for (const Split& split : splits_) {
    if (split.behavior == SplitBehavior::removed) return true;
  }
  return false;
}

void PreTokenizer::cut(std::string_view text, Regex::Scratch& scratch, const Sink& word) const {
  std::string replaced;
  const bool is_new = replace_newer_characters(text, replaced);
  cut_from(0, {text, is_new ? replaced : text}, scratch, word);
}

bool PreTokenizer::cut_from(size_t stage, Piece piece, Regex::Scratch& scratch, const Sink& word) const {
  if (stage == splits_.size()) return finish(piece, scratch, word);
  return cut_once(splits_[stage], piece.look, scratch,
                  [&](size_t begin, size_t end) { return cut_from(stage + 1, piece.part(begin, end), scratch, word); });
}

bool PreTokenizer::finish(Piece piece, Regex::Scratch& scratch, const Sink& word) const {
  if (piece.text.empty()) return true;
  std::string text, look;
  if (prefix_space_ && piece.text[0] != ' ') {
    text.append(" ").append(piece.text);
    look.append(" ").append(piece.look);
    piece = {text, look};
  }
  if (!after_prefix_) return word(piece.text);
  return cut_once(*after_prefix_, piece.look, scratch,
                  [&](size_t begin, size_t end) { return word(piece.part(begin, end).text); });
}

}  // namespace weft
