#include "server/openai_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

using json = nlohmann::json;
using ordered_json = nlohmann::ordered_json;

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int64_t kDefaultTokens = 16;           // of completions; an answer in a chat may take all that fits
constexpr size_t kMaxListed = 1024;              // stop tokens, biases
constexpr size_t kMaxSequences = 16384;          // prompts times answers
constexpr size_t kMaxAllowed = size_t{1} << 22;  // allowed tokens of all prompts together
constexpr int kMaxLogProbs = 20;
constexpr size_t kMaxStopBytes = 1024, kMaxSaltBytes = 256, kMaxModelBytes = 512;
constexpr size_t kMaxChatKeys = 1024;   // of an object in messages and tools
constexpr float kLeastLogProb = -9999;  // JSON has no infinity, and clients add these up

std::string dump(const ordered_json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

void read_sampling(BodyFields& fields, const ApiLimits& limits, SamplingParams& out) {
  constexpr double kMaxTemperature = 100, kMaxPenalty = 2;
  out.temperature = fields.number("temperature", 0, kMaxTemperature, 1);
  const int64_t top_k = fields.integer("top_k", -1, std::numeric_limits<int64_t>::max()).value_or(0);
  out.top_k = top_k < 1 || top_k >= limits.vocab ? 0 : static_cast<int32_t>(top_k);
  out.top_p = fields.number("top_p", 0, 1, 1);
  if (out.top_p == 0) {  // The smallest nucleus there is.
    out.top_p = 1;
    out.top_k = 1;
  }
  out.min_p = fields.number("min_p", 0, 1, 0);
  out.presence_penalty = fields.number("presence_penalty", -kMaxPenalty, kMaxPenalty, 0);
  out.frequency_penalty = fields.number("frequency_penalty", -kMaxPenalty, kMaxPenalty, 0);
  out.repetition_penalty = fields.number("repetition_penalty", 0.01, 100, 1);
  if (const auto allowed = fields.ids("allowed_token_ids", limits.vocab)) {
    if (allowed->empty()) refuse_field("allowed_token_ids", "a list of at least one token id, or null", "[]");
    out.allowed_tokens = *allowed;
  }
  if (const auto seed = fields.take("seed")) {
    if (!seed->is_number_integer()) refuse_field("seed", "a whole number of 64 bits", shown_value(*seed));
    out.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  if (const auto bias = fields.take("logit_bias")) {
    if (!bias->is_object()) refuse_field("logit_bias", "an object of token ids and numbers", shown_value(*bias));
    if (bias->size() > kMaxListed)
      refuse_field("logit_bias", fmt::format("at most {} tokens", kMaxListed), std::to_string(bias->size()));
    for (const auto& [key, value] : bias->items()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab)
        refuse_field("logit_bias", fmt::format("an object whose keys are token ids, 0 to {}", limits.vocab - 1),
                     as_quoted(key));
      const double number = BodyFields::as_number(fmt::format("logit_bias[{}]", id), value, -100, 100);
      out.logit_bias.push_back({.token = static_cast<int32_t>(id), .bias = static_cast<float>(number)});
    }
  }
}

void read_stops(BodyFields& fields, const ApiLimits& limits, CompletionRequest& out) {
  if (auto stop = fields.take("stop")) {
    if (stop->is_string()) *stop = json::array({*stop});
    if (!stop->is_array()) refuse_field("stop", "a string or a list of strings", shown_value(*stop));
    if (stop->size() > static_cast<size_t>(limits.max_stops))
      refuse_field("stop", fmt::format("at most {} strings", limits.max_stops), fmt::format("{}", stop->size()));
    for (size_t i = 0; i < stop->size(); ++i) {
      const std::string name = fmt::format("stop[{}]", i);
      out.stops.push_back(BodyFields::as_text(name, (*stop)[i], kMaxStopBytes));
      if (out.stops.back().empty()) refuse_field(name, "a string that is not empty", "\"\"");
    }
  }
  out.base.stop_tokens = fields.ids("stop_token_ids", limits.vocab).value_or(std::vector<int32_t>());
  if (out.base.stop_tokens.size() > kMaxListed)
    refuse_field("stop_token_ids", fmt::format("at most {} token ids", kMaxListed),
                 std::to_string(out.base.stop_tokens.size()));
  out.include_stop = fields.flag("include_stop_str_in_output", false);
}

/// Without max_tokens an answer may have `fallback` tokens, or what fits.
void read_lengths(BodyFields& fields, int64_t fallback, CompletionRequest& out) {
  auto max_tokens = fields.integer("max_tokens", 0, kMaxTokens);
  const char* name = "max_tokens";
  if (const auto newer = fields.integer("max_completion_tokens", 0, kMaxTokens)) {
    max_tokens = newer;
    name = "max_completion_tokens";
  }
  out.max_tokens_given = max_tokens.has_value();
  out.base.max_tokens = max_tokens.value_or(fallback);
  if (out.base.max_tokens == 0 && !out.echo) refuse_field(name, "at least 1, or 0 with echo", "0");
  out.base.min_tokens = fields.integer("min_tokens", 0, kMaxTokens).value_or(0);
  if (out.base.min_tokens > out.base.max_tokens)
    refuse_field("min_tokens", fmt::format("at most {}, which is {}", name, out.base.max_tokens),
                 std::to_string(out.base.min_tokens));
  out.truncate_prompt = fields.integer("truncate_prompt_tokens", -1, kMaxTokens).value_or(0);
}

void read_choices(BodyFields& fields, const ApiLimits& limits, CompletionRequest& out) {
  out.base.choices = static_cast<int>(fields.integer("n", 1, limits.max_choices).value_or(1));
  const int64_t best_of = fields.integer("best_of", 1, limits.max_choices).value_or(out.base.choices);
  if (best_of != out.base.choices)
    throw ApiError(400,
                   fmt::format("best_of is not supported by this version: use n with logprobs and choose among the answers "
                               "yourself; got best_of {} with n {}",
                               best_of, out.base.choices),
                   "best_of", "unsupported_parameter");
}

void read_stream(BodyFields& fields, CompletionRequest& out) {
  out.stream = fields.flag("stream", false);
  const auto options = fields.take("stream_options");
  if (!options) return;
  if (!options->is_object()) refuse_field("stream_options", "an object", shown_value(*options));
  if (!out.stream) throw ApiError(400, "stream_options needs stream: true", "stream_options");
  BodyFields inner(*options);
  const auto inner_flag = [&](const char* name) {
    const auto value = inner.take(name);
    if (value && !value->is_boolean())
      refuse_field(fmt::format("stream_options.{}", name), "true or false", shown_value(*value));
    return value && value->get<bool>();
  };
  out.include_usage = inner_flag("include_usage");
  out.continuous_usage = inner_flag("continuous_usage_stats");
}

/// Templates write roles as they are, so nothing else may be in them.
bool is_role(const json& role) {
  if (!role.is_string()) return false;
  const auto& word = role.get_ref<const std::string&>();
  return !word.empty() && word.size() <= 64 && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

/// A message's content: text, parts of text, or nothing.
void check_content(const std::string& name, const json& content) {
  if (content.is_null() || content.is_string()) return;
  if (!content.is_array()) refuse_field(name, "a string, a list of text parts, or null", shown_value(content));
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", name, i);
    const json type = content[i].is_object() ? content[i].value("type", json()) : json();
    if (type != json("text"))
      refuse_field(part, "{\"type\": \"text\", \"text\": ...}: this server takes text only",
                   type.is_null() ? shown_value(content[i]) : shown_value(type));
    if (!content[i].value("text", json()).is_string())
      refuse_field(part + ".text", "a string", shown_value(content[i].value("text", json())));
  }
}

/// Tools are shown to the model, but what it makes of them stays text.
void read_tool_choice(BodyFields& fields, const ChatMessages& chat) {
  const auto choice = fields.take("tool_choice");
  if (choice && *choice == json("none")) return;
  if (chat.tools.empty() && (!choice || *choice == json("auto"))) return;
  throw ApiError(400,
                 "tool calls are not parsed by this version: send tool_choice \"none\" to have the tools in the prompt and the "
                 "call in the text of the answer",
                 "tool_choice", "unsupported_parameter");
}

void refuse_unsupported(BodyFields& fields) {
  fields.unsupported("use_beam_search", "use sampling with n, or temperature 0");
  fields.unsupported("suffix", "put the text before and after the gap into the prompt as the model was trained to see it");
  fields.unsupported("lora_request", "merge the adapter into the checkpoint");
  fields.unsupported("prompt_embeds", "send text or token ids");
  fields.unsupported("multi_modal_data", "send text or token ids");
  fields.unsupported("bad_words", "use logit_bias of -100 on the tokens");
  fields.unsupported("logits_processors", "use logit_bias, allowed_token_ids or the penalties");
  fields.unsupported("priority", "requests run in the order in which they come; leave it out or 0");
  fields.unsupported("kv_transfer_params", "prefill and decode run in one process");
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"})
    fields.unsupported(name, "use allowed_token_ids, or check the answer and ask again");
  if (const auto format = fields.take("response_format")) {
    if (!format->is_object()) refuse_field("response_format", "an object", shown_value(*format));
    if (format->value("type", json()) != json("text"))
      throw ApiError(
          400,
          "response_format is not supported by this version other than {\"type\": \"text\"}: check the answer and ask again",
          "response_format", "unsupported_parameter");
  }
  fields.ignore({"user", "metadata", "store", "length_penalty", "early_stopping", "spaces_between_special_tokens",
                 "safety_identifier", "prompt_cache_key", "service_tier"});
}

}  // namespace

