#pragma once

#include <cstdint>

namespace weft {

/// Entries [begin, begin + count) of one of the lists that go with some sampling rows.
struct PlanSlice {
  int32_t begin = 0, count = 0;
};

/// A token that penalties apply to: how often it was generated, and whether the prompt has it.
struct PenaltyToken {
  int32_t token = 0;
  int32_t generated = 0;  ///< times
  int32_t in_prompt = 0;  ///< 0 or 1
};

/// Added to one logit: logit_bias, or -infinity for a token that may not come yet (min_tokens).
struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

/// What is wanted of one logit row. Several may name the same row of the step (choices of one prompt).
///
/// The next token's logits pass, in this order: allowed tokens (all others -infinity), bias, repetition penalty (of tokens in
/// the prompt or generated: positive logits are divided by it, others multiplied), frequency and presence penalty (of
/// generated tokens: minus frequency * times, minus presence), all in float32; then temperature, min_p, top_k and top_p. Each
/// of the last three keeps a beginning of the tokens in the order of preference: the larger logit first, the lower id on a tie.
///
///   min_p   tokens with at least min_p times the probability of the first
///   top_k   the first top_k
///   top_p   the fewest whose probabilities, out of what min_p and top_k left, add up to top_p; at least one
///
/// One of what is left is drawn with its probability. Temperature 0: the first in the order of preference. The random number
/// is a function of (seed, choice, position) alone. Log probabilities are those of the raw logits.
///
/// A NaN counts as -infinity, and tokens at -infinity are never drawn. Where nothing else is left, the token is the lowest
/// allowed id, of those whose raw logit is a number if there are any, and 0 if none is allowed.
struct SamplingRow {
  int32_t row = 0;       ///< row of the step
  int32_t target = -1;   ///< a token whose log probability is wanted (prompt log probabilities), or -1
  uint64_t seed = 0;     ///< with `choice` and `position`, the key of the counter-based generator
  int32_t choice = 0;    ///< number of the choice among the n of its request
  int32_t position = 0;  ///< of the token that is sampled
  float temperature = 0;
  int32_t top_k = 0;  ///< 0: off
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  PlanSlice penalty_tokens = {};  ///< in the list of penalty tokens, ascending by token
  PlanSlice biases = {};          ///< in the list of biases, ascending by token
  int32_t allowed_mask = -1;      ///< number of the mask among the token masks, or -1: all tokens are allowed
  int32_t top_log_probs = 0;      ///< so many of the most probable tokens are wanted
  int32_t unused = 0;             ///< fills up a whole word of 8 bytes

  /// Whether the logits are changed before the temperature.
  constexpr bool changes_logits() const {
    return biases.count != 0 || allowed_mask >= 0 ||
           (penalty_tokens.count != 0 && (repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0));
  }
  constexpr bool is_plain_greedy() const { return temperature == 0 && !changes_logits(); }
};

}  // namespace weft
