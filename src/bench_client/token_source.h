#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench_client/dice.h"
#include "bench_client/workload.h"
#include "text/tokenizer.h"

namespace weft::bench {

/// A part of a prompt: token ids, or text that has so many tokens.
struct PromptPart {
  std::vector<int32_t> ids = {};
  std::string text = {};
  int64_t tokens = 0;
};

/// Where the tokens of made-up prompts come from.
class TokenSource {
 public:
  /// Prompts are token ids, from kFirstId to vocab_size - 1. Throws UserError if there are none.
  explicit TokenSource(int32_t vocab_size);
  /// Prompts are text, of words that are one token each where the tokenizer has enough of those.
  explicit TokenSource(const Tokenizer& tokenizer);

  /// Ids below are often those that begin and end texts.
  static constexpr int32_t kFirstId = 3;

  bool makes_text() const { return tokenizer_ != nullptr; }
  /// Random tokens. The same dice give the same beginning, whatever the length.
  PromptPart draw(int64_t tokens, Dice dice) const;
  /// The parts one behind the other. Text is counted as a whole; if that gives another number than asked for, `inexact` counts
  /// it, and the turn has the true number.
  Turn join(const std::vector<PromptPart>& parts, int64_t output_tokens, int64_t& inexact) const;
  /// This very text. Its tokens are counted if there is a tokenizer.
  Turn of_text(std::string text, int64_t output_tokens) const;

 private:
  std::string text_of(std::vector<int32_t> ids, Dice& dice) const;
  int32_t one(Dice& dice) const { return ids_[static_cast<size_t>(dice.in(0, static_cast<int64_t>(ids_.size()) - 1))]; }

  const Tokenizer* tokenizer_ = nullptr;
  std::vector<int32_t> ids_;  ///< to choose from
};

}  // namespace weft::bench