namespace {

/// Microseconds until the answer is given up, 0: never.
int64_t read_timeout(BodyFields& fields) {
  constexpr double kLeast = 0.001, kMost = 86400;
  int64_t out = 0;
  for (const char* name : {"timeout", "request_timeout"})  // As other servers and clients call it.
    if (const auto seconds = fields.take(name)) out = std::llround(BodyFields::as_number(name, *seconds, kLeast, kMost) * 1e6);
  return out;
}

/// What completions and chats have in common, but for the prompt and the log probabilities.
void read_answer(BodyFields& fields, const ApiLimits& limits, int64_t default_tokens, CompletionRequest& out) {
  out.model = fields.text("model", kMaxModelBytes);
  read_stream(fields, out);
  read_lengths(fields, default_tokens, out);
  read_choices(fields, limits, out);
  read_sampling(fields, limits, out.base.sampling);
  read_stops(fields, limits, out);
  out.base.ignore_eos = fields.flag("ignore_eos", false);
  out.base.prompt_log_probs = static_cast<int>(fields.integer("prompt_logprobs", 0, kMaxLogProbs).value_or(-1));
  out.base.cache_salt = fields.text("cache_salt", kMaxSaltBytes);
  out.return_token_ids = fields.flag("return_token_ids", false);
  out.tokens_as_ids = fields.flag("return_tokens_as_token_ids", false);
  out.skip_special_tokens = fields.flag("skip_special_tokens", true);
  out.timings = fields.flag("timings", false);
  out.base.timeout_us = read_timeout(fields);
  for (const char* name : {"rid", "request_id"})
    if (std::string id = fields.text(name, kMaxModelBytes); !id.empty()) out.client_id = std::move(id);
  refuse_unsupported(fields);
}

/// Which messages a chat is made of, as the model's template gets them.
ChatMessages read_messages(BodyFields& fields, std::string_view body) {
  const auto messages = fields.take("messages");
  if (!messages) throw ApiError(400, "messages is missing: a list of objects with role and content", "messages");
  if (!messages->is_array() || messages->empty())
    refuse_field("messages", "a list of at least one message", shown_value(*messages));
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    const json& message = (*messages)[i];
    if (!message.is_object()) refuse_field(name, "an object with role and content", shown_value(message));
    const json role = message.value("role", json());
    if (!is_role(role)) refuse_field(name + ".role", "a word of at most 64 letters, digits, - and _", shown_value(role));
    check_content(name + ".content", message.value("content", json()));
  }
  const auto tools = fields.take("tools");
  if (tools && !tools->is_array()) refuse_field("tools", "a list", shown_value(*tools));
  const auto kwargs = fields.take("chat_template_kwargs");
  if (kwargs && !kwargs->is_object()) refuse_field("chat_template_kwargs", "an object", shown_value(*kwargs));

