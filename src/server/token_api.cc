#include "server/token_api.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

using ordered_json = nlohmann::ordered_json;

constexpr size_t kMaxModelBytes = 512;

std::string dump(const ordered_json& value) { return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

}  // namespace

TokenizeRequest parse_tokenize(std::string_view body, const ApiLimits& limits) {
  ParsedBody parsed = read_body(body, limits);
  BodyFields fields(std::move(parsed.fields));
  TokenizeRequest out;
  out.model = fields.text("model", kMaxModelBytes);
  if (const auto messages = fields.take("messages")) {
    if (!parsed.prompts.empty()) throw ApiError(400, "prompt and messages exclude each other", "messages");
    out.chat = parse_chat_messages(body, limits);
  } else if (parsed.prompts.size() == 1 && parsed.prompts.front().is_text) {
    out.prompt = std::move(parsed.prompts.front().text);
  } else {
    throw ApiError(400, "prompt must be a string, or messages a list", "prompt");
  }
  if (const auto add = fields.take("add_special_tokens")) {
    if (!add->is_boolean()) refuse_field("add_special_tokens", "true or false", shown_value(*add));
    out.add_special_tokens = add->get<bool>();
  }
  out.return_token_strs = fields.flag("return_token_strs", false);
  return out;
}

std::string tokenize_json(const std::vector<int32_t>& ids, const std::vector<std::string>* texts, int64_t max_model_len) {
  // There may be millions of them: as JSON values they would take some 40 bytes each.
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", ids.size(), max_model_len);
  for (size_t i = 0; i < ids.size(); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", ids[i]);
  out += "],\"token_strs\":";
  out += texts == nullptr ? "null" : dump(ordered_json(*texts));
  out += '}';
  return out;
}

DetokenizeRequest parse_detokenize(std::string_view body, const ApiLimits& limits) {
  ParsedBody parsed = read_body(body, limits, "tokens");
  BodyFields fields(std::move(parsed.fields));
  DetokenizeRequest out;
  out.model = fields.text("model", kMaxModelBytes);
  if (parsed.prompts.size() > 1 || (parsed.prompts.size() == 1 && parsed.prompts.front().is_text))
    throw ApiError(400, "tokens must be a list of token ids", "tokens");
  if (parsed.prompts.empty()) {
    const bool is_there = nlohmann::json::parse(body).contains("tokens");
    if (!is_there) throw ApiError(400, "tokens is missing: a list of token ids", "tokens");
  } else {
    out.tokens = std::move(parsed.prompts.front().ids);
  }
  return out;
}

std::string prompt_json(std::string_view text) { return dump({{"prompt", text}}); }

}  // namespace weft
