#include "server/openai_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

using json = nlohmann::json;
using ordered_json = nlohmann::ordered_json;

constexpr int kMaxDepth = 32;
constexpr size_t kShownBytes = 80;
constexpr int kMaxLogProbs = 20;
constexpr size_t kMaxStopBytes = 1024, kMaxSaltBytes = 256, kMaxModelBytes = 512;
constexpr float kLeastLogProb = -9999;  // JSON has no infinity, and clients add these up

std::string dump(const ordered_json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// A value for a message: as JSON, on one line, shortened.
std::string shown(const json& value) {
  if (value.is_string()) return as_quoted(value.get_ref<const std::string&>());
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kShownBytes);
}

[[noreturn]] void refuse(const std::string& field, std::string_view accepted, const std::string& got) {
  throw ApiError(400, fmt::format("{} must be {}: got {}", field, accepted, got), field.substr(0, field.find_first_of("[.")));
}

/// Reads a body in one pass: the prompt straight into ids and strings, the other fields as JSON values. So memory is bounded by
/// the bytes of the body, not by what a document tree makes of them.
class BodyReader : public json::json_sax_t {
 public:
  explicit BodyReader(const ApiLimits& limits) : limits_(limits) {}

  json fields = json::object();
  std::vector<PromptInput> prompts;