  // Once more, now with the keys in the order of the request: templates write schemas as they came.
  const ordered_json in_order = ordered_json::parse(body.begin(), body.end());
  ChatMessages out;
  out.messages = in_order.at("messages");
  if (tools) out.tools = in_order.at("tools");
  if (kwargs) out.kwargs = in_order.at("chat_template_kwargs");
  out.add_generation_prompt = fields.flag("add_generation_prompt", true);
  out.continue_final_message = fields.flag("continue_final_message", false);
  if (out.continue_final_message && out.add_generation_prompt && in_order.contains("add_generation_prompt"))
    throw ApiError(400, "continue_final_message and add_generation_prompt exclude each other", "continue_final_message");
  if (out.continue_final_message) out.add_generation_prompt = false;
  return out;
}

}  // namespace

CompletionRequest parse_completion(std::string_view body, const ApiLimits& limits) {
  ParsedBody parsed = read_body(body, limits);
  BodyFields fields(std::move(parsed.fields));
  CompletionRequest out;
  out.prompts = std::move(parsed.prompts);
  if (out.prompts.empty()) throw ApiError(400, "prompt is missing: a string, token ids, or a list of those", "prompt");
  out.echo = fields.flag("echo", false);
  read_answer(fields, limits, kDefaultTokens, out);
  out.base.log_probs = static_cast<int>(fields.integer("logprobs", 0, kMaxLogProbs).value_or(-1));
  out.add_special_tokens = fields.flag("add_special_tokens", true);
  const size_t prompts = out.prompts.size(), sequences = prompts * static_cast<size_t>(out.base.choices);
  if (sequences > kMaxSequences)
    refuse_field("n", fmt::format("so that there are at most {} answers in all", kMaxSequences),
                 fmt::format("{} for each of {} prompts", out.base.choices, prompts));
  if (const size_t allowed = out.base.sampling.allowed_tokens.size(); allowed * prompts > kMaxAllowed)
    refuse_field("allowed_token_ids", fmt::format("at most {} for {} prompts", kMaxAllowed / prompts, prompts),
                 std::to_string(allowed));
  out.ignored = fields.left();
  return out;
}

