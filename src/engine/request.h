#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/step_plan.h"

namespace weft {

/// How the next token is chosen: see SamplingRow for the meaning and the order of the steps.
struct SamplingParams {
  float temperature = 1;  ///< 0: greedy
  int32_t top_k = 0;      ///< 0: off
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<LogitBias> logit_bias;
  std::vector<int32_t> allowed_tokens;  ///< empty: all
  std::optional<uint64_t> seed;         ///< none: one that follows from the engine's seed and the number of the request
};

/// What to keep of a run beside its tokens, for evaluation and comparison with reference data. Allocates in steps.
struct CaptureFlags {
  bool all_logits = false;   ///< logits of every prompt position
  bool want_logits = false;  ///< logits of the last prompt position and of each generated token
  RecordFlags record = {};   ///< of the prompt's rows
  bool any() const { return all_logits || want_logits || record.hidden || record.router; }
};

/// One prompt and what is wanted of it.
struct Request {
  std::string label = {};            ///< for the log; need not be unique
  std::vector<int32_t> prompt = {};  ///< at least one token
  SamplingParams sampling = {};
  /// To generate, per choice. With 0 only the prompt is computed, and a choice ends with one event of token -1 and `length`.
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;                 ///< before an end token may come
  int choices = 1;                        ///< n: answers to the same prompt, which is computed once
  std::vector<int32_t> stop_tokens = {};  ///< end the answer, beside the model's own end tokens
  bool ignore_eos = false;                ///< the model's end tokens do not end it
  int log_probs = -1;                     ///< of generated tokens: so many of the most probable too; -1: none
  int prompt_log_probs = -1;              ///< of prompt tokens, likewise
  std::string cache_salt = {};            ///< prefixes are shared only among requests of one salt
  std::vector<int32_t> forced_ids = {};   ///< step i feeds forced_ids[i] whatever was sampled; empty, or max_tokens many
  CaptureFlags capture = {};
};

enum class FinishReason : uint8_t {
  none,
  stop,    ///< an end token or a stop token came
  length,  ///< max_tokens were generated
  abort,   ///< cancelled
  error,   ///< the engine failed
};

/// One generated token of one choice. Without initialisers, so that a list of them costs nothing until it is written.
struct TokenEvent {
  int32_t choice;
  int32_t token;        ///< with finish == stop: the end token itself, which is not part of the text; -1: no token
  float log_prob;       ///< if wanted
  FinishReason finish;  ///< set on the last event of a choice
};

/// Times of a request in microseconds of the engine's clock; 0 where it has not come so far.
struct RequestTimes {
  int64_t submitted = 0, admitted = 0, first_token = 0, finished = 0;
  /// Not a moment but a while: what the steps that the request was in spent moving data between ranks and waiting for them, on
  /// the first rank. A step's time is that of all its requests, so this is part of how long the request took, not its share of
  /// what the machine did.
  int64_t exchange = 0;
};

/// Logits and records of a captured run. Layout as in the reference data: see docs/eval.md.
struct Captured {
  std::vector<int32_t> argmax_ids;               ///< [max_tokens] what each step sampled, forced or not
  std::vector<float> last_logits;                ///< [V] if want_logits
  std::vector<float> logits;                     ///< [L, V] if all_logits
  std::vector<float> gen_logits;                 ///< [max_tokens, V] if want_logits
  std::vector<std::vector<float>> hidden;        ///< [layers + 1][L, H] if recorded
  std::vector<StepResult::RouterRecord> router;  ///< [L, k] per sparse layer, if recorded
};

/// What comes back of a request: an append-only list of token events, its memory taken when the request is submitted.
///
/// Thread: the engine thread appends, one other thread reads; each sees what the other published. The reader may keep it
/// longer than the engine does.
class RequestStream {
 public:
  RequestStream(uint64_t id, const Request& request);

  uint64_t id() const { return id_; }
  int choices() const { return choices_; }

  // --- reader -----------------------------------------------------------------------------------------------------------
  /// Events from number `from` on.
  std::span<const TokenEvent> events(size_t from = 0) const {
    const size_t size = size_.load(std::memory_order_acquire);
    return from < size ? std::span(events_.get() + from, size - from) : std::span<const TokenEvent>();
  }
  /// The most probable tokens beside event number `event`: ids and log probabilities, as many as the request wants.
  std::span<const int32_t> top_ids(size_t event) const { return {top_ids_.get() + event * top_, top_}; }
  std::span<const float> top_log_probs(size_t event) const { return {top_log_probs_.get() + event * top_, top_}; }
  /// All choices have ended. What follows is fixed from then on.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Of prompt token i + 1 given those before it; [prompt - 1], complete once the first event is there.
  std::span<const float> prompt_log_probs() const { return {prompt_log_probs_.get(), prompt_log_prob_rows_}; }
  std::span<const int32_t> prompt_top_ids(size_t row) const { return {prompt_top_ids_.get() + row * prompt_top_, prompt_top_}; }
  std::span<const float> prompt_top_log_probs(size_t row) const {
    return {prompt_top_log_probs_.get() + row * prompt_top_, prompt_top_};
  }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  /// Prompt tokens that were not computed because their KV was cached; valid once the first event is there.
  int64_t cached_tokens() const { return cached_tokens_; }
  const RequestTimes& times() const { return times_; }    ///< valid once done
  const std::string& error() const { return error_; }     ///< valid once done: why, if a choice ended with error
  const Captured& captured() const { return captured_; }  ///< valid once done

  // --- engine thread ----------------------------------------------------------------------------------------------------
  void append(const TokenEvent& event, std::span<const int32_t> top_ids, std::span<const float> top_log_probs);
  void set_prompt_log_prob(int64_t row, float log_prob, std::span<const int32_t> top_ids, std::span<const float> top_log_probs);
  void set_cached_tokens(int64_t tokens) { cached_tokens_ = tokens; }
  RequestTimes& edit_times() { return times_; }
  Captured& edit_captured() { return captured_; }
  void finish(std::string error = {});

 private:
  const uint64_t id_;
  const int choices_;
  const int64_t prompt_tokens_;
  size_t capacity_ = 0, top_ = 0, prompt_top_ = 0, prompt_log_prob_rows_ = 0;
  // Not value-initialised: memory that is never written costs nothing.
  std::unique_ptr<TokenEvent[]> events_;
  std::unique_ptr<int32_t[]> top_ids_, prompt_top_ids_;
  std::unique_ptr<float[]> top_log_probs_, prompt_log_probs_, prompt_top_log_probs_;
  std::atomic<size_t> size_{0};
  std::atomic<bool> done_{false};
  int64_t cached_tokens_ = 0;
  RequestTimes times_;
  std::string error_;
  Captured captured_;
};

}  // namespace weft