  bool null() override { return in_prompt() ? prompt_value(nullptr) : add(nullptr); }
  bool boolean(bool value) override { return in_prompt() ? prompt_value(value) : add(value); }
  bool number_integer(number_integer_t value) override { return in_prompt() ? prompt_integer(value) : add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_prompt()) return add(value);
    return value <= std::numeric_limits<int64_t>::max() ? prompt_integer(static_cast<int64_t>(value)) : prompt_value(value);
  }
  bool number_float(number_float_t value, const string_t&) override { return in_prompt() ? prompt_value(value) : add(value); }
  bool string(string_t& value) override {
    if (!in_prompt()) return add(std::move(value));
    if (depth_ == 1) return whole_prompt({.is_text = true, .text = std::move(value), .ids = {}});
    if (depth_ != 2 || single_ids_) return prompt_value(value);
    list_entry() = {.is_text = true, .text = std::move(value), .ids = {}};
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override {
    if (in_prompt()) refuse(prompt_name(), kPromptKinds, "an object");
    deeper();
    if (depth_ > 1) open_.push_back(place(json::object()));
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      field_ = name;
      if (in_prompt()) {
        prompts.clear();
        single_ids_ = false;
      }
    }
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    if (depth_ > 1) open_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) refuse_top();
    if (in_prompt()) {
      if (depth_ > 2 || (depth_ == 2 && single_ids_)) refuse(prompt_name(), kPromptKinds, "a list");
      if (depth_ == 2) list_entry() = {};
    }
    deeper();
    if (!in_prompt()) open_.push_back(place(json::array()));
    return true;
  }
  bool end_array() override {
    if (!in_prompt()) open_.pop_back();
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& error) override {
    const std::string where = field_.empty() ? "" : fmt::format(", in or after field {}", as_quoted(field_));
    // 406: a number that no double can hold; the library says so only here.
    const std::string what =
        error.id == 406 ? fmt::format("holds a number that is out of range: {}", as_quoted(token)) : "is not valid JSON";
    throw ApiError(400, fmt::format("the request body {}, at byte {}{}", what, position, where), field_);
  }

 private:
  static constexpr const char* kPromptKinds = "a string, a list of strings, a list of token ids, or a list of such lists";

  bool in_prompt() const { return depth_ >= 1 && field_ == "prompt"; }
  [[noreturn]] static void refuse_top() { throw ApiError(400, "the request body must be a JSON object"); }
  void deeper() {
    if (++depth_ > kMaxDepth)
      throw ApiError(400, fmt::format("the request body is nested too deep: at most {} levels", kMaxDepth));
  }

  json* place(json value) {
    if (++values_ > limits_.max_values)
      throw ApiError(400, fmt::format("the request body holds more than {} values beside the prompt", limits_.max_values),
                     field_);
    if (depth_ == 1 || open_.empty()) return &(fields[field_] = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(json value) {
    if (depth_ == 0) refuse_top();
    place(std::move(value));
    return true;
  }

  std::string prompt_name() const {
    if (depth_ <= 1) return "prompt";
    if (depth_ == 2) return fmt::format("prompt[{}]", single_ids_ ? prompts.front().ids.size() : prompts.size());
    return fmt::format("prompt[{}][{}]", prompts.size() - 1, prompts.back().ids.size());
  }
  /// A value that no prompt may hold, except null, which means that there is none.
  bool prompt_value(const json& value) {
    if (value.is_null() && depth_ == 1) return true;
    const bool id_place = depth_ == 3 || single_ids_;
    refuse(prompt_name(), id_place ? fmt::format("a token id, 0 to {}", limits_.vocab - 1) : kPromptKinds, shown(value));
  }
  bool prompt_integer(int64_t id) {
    if (depth_ == 1 || (depth_ == 2 && !single_ids_ && !prompts.empty())) return prompt_value(id);
    if (depth_ == 2 && !single_ids_) {
      single_ids_ = true;
      prompts.emplace_back();
    }
    std::vector<int32_t>& ids = prompts.back().ids;
    if (id < 0 || id >= limits_.vocab)
      refuse(prompt_name(), fmt::format("a token id, 0 to {}", limits_.vocab - 1), std::to_string(id));
    ids.push_back(static_cast<int32_t>(id));
    return true;
  }
  bool whole_prompt(PromptInput prompt) {
    prompts.clear();
    prompts.push_back(std::move(prompt));
    return true;
  }
  PromptInput& list_entry() {
    if (prompts.size() >= static_cast<size_t>(limits_.max_prompts))
      throw ApiError(400, fmt::format("prompt holds more than {} prompts; send several requests", limits_.max_prompts),
                     "prompt");
    return prompts.emplace_back();
  }

  const ApiLimits& limits_;
  int depth_ = 0;
  std::string field_, key_;
  std::vector<json*> open_;
  size_t values_ = 0;
  bool single_ids_ = false;  ///< the prompt is one list of ids
};

/// The fields of a body beside the prompt. Each reader takes a field out, so that what is left is unknown.
class Fields {
 public:
  explicit Fields(json fields) : fields_(std::move(fields)) {}

  std::optional<json> take(const std::string& name) {
    const auto it = fields_.find(name);
    if (it == fields_.end()) return std::nullopt;
    json value = std::move(*it);
    fields_.erase(it);
    if (value.is_null()) return std::nullopt;
    return value;
  }
  bool flag(const std::string& name, bool fallback) {
    const auto value = take(name);
    if (!value) return fallback;
    if (!value->is_boolean()) refuse(name, "true or false", shown(*value));
    return value->get<bool>();
  }
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max) {
    const auto value = take(name);
    if (!value) return std::nullopt;
    return as_integer(name, *value, min, max);
  }
  float number(const std::string& name, double min, double max, double fallback) {
    const auto value = take(name);
    if (!value) return static_cast<float>(fallback);
    return static_cast<float>(as_number(name, *value, min, max));
  }
  std::string text(const std::string& name, size_t max_bytes) {
    const auto value = take(name);
    if (!value) return {};
    return as_text(name, *value, max_bytes);
  }
  std::optional<std::vector<int32_t>> ids(const std::string& name, int64_t vocab) {
    const auto value = take(name);
    if (!value) return std::nullopt;
    if (!value->is_array()) refuse(name, "a list of token ids", shown(*value));
    std::vector<int32_t> out;
    out.reserve(value->size());
    for (size_t i = 0; i < value->size(); ++i)
      out.push_back(static_cast<int32_t>(as_integer(fmt::format("{}[{}]", name, i), (*value)[i], 0, vocab - 1)));
    return out;
  }
  /// A feature that this version does not have: fine as long as it is not used.
  void unsupported(const std::string& name, std::string_view instead) {
    const auto value = take(name);
    if (!value || *value == json(false) || *value == json(0) || *value == json("") ||
        (value->is_structured() && value->empty()))
      return;
    throw ApiError(400, fmt::format("{} is not supported by this version: {}", name, instead), name, "unsupported_parameter");
  }
  /// Fields that change nothing.
  void ignore(std::initializer_list<const char*> names) {
    for (const char* name : names) fields_.erase(name);
  }
  std::vector<std::string> left() const {
    std::vector<std::string> out;
    for (const auto& [name, value] : fields_.items()) out.push_back(name.substr(0, kShownBytes));
    return out;
  }

  static int64_t as_integer(const std::string& name, const json& value, int64_t min, int64_t max) {
    const std::string accepted = max == std::numeric_limits<int64_t>::max() ? fmt::format("a whole number from {} on", min)
                                                                            : fmt::format("a whole number, {} to {}", min, max);
    int64_t out = 0;
    if (value.is_number_unsigned()) {
      if (value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        refuse(name, accepted, shown(value));
      out = static_cast<int64_t>(value.get<uint64_t>());
    } else if (value.is_number_integer()) {
      out = value.get<int64_t>();
    } else {
      refuse(name, accepted, shown(value));
    }
    if (out < min || out > max) refuse(name, accepted, shown(value));
    return out;
  }
  static double as_number(const std::string& name, const json& value, double min, double max) {
    const double out = value.is_number() ? value.get<double>() : std::nan("");
    if (!(out >= min && out <= max)) refuse(name, fmt::format("a number from {} to {}", min, max), shown(value));
    return out;
  }
  static std::string as_text(const std::string& name, const json& value, size_t max_bytes) {
    if (!value.is_string()) refuse(name, "a string", shown(value));
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > max_bytes)
      refuse(name, fmt::format("a string of at most {} bytes", max_bytes), fmt::format("{} bytes", text.size()));
    return text;
  }

 private:
  json fields_;
};

