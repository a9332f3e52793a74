#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "server/api_fields.h"

namespace weft {

/// POST /v1/completions as far as it can be understood without a model.
struct CompletionRequest {
  std::string model;  ///< "": not said
  std::vector<PromptInput> prompts;
  Request base;                    ///< everything for the engine but the prompt
  bool max_tokens_given = false;   ///< else the default of 16, which may be cut to what fits
  std::vector<std::string> stops;  ///< texts that end an answer
  bool echo = false, stream = false;
  bool include_usage = false;     ///< a last chunk with the usage
  bool continuous_usage = false;  ///< usage in every chunk
  bool return_token_ids = false;
  bool tokens_as_ids = false;        ///< in logprobs, tokens are spelled token_id:N
  bool skip_special_tokens = true;   ///< in the text of answers
  bool add_special_tokens = true;    ///< when a text prompt is tokenised
  bool include_stop = false;         ///< the stop string is part of the answer
  int64_t truncate_prompt = 0;       ///< keep so many of the last prompt tokens; 0: all; -1: as many as the model takes
  bool chat = false;                 ///< spelled as a chat completion
  bool timings = false;              ///< the answer ends with where its time went
  bool reasoning = false;            ///< thoughts are taken out of the text
  bool reasoning_open = false;       ///< the prompt ends within them
  std::vector<std::string> ignored;  ///< fields that this server does not know
};

/// What a chat template makes a prompt of. Objects keep the order of their keys.
struct ChatMessages {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();  ///< more variables of the template
  bool add_generation_prompt = true;                                 ///< the prompt ends where the assistant begins
  bool continue_final_message = false;                               ///< or within the last message
};

/// POST /v1/chat/completions as far as it can be understood without a model. `answer` has no prompt yet.
struct ChatRequest {
  ChatMessages chat;
  CompletionRequest answer;
};

/// Reads the body of POST /v1/completions. Throws ApiError with status 400 that names the field, its value and what would be
/// accepted. null means the default everywhere; of a field that comes twice, the last counts.
CompletionRequest parse_completion(std::string_view body, const ApiLimits& limits);
/// The same of POST /v1/chat/completions.
ChatRequest parse_chat(std::string_view body, const ApiLimits& limits);
/// Only the messages of such a body, and what belongs to them: for /tokenize and /apply-template.
ChatMessages parse_chat_messages(std::string_view body, const ApiLimits& limits);

/// The log probabilities of one token as OpenAI's completions spell them.
struct TokenEntry {
  struct Top {
    std::string token, bytes;
    float log_prob = 0;
  };
  std::string token;
  std::string bytes = {};         ///< of a chat: those of the token itself, which may be a part of a character
  std::optional<float> log_prob;  ///< none: the first token of a prompt has no context
  std::vector<Top> top;           ///< the most probable ones, and of completions the token itself
  int64_t offset = 0;             ///< characters of the text before it
};

/// The log probabilities of a prompt token by id, as vLLM's prompt_logprobs spells them.
struct PromptTokenEntry {
  struct One {
    int32_t id = 0;
    float log_prob = 0;
    int rank = 0;  ///< 1 is the most probable; 0: not known
    std::string text;
  };
  std::vector<One> all;  ///< the token itself first; empty: the first token of the prompt
};

/// A choice, or what a chunk of a stream adds to one.
struct ChoiceOut {
  int index = 0;
  bool begins = false;  ///< the first chunk of a choice of a chat
  std::string text;
  std::optional<std::string> reasoning;  ///< what the model thought before its answer, where that is kept apart
  std::optional<std::vector<TokenEntry>> log_probs;
  std::string finish_reason;                                       ///< "": null
  std::variant<std::monostate, int32_t, std::string> stop_reason;  ///< the token or text that ended it, where one was asked for
  std::optional<std::vector<int32_t>> token_ids, prompt_token_ids;
  std::optional<std::vector<PromptTokenEntry>> prompt_log_probs;
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::vector<int64_t> kv_tokens_per_rank;  ///< of the prompts' KV, how many tokens each rank of a DCP group holds
};

/// Where the time of an answer went, of its slowest prompt.
struct Timings {
  int64_t queue_us = 0, prefill_us = 0, decode_us = 0;
  int64_t exchange_us = 0;  ///< of prefill and decode together: what their steps waited for other ranks
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

struct CompletionHead {
  std::string id, model;
  int64_t created = 0;  ///< seconds since 1970
};

/// A whole answer, or one chunk of a stream: completions spell both alike. `usage` and `timings` may be null.
std::string completion_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                            const Timings* timings = nullptr);
/// The same of a chat: a whole answer, and a chunk.
std::string chat_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                      const Timings* timings = nullptr);
std::string chat_chunk_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                            const Timings* timings = nullptr);

}  // namespace weft
