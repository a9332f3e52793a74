#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "engine/request.h"

namespace weft {

/// A request that is answered with an HTTP error in OpenAI's shape.
class ApiError : public UserError {
 public:
  /// `param` is the field that is wrong, `code` a word for programs; both may be empty.
  ApiError(int status_in, const std::string& message, std::string param_in = {}, std::string code_in = {})
      : UserError(message), status(status_in), param(std::move(param_in)), code(std::move(code_in)) {}

  int status;
  std::string param, code;
  int retry_after_s = 0;  ///< 0: nothing is said about that
};

/// {"error": {"message", "type", "param", "code"}}.
std::string error_json(int status, std::string_view message, std::string_view param = {}, std::string_view code = {});
std::string error_json(const ApiError& error);

/// What a request is checked against while it is read.
struct ApiLimits {
  int64_t vocab = 0;            ///< token ids are 0 to vocab - 1
  int max_prompts = 1024;       ///< in one request
  int max_choices = 128;        ///< n
  int max_stops = 64;           ///< stop strings
  size_t max_values = 1 << 17;  ///< JSON values outside the prompt
};

/// A prompt as it came: text, or token ids.
struct PromptInput {
  bool is_text = false;
  std::string text;
  std::vector<int32_t> ids;
};

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
  std::vector<std::string> ignored;  ///< fields that this server does not know
};

/// Reads the body of POST /v1/completions. Throws ApiError with status 400 that names the field, its value and what would be
/// accepted. null means the default everywhere; of a field that comes twice, the last counts.
CompletionRequest parse_completion(std::string_view body, const ApiLimits& limits);

/// The log probabilities of one token as OpenAI's completions spell them.
struct TokenEntry {
  std::string token;
  std::optional<float> log_prob;                   ///< none: the first token of a prompt has no context
  std::vector<std::pair<std::string, float>> top;  ///< the most probable ones, and the token itself
  int64_t offset = 0;                              ///< characters of the text before it
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
  std::string text;
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

struct CompletionHead {
  std::string id, model;
  int64_t created = 0;  ///< seconds since 1970
};

/// A whole answer, or one chunk of a stream: completions spell both alike. `usage` may be null.
std::string completion_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage);

/// Untrusted text for a message or the log: in quotes, on one line, shortened.
std::string as_quoted(std::string_view text);

}  // namespace weft