void read_sampling(Fields& fields, const ApiLimits& limits, SamplingParams& out) {
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
    if (allowed->empty()) refuse("allowed_token_ids", "a list of at least one token id, or null", "[]");
    out.allowed_tokens = *allowed;
  }
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    out.seed = static_cast<uint64_t>(*seed);
  if (const auto bias = fields.take("logit_bias")) {
    if (!bias->is_object()) refuse("logit_bias", "an object of token ids and numbers", shown(*bias));
    for (const auto& [key, value] : bias->items()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab)
        refuse("logit_bias", fmt::format("an object whose keys are token ids, 0 to {}", limits.vocab - 1), as_quoted(key));
      const double number = Fields::as_number(fmt::format("logit_bias[{}]", id), value, -100, 100);
      out.logit_bias.push_back({.token = static_cast<int32_t>(id), .bias = static_cast<float>(number)});
    }
  }
}

void read_stops(Fields& fields, const ApiLimits& limits, CompletionRequest& out) {
  if (auto stop = fields.take("stop")) {
    if (stop->is_string()) *stop = json::array({*stop});
    if (!stop->is_array()) refuse("stop", "a string or a list of strings", shown(*stop));
    if (stop->size() > static_cast<size_t>(limits.max_stops))
      refuse("stop", fmt::format("at most {} strings", limits.max_stops), fmt::format("{}", stop->size()));
    for (size_t i = 0; i < stop->size(); ++i) {
      const std::string name = fmt::format("stop[{}]", i);
      out.stops.push_back(Fields::as_text(name, (*stop)[i], kMaxStopBytes));
      if (out.stops.back().empty()) refuse(name, "a string that is not empty", "\"\"");
    }
  }
  out.base.stop_tokens = fields.ids("stop_token_ids", limits.vocab).value_or(std::vector<int32_t>());
  out.include_stop = fields.flag("include_stop_str_in_output", false);
}

void read_lengths(Fields& fields, CompletionRequest& out) {
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  auto max_tokens = fields.integer("max_tokens", 0, kMaxTokens);
  if (const auto newer = fields.integer("max_completion_tokens", 0, kMaxTokens)) max_tokens = newer;
  out.max_tokens_given = max_tokens.has_value();
  out.base.max_tokens = max_tokens.value_or(16);
  if (out.base.max_tokens == 0 && !out.echo) refuse("max_tokens", "at least 1, or 0 with echo", "0");
  out.base.min_tokens = fields.integer("min_tokens", 0, kMaxTokens).value_or(0);
  if (out.base.min_tokens > out.base.max_tokens)
    refuse("min_tokens", fmt::format("at most max_tokens, which is {}", out.base.max_tokens),
           std::to_string(out.base.min_tokens));
  out.truncate_prompt = fields.integer("truncate_prompt_tokens", -1, kMaxTokens).value_or(0);
}