ChatRequest parse_chat(std::string_view body, const ApiLimits& limits) {
  ApiLimits chat_limits = limits;
  chat_limits.max_keys = kMaxChatKeys;
  BodyFields fields(read_body(body, chat_limits, "").fields);
  ChatRequest out;
  CompletionRequest& answer = out.answer;
  answer.chat = true;
  answer.add_special_tokens = false;  // The template writes them.
  out.chat = read_messages(fields, body);
  read_answer(fields, limits, kMaxTokens, answer);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogProbs);
  const bool log_probs = fields.flag("logprobs", false);
  if (top.value_or(0) > 0 && !log_probs) throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  if (log_probs) answer.base.log_probs = static_cast<int>(top.value_or(0));
  read_tool_choice(fields, out.chat);
  fields.ignore({"parallel_tool_calls", "functions_call", "modalities", "verbosity"});
  for (const char* name : {"functions", "function_call"}) fields.unsupported(name, "tool calls are not parsed");
  fields.unsupported("audio", "send text");
  fields.unsupported("web_search_options", "leave it out");
  if (const auto effort = fields.take("reasoning_effort")) out.chat.kwargs["reasoning_effort"] = *effort;
  answer.ignored = fields.left();
  return out;
}

ChatMessages parse_chat_messages(std::string_view body, const ApiLimits& limits) {
  ApiLimits chat_limits = limits;
  chat_limits.max_keys = kMaxChatKeys;
  BodyFields fields(read_body(body, chat_limits, "").fields);
  return read_messages(fields, body);
}

