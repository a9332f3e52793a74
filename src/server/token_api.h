#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai_api.h"

namespace weft {

/// POST /tokenize: one text, or the messages of a chat.
struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<ChatMessages> chat;
  std::optional<bool> add_special_tokens;  ///< if not said: of a text yes, of a chat no, since its template writes them
  bool return_token_strs = false;
};
/// Throws ApiError with status 400, as parse_completion().
TokenizeRequest parse_tokenize(std::string_view body, const ApiLimits& limits);
std::string tokenize_json(const std::vector<int32_t>& ids, const std::vector<std::string>* texts, int64_t max_model_len);

/// POST /detokenize.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
DetokenizeRequest parse_detokenize(std::string_view body, const ApiLimits& limits);

/// {"prompt": text}: what /detokenize and /apply-template answer.
std::string prompt_json(std::string_view text);

}  // namespace weft