void read_choices(Fields& fields, const ApiLimits& limits, CompletionRequest& out) {
  out.base.choices = static_cast<int>(fields.integer("n", 1, limits.max_choices).value_or(1));
  const int64_t best_of = fields.integer("best_of", 1, limits.max_choices).value_or(out.base.choices);
  if (best_of != out.base.choices)
    throw ApiError(400,
                   fmt::format("best_of is not supported by this version: use n with logprobs and choose among the answers "
                               "yourself; got best_of {} with n {}",
                               best_of, out.base.choices),
                   "best_of", "unsupported_parameter");
}

void read_stream(Fields& fields, CompletionRequest& out) {
  out.stream = fields.flag("stream", false);
  const auto options = fields.take("stream_options");
  if (!options) return;
  if (!options->is_object()) refuse("stream_options", "an object", shown(*options));
  if (!out.stream) throw ApiError(400, "stream_options needs stream: true", "stream_options");
  Fields inner(*options);
  const auto inner_flag = [&](const char* name) {
    const auto value = inner.take(name);
    if (value && !value->is_boolean()) refuse(fmt::format("stream_options.{}", name), "true or false", shown(*value));
    return value && value->get<bool>();
  };
  out.include_usage = inner_flag("include_usage");
  out.continuous_usage = inner_flag("continuous_usage_stats");
}

void refuse_unsupported(Fields& fields) {
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
    if (!format->is_object()) refuse("response_format", "an object", shown(*format));
    if (format->value("type", json()) != json("text"))
      throw ApiError(
          400,
          "response_format is not supported by this version other than {\"type\": \"text\"}: check the answer and ask again",
          "response_format", "unsupported_parameter");
  }
  fields.ignore({"user", "metadata", "store", "request_id", "length_penalty", "early_stopping", "spaces_between_special_tokens",
                 "safety_identifier", "prompt_cache_key", "service_tier"});
}

}  // namespace

std::string as_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kShownBytes)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShownBytes ? "...\"" : "\"");
}

std::string error_json(int status, std::string_view message, std::string_view param, std::string_view code) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  ordered_json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? ordered_json() : ordered_json(param);
  error["code"] = code.empty() ? ordered_json() : ordered_json(code);
  ordered_json out;
  out["error"] = std::move(error);
  return dump(out);
}

std::string error_json(const ApiError& error) { return error_json(error.status, error.what(), error.param, error.code); }

CompletionRequest parse_completion(std::string_view body, const ApiLimits& limits) {
  BodyReader reader(limits);
  json::sax_parse(body.begin(), body.end(), &reader);
  CompletionRequest out;
  out.prompts = std::move(reader.prompts);
  Fields fields(std::move(reader.fields));
  if (out.prompts.empty()) throw ApiError(400, "prompt is missing: a string, token ids, or a list of those", "prompt");
  out.model = fields.text("model", kMaxModelBytes);
  out.echo = fields.flag("echo", false);
  read_stream(fields, out);
  read_lengths(fields, out);
  read_choices(fields, limits, out);
  read_sampling(fields, limits, out.base.sampling);
  read_stops(fields, limits, out);
  out.base.ignore_eos = fields.flag("ignore_eos", false);
  out.base.log_probs = static_cast<int>(fields.integer("logprobs", 0, kMaxLogProbs).value_or(-1));
  out.base.prompt_log_probs = static_cast<int>(fields.integer("prompt_logprobs", 0, kMaxLogProbs).value_or(-1));
  out.base.cache_salt = fields.text("cache_salt", kMaxSaltBytes);
  out.return_token_ids = fields.flag("return_token_ids", false);
  out.tokens_as_ids = fields.flag("return_tokens_as_token_ids", false);
  out.skip_special_tokens = fields.flag("skip_special_tokens", true);
  out.add_special_tokens = fields.flag("add_special_tokens", true);
  refuse_unsupported(fields);
  out.ignored = fields.left();
  return out;
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
    for (const auto& [token, value] : entry.top) {
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

}  // namespace

std::string completion_json(const CompletionHead& head, std::span<const ChoiceOut> choices, const Usage* usage) {
  ordered_json out;
  out["id"] = head.id;
  out["object"] = "text_completion";
  out["created"] = head.created;
  out["model"] = head.model;
  ordered_json list = ordered_json::array();
  for (const ChoiceOut& choice : choices) list.push_back(choice_json(choice));
  out["choices"] = std::move(list);
  if (usage != nullptr) out["usage"] = usage_json(*usage);
  return dump(out);
}

}  // namespace weft