namespace {

// Clients compare these numbers with !=, so the same float must always give the same text: all go this way.
ordered_json log_prob_json(float value) {
  return std::isfinite(value) ? static_cast<double>(std::max(value, kLeastLogProb)) : static_cast<double>(kLeastLogProb);
}

ordered_json log_probs_json(const std::vector<TokenEntry>& entries) {
  ordered_json tokens = ordered_json::array(), values = ordered_json::array(), tops = ordered_json::array(),
               offsets = ordered_json::array();
  for (const TokenEntry& entry : entries) {
    tokens.push_back(entry.token);
    offsets.push_back(entry.offset);
    values.push_back(entry.log_prob ? log_prob_json(*entry.log_prob) : ordered_json());
    if (!entry.log_prob) {
      tops.push_back(nullptr);
      continue;
    }
    // Several ids may have one spelling; the most probable stands for them.
    ordered_json top = ordered_json::object();
    for (const auto& [token, bytes, value] : entry.top) {
      const ordered_json number = log_prob_json(value);
      const auto it = top.find(token);
      if (it == top.end()) {
        top[token] = number;
      } else if (number > *it) {
        *it = number;
      }
    }
    tops.push_back(std::move(top));
  }
  ordered_json out;
  out["tokens"] = std::move(tokens);
  out["token_logprobs"] = std::move(values);
  out["top_logprobs"] = std::move(tops);
  out["text_offset"] = std::move(offsets);
  return out;
}

ordered_json prompt_log_probs_json(const std::vector<PromptTokenEntry>& entries) {
  ordered_json out = ordered_json::array();
  for (const PromptTokenEntry& entry : entries) {
    if (entry.all.empty()) {
      out.push_back(nullptr);
      continue;
    }
    ordered_json map = ordered_json::object();
    for (const PromptTokenEntry::One& one : entry.all) {
      ordered_json& value = map[std::to_string(one.id)];
      value["logprob"] = log_prob_json(one.log_prob);
      value["rank"] = one.rank > 0 ? ordered_json(one.rank) : ordered_json();
      value["decoded_token"] = one.text;
    }
    out.push_back(std::move(map));
  }
  return out;
}

ordered_json usage_json(const Usage& usage) {
  ordered_json out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  if (!usage.kv_tokens_per_rank.empty()) out["kv_tokens_per_rank"] = usage.kv_tokens_per_rank;
  return out;
}

ordered_json choice_json(const ChoiceOut& choice) {
  ordered_json out;
  out["index"] = choice.index;
  out["text"] = choice.text;
  out["logprobs"] = choice.log_probs ? log_probs_json(*choice.log_probs) : ordered_json();
  out["finish_reason"] = choice.finish_reason.empty() ? ordered_json() : ordered_json(choice.finish_reason);
  ordered_json& reason = out["stop_reason"];
  if (const auto* token = std::get_if<int32_t>(&choice.stop_reason)) reason = *token;
  if (const auto* text = std::get_if<std::string>(&choice.stop_reason)) reason = *text;
  if (choice.token_ids) out["token_ids"] = *choice.token_ids;
  if (choice.prompt_token_ids) out["prompt_token_ids"] = *choice.prompt_token_ids;
  if (choice.prompt_log_probs) out["prompt_logprobs"] = prompt_log_probs_json(*choice.prompt_log_probs);
  return out;
}

ordered_json timings_json(const Timings& timings) {
  const auto milliseconds = [](int64_t us) { return static_cast<double>(us) / 1000; };
  ordered_json out;
  out["queue_ms"] = milliseconds(timings.queue_us);
  out["prefill_ms"] = milliseconds(timings.prefill_us);
  out["decode_ms"] = milliseconds(timings.decode_us);
  out["exchange_ms"] = milliseconds(timings.exchange_us);
  out["prompt_tokens"] = timings.prompt_tokens;
  out["cached_tokens"] = timings.cached_tokens;
  out["completion_tokens"] = timings.completion_tokens;
  return out;
}

/// What follows the choices.
void add_end(ordered_json& out, const Usage* usage, const Timings* timings) {
  if (usage != nullptr) out["usage"] = usage_json(*usage);
  if (timings != nullptr) out["timings"] = timings_json(*timings);
}

ordered_json chat_token_json(const std::string& token, const std::string& raw, float log_prob) {
  ordered_json out;
  out["token"] = token;
  out["logprob"] = log_prob_json(log_prob);
  ordered_json& bytes = out["bytes"] = ordered_json::array();
  for (const char c : raw) bytes.push_back(static_cast<unsigned char>(c));
  return out;
}

ordered_json chat_log_probs_json(const std::vector<TokenEntry>& entries) {
  ordered_json list = ordered_json::array();
  for (const TokenEntry& entry : entries) {
    ordered_json one = chat_token_json(entry.token, entry.bytes, entry.log_prob.value_or(0));
    ordered_json& top = one["top_logprobs"] = ordered_json::array();
    for (const TokenEntry::Top& other : entry.top) top.push_back(chat_token_json(other.token, other.bytes, other.log_prob));
    list.push_back(std::move(one));
  }
  ordered_json out;
  out["content"] = std::move(list);
  out["refusal"] = nullptr;
  return out;
}

/// What a choice of a chat has beside its text.
void add_choice_end(ordered_json& out, const ChoiceOut& choice) {
  out["logprobs"] = choice.log_probs ? chat_log_probs_json(*choice.log_probs) : ordered_json();
  out["finish_reason"] = choice.finish_reason.empty() ? ordered_json() : ordered_json(choice.finish_reason);
  ordered_json& reason = out["stop_reason"];
  if (const auto* token = std::get_if<int32_t>(&choice.stop_reason)) reason = *token;
  if (const auto* text = std::get_if<std::string>(&choice.stop_reason)) reason = *text;
  if (choice.token_ids) out["token_ids"] = *choice.token_ids;
}

ordered_json head_json(const CompletionHead& head, const char* object) {
  ordered_json out;
  out["id"] = head.id;
  out["object"] = object;
  out["created"] = head.created;
  out["model"] = head.model;
  return out;
}

}  // namespace

