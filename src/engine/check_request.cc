#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/engine.h"

namespace weft {
namespace {

constexpr int kMaxChoices = 128;
constexpr int kMaxLogProbs = 20;
constexpr size_t kMaxStopTokens = 1024, kMaxBiases = 1024, kMaxSalt = 1024;

/// Refuses in the words of one request: its label goes first, where it has one.
class Check {
 public:
  Check(const Request& request, const ModelConfig& model, const EngineSizes& sizes)
      : request_(request), model_(model), sizes_(sizes) {}

  void run() const {
    prompt();
    lengths();
    choices();
    sampling();
    lists();
    capture();
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}{}{}", request_.label, request_.label.empty() ? "" : ": ",
                    fmt::format(format, std::forward<Args>(args)...));
  }

  void ids(const char* field, const std::vector<int32_t>& tokens) const {
    for (const int32_t token : tokens) id(field, token);
  }
  void id(const char* field, int32_t token) const {
    if (token < 0 || token >= model_.vocab)
      refuse("{} holds token {}: the vocabulary has ids 0 to {}", field, token, model_.vocab - 1);
  }
  void whole(const char* field, int64_t value, int64_t min, int64_t max) const {
    if (value < min || value > max) refuse("{} must be {} to {}: got {}", field, min, max, value);
  }
  /// Written so that a NaN is refused.
  void number(const char* field, double value, double min, double max) const {
    if (!(value >= min && value <= max)) refuse("{} must be {} to {}: got {}", field, min, max, value);
  }
  void above_zero(const char* field, double value, double max) const {
    if (!(value > 0 && value <= max)) refuse("{} must be above 0 and at most {}: got {}", field, max, value);
  }
  void size(const char* field, size_t count, size_t max) const {
    if (count > max) refuse("{} may have {} entries at most: got {}", field, max, count);
  }

  void prompt() const {
    if (request_.prompt.empty()) refuse("the prompt has no tokens: it needs at least one");
    ids("the prompt", request_.prompt);
  }

  void lengths() const {
    const auto prompt = static_cast<int64_t>(request_.prompt.size());
    if (request_.max_tokens < 0) refuse("max_tokens must be 0 or more: got {}", request_.max_tokens);
    if (prompt > sizes_.max_model_len || request_.max_tokens > sizes_.max_model_len - prompt) {
      refuse(
          "the request is too long: {} prompt tokens and max_tokens {}, the limit for both together is {} (--max-model-len), "
          "with KV memory for {} tokens",
          prompt, request_.max_tokens, sizes_.max_model_len, sizes_.capacity.tokens);
    }
    if (request_.min_tokens < 0 || request_.min_tokens > request_.max_tokens)
      refuse("min_tokens must be 0 to max_tokens, which is {}: got {}", request_.max_tokens, request_.min_tokens);
    if (request_.timeout_us < 0) refuse("timeout_us must be 0 (never) or more: got {}", request_.timeout_us);
  }

  void choices() const {
    whole("n", request_.choices, 1, kMaxChoices);
    if (request_.choices > sizes_.max_num_seqs)
      refuse("n must be at most {} (--max-num-seqs): got {}", sizes_.max_num_seqs, request_.choices);
    const int64_t most = std::min<int64_t>(kMaxLogProbs, model_.vocab);
    whole("logprobs", request_.log_probs, -1, most);
    whole("prompt_logprobs", request_.prompt_log_probs, -1, most);
  }

  void sampling() const {
    const SamplingParams& s = request_.sampling;
    number("temperature", s.temperature, 0, 100);
    if (s.top_k < 0) refuse("top_k must be 0 (off) or more: got {}", s.top_k);
    above_zero("top_p", s.top_p, 1);
    number("min_p", s.min_p, 0, 1);
    above_zero("repetition_penalty", s.repetition_penalty, 100);
    number("frequency_penalty", s.frequency_penalty, -2, 2);
    number("presence_penalty", s.presence_penalty, -2, 2);
  }

  void lists() const {
    const SamplingParams& s = request_.sampling;
    size("logit_bias", s.logit_bias.size(), kMaxBiases);
    std::vector<int32_t> biased;
    for (const LogitBias& bias : s.logit_bias) {
      id("logit_bias", bias.token);
      number("logit_bias", bias.bias, -100, 100);
      biased.push_back(bias.token);
    }
    std::sort(biased.begin(), biased.end());
    if (const auto twice = std::adjacent_find(biased.begin(), biased.end()); twice != biased.end())
      refuse("logit_bias names token {} twice", *twice);
    size("allowed_token_ids", s.allowed_tokens.size(), static_cast<size_t>(model_.vocab));
    ids("allowed_token_ids", s.allowed_tokens);
    size("stop_token_ids", request_.stop_tokens.size(), kMaxStopTokens);
    ids("stop_token_ids", request_.stop_tokens);
    if (request_.cache_salt.size() > kMaxSalt)
      refuse("cache_salt may have {} bytes at most: got {}", kMaxSalt, request_.cache_salt.size());
  }

  void capture() const {
    ids("forced_ids", request_.forced_ids);
    if (!request_.forced_ids.empty() && static_cast<int64_t>(request_.forced_ids.size()) != request_.max_tokens)
      refuse("forced_ids must have one id for each of the {} tokens: got {}", request_.max_tokens, request_.forced_ids.size());
    if (request_.choices > 1 && (request_.capture.any() || !request_.forced_ids.empty()))
      refuse("forced_ids and captures are for one choice: n is {}", request_.choices);
  }

  const Request& request_;
  const ModelConfig& model_;
  const EngineSizes& sizes_;
};

}  // namespace

void check_request(const Request& request, const ModelConfig& model, const EngineSizes& sizes) {
  Check(request, model, sizes).run();
}

}  // namespace weft
