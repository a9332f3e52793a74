// Any bytes as the body of a POST: a request that keeps its contract, or an ApiError of status 400 whose JSON is
// valid.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/token_api.h"

namespace {

constexpr int64_t kVocab = 1000;

void require(bool holds) {
  if (!holds) std::abort();
}
void require_id(int32_t id) { require(id >= 0 && id < kVocab); }

void check(const weft::CompletionRequest& request) {
  require(request.chat || !request.prompts.empty());
  for (const weft::PromptInput& prompt : request.prompts)
    for (const int32_t id : prompt.ids) require_id(id);
  const weft::Request& base = request.base;
  require(base.max_tokens >= 0 && base.min_tokens >= 0 && base.min_tokens <= base.max_tokens);
  require(base.choices >= 1 && base.choices <= 128);
  require(base.log_probs >= -1 && base.log_probs <= 20 && base.prompt_log_probs >= -1 && base.prompt_log_probs <= 20);
  for (const int32_t id : base.stop_tokens) require_id(id);
  const weft::SamplingParams& s = base.sampling;
  require(std::isfinite(s.temperature) && s.temperature >= 0);
  require(s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0);
  require(s.repetition_penalty > 0 && std::isfinite(s.frequency_penalty) && std::isfinite(s.presence_penalty));
  for (const weft::LogitBias& bias : s.logit_bias) {
    require_id(bias.token);
    require(std::isfinite(bias.bias));
  }
  for (const int32_t id : s.allowed_tokens) require_id(id);
  for (const std::string& stop : request.stops) require(!stop.empty());
}

/// Runs a reader of bodies, which may refuse them.
template <typename Read>
void attempt(Read read) {
  try {
    read();
  } catch (const weft::ApiError& error) {
    require(error.status == 400);
    require(nlohmann::json::parse(weft::error_json(error)).at("error").at("message").is_string());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const weft::ApiLimits limits{.vocab = kVocab};
  attempt([&] { check(weft::parse_completion(body, limits)); });
  attempt([&] {
    const weft::ChatRequest chat = weft::parse_chat(body, limits);
    require(chat.chat.messages.is_array() && !chat.chat.messages.empty());
    check(chat.answer);
  });
  attempt([&] { weft::parse_tokenize(body, limits); });
  attempt([&] {
    for (const int32_t id : weft::parse_detokenize(body, limits).tokens) require_id(id);
  });
  // An answer of any bytes is JSON.
  weft::ChoiceOut choice;
  choice.text = body.substr(0, 1000);
  choice.log_probs = {{.token = choice.text, .bytes = {}, .log_prob = -1.0f, .top = {{choice.text, "", -1.0f}}, .offset = 0}};
  choice.reasoning = choice.text;
  const weft::CompletionHead head{.id = "i", .model = choice.text, .created = 1};
  require(nlohmann::json::accept(weft::completion_json(head, {&choice, 1}, nullptr)));
  require(nlohmann::json::accept(weft::chat_json(head, {&choice, 1}, nullptr)));
  require(nlohmann::json::accept(weft::chat_chunk_json(head, {&choice, 1}, nullptr)));
  return 0;
}