std::string chat_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                      const Timings* timings) {
  ordered_json out = head_json(head, "chat.completion");
  ordered_json& list = out["choices"] = ordered_json::array();
  for (const ChoiceOut& choice : choices) {
    ordered_json one;
    one["index"] = choice.index;
    ordered_json& message = one["message"];
    message["role"] = "assistant";
    message["content"] = choice.text;
    message["refusal"] = nullptr;
    if (choice.reasoning) message["reasoning_content"] = *choice.reasoning;
    add_choice_end(one, choice);
    list.push_back(std::move(one));
  }
  for (const ChoiceOut& choice : choices) {  // As vLLM has them, once: a chat has one prompt.
    if (choice.prompt_token_ids) out["prompt_token_ids"] = *choice.prompt_token_ids;
    if (choice.prompt_log_probs) out["prompt_logprobs"] = prompt_log_probs_json(*choice.prompt_log_probs);
  }
  add_end(out, usage, timings);
  return dump(out);
}

std::string chat_chunk_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                            const Timings* timings) {
  ordered_json out = head_json(head, "chat.completion.chunk");
  ordered_json& list = out["choices"] = ordered_json::array();
  for (const ChoiceOut& choice : choices) {
    ordered_json one;
    one["index"] = choice.index;
    ordered_json& delta = one["delta"] = ordered_json::object();
    if (choice.begins) delta["role"] = "assistant";
    if (choice.begins || !choice.text.empty()) delta["content"] = choice.text;
    if (choice.reasoning && !choice.reasoning->empty()) delta["reasoning_content"] = *choice.reasoning;
    add_choice_end(one, choice);
    list.push_back(std::move(one));
    if (choice.prompt_token_ids) out["prompt_token_ids"] = *choice.prompt_token_ids;
    if (choice.prompt_log_probs) out["prompt_logprobs"] = prompt_log_probs_json(*choice.prompt_log_probs);
  }
  add_end(out, usage, timings);
  return dump(out);
}

std::string completion_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage,
                            const Timings* timings) {
  ordered_json out = head_json(head, "text_completion");
  ordered_json list = ordered_json::array();
  for (const ChoiceOut& choice : choices) list.push_back(choice_json(choice));
  out["choices"] = std::move(list);
  add_end(out, usage, timings);
  return dump(out);
}

bool is_plain_chunk(const ChoiceOut& choice) {
  return !choice.begins && (!choice.text.empty() || choice.token_ids) && !choice.reasoning && !choice.log_probs &&
         choice.finish_reason.empty() && choice.stop_reason.index() == 0 && !choice.prompt_token_ids &&
         !choice.prompt_log_probs;
}

namespace {

/// Text as JSON. Most of it needs no escapes, and then no serializer.
std::string quoted(const std::string& text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  return plain ? '"' + text + '"' : dump(text);
}

}  // namespace

std::string chunk_beginning(const CompletionHead& head, bool chat) {
  std::string out = dump(head_json(head, chat ? "chat.completion.chunk" : "text_completion"));
  out.back() = ',';  // The object goes on.
  return out + R"("choices":[{"index":)";
}

std::string plain_chunk_json(const std::string& beginning, const ChoiceOut& choice, bool chat) {
  const bool has_content = !chat || !choice.text.empty();
  const std::string ids = choice.token_ids ? fmt::format(R"(,"token_ids":[{}])", fmt::join(*choice.token_ids, ",")) : "";
  return fmt::format(R"({}{},{}{}{},"logprobs":null,"finish_reason":null,"stop_reason":null{}}}]}})", beginning, choice.index,
                     !chat         ? R"("text":)"
                     : has_content ? R"("delta":{"content":)"
                                   : R"("delta":{)",
                     has_content ? quoted(choice.text) : "", chat ? "}" : "", ids);
}

}  // namespace weft
