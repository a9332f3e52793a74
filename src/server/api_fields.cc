#include "server/api_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

using json = nlohmann::json;

constexpr size_t kShownBytes = 80;

class BodyReader : public json::json_sax_t {
 public:
  BodyReader(const ApiLimits& limits, std::string_view prompt_field) : limits_(limits), prompt_field_(prompt_field) {}

  ParsedBody out;

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
    if (in_prompt()) refuse_field(prompt_name(), kPromptKinds, "an object");
    deeper();
    if (depth_ > 1) open_.push_back(place(json::object()));
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      field_ = name;
      if (in_prompt()) {
        out.prompts.clear();
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
      if (depth_ > 2 || (depth_ == 2 && single_ids_)) refuse_field(prompt_name(), kPromptKinds, "a list");
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
    throw ApiError(400, fmt::format("the request body {}, at byte {}{}", what, position, where), field_.substr(0, kShownBytes));
  }

 private:
  static constexpr const char* kPromptKinds = "a string, a list of strings, a list of token ids, or a list of such lists";

  bool in_prompt() const { return depth_ >= 1 && !prompt_field_.empty() && field_ == prompt_field_; }
  [[noreturn]] static void refuse_top() { throw ApiError(400, "the request body must be a JSON object"); }
  void deeper() {
    if (++depth_ > limits_.max_depth)
      throw ApiError(400, fmt::format("the request body is nested too deep: at most {} levels", limits_.max_depth));
  }

  json* place(json value) {
    if (++values_ > limits_.max_values)
      throw ApiError(400, fmt::format("the request body holds more than {} values beside the prompt", limits_.max_values),
                     field_);
    if (depth_ == 1 || open_.empty()) {
      json& member = out.fields[field_];
      if (out.fields.size() > limits_.max_keys) too_many_keys();
      return &(member = std::move(value));
    }
    json& parent = *open_.back();
    if (parent.is_object()) {
      json& member = parent[key_];
      if (parent.size() > limits_.max_keys) too_many_keys();
      return &(member = std::move(value));
    }
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(json value) {
    if (depth_ == 0) refuse_top();
    place(std::move(value));
    return true;
  }

  std::string prompt_name() const {
    if (depth_ <= 1) return prompt_field_;
    if (depth_ == 2)
      return fmt::format("{}[{}]", prompt_field_, single_ids_ ? out.prompts.front().ids.size() : out.prompts.size());
    return fmt::format("{}[{}][{}]", prompt_field_, out.prompts.size() - 1, out.prompts.back().ids.size());
  }
  /// A value that no prompt may hold, except null, which means that there is none.
  bool prompt_value(const json& value) {
    if (value.is_null() && depth_ == 1) return true;
    const bool id_place = depth_ == 3 || single_ids_;
    refuse_field(prompt_name(), id_place ? fmt::format("a token id, 0 to {}", limits_.vocab - 1) : kPromptKinds,
                 shown_value(value));
  }
  bool prompt_integer(int64_t id) {
    if (depth_ == 1 || (depth_ == 2 && !single_ids_ && !out.prompts.empty())) return prompt_value(id);
    if (depth_ == 2 && !single_ids_) {
      single_ids_ = true;
      out.prompts.emplace_back();
    }
    std::vector<int32_t>& ids = out.prompts.back().ids;
    if (id < 0 || id >= limits_.vocab)
      refuse_field(prompt_name(), fmt::format("a token id, 0 to {}", limits_.vocab - 1), std::to_string(id));
    ids.push_back(static_cast<int32_t>(id));
    return true;
  }
  bool whole_prompt(PromptInput prompt) {
    out.prompts.clear();
    out.prompts.push_back(std::move(prompt));
    return true;
  }
  PromptInput& list_entry() {
    if (out.prompts.size() >= static_cast<size_t>(limits_.max_prompts))
      throw ApiError(400,
                     fmt::format("{} holds more than {} prompts; send several requests", prompt_field_, limits_.max_prompts),
                     prompt_field_);
    return out.prompts.emplace_back();
  }

  [[noreturn]] void too_many_keys() const {
    throw ApiError(400, fmt::format("an object of the request body has more than {} keys", limits_.max_keys), field_);
  }

  const ApiLimits& limits_;
  const std::string prompt_field_;
  int depth_ = 0;
  std::string field_, key_;
  std::vector<json*> open_;
  size_t values_ = 0;
  bool single_ids_ = false;  ///< the prompt is one list of ids
};

}  // namespace

ParsedBody read_body(std::string_view body, const ApiLimits& limits, std::string_view prompt_field) {
  BodyReader reader(limits, prompt_field);
  json::sax_parse(body.begin(), body.end(), &reader);
  return std::move(reader.out);
}

std::string shown_value(const json& value) {
  if (value.is_string()) return as_quoted(value.get_ref<const std::string&>());
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kShownBytes);
}

void refuse_field(const std::string& field, std::string_view accepted, const std::string& got) {
  throw ApiError(400, fmt::format("{} must be {}: got {}", field, accepted, got), field.substr(0, field.find_first_of("[.")));
}

std::optional<json> BodyFields::take(const std::string& name) {
  const auto it = fields_.find(name);
  if (it == fields_.end()) return std::nullopt;
  json value = std::move(*it);
  fields_.erase(it);
  if (value.is_null()) return std::nullopt;
  return value;
}

bool BodyFields::flag(const std::string& name, bool fallback) {
  const auto value = take(name);
  if (!value) return fallback;
  if (!value->is_boolean()) refuse_field(name, "true or false", shown_value(*value));
  return value->get<bool>();
}

std::optional<int64_t> BodyFields::integer(const std::string& name, int64_t min, int64_t max) {
  const auto value = take(name);
  if (!value) return std::nullopt;
  return as_integer(name, *value, min, max);
}

float BodyFields::number(const std::string& name, double min, double max, double fallback) {
  const auto value = take(name);
  if (!value) return static_cast<float>(fallback);
  return static_cast<float>(as_number(name, *value, min, max));
}

std::string BodyFields::text(const std::string& name, size_t max_bytes) {
  const auto value = take(name);
  if (!value) return {};
  return as_text(name, *value, max_bytes);
}

std::optional<std::vector<int32_t>> BodyFields::ids(const std::string& name, int64_t vocab) {
  const auto value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) refuse_field(name, "a list of token ids", shown_value(*value));
  std::vector<int32_t> out;
  out.reserve(value->size());
  for (size_t i = 0; i < value->size(); ++i)
    out.push_back(static_cast<int32_t>(as_integer(fmt::format("{}[{}]", name, i), (*value)[i], 0, vocab - 1)));
  return out;
}

void BodyFields::unsupported(const std::string& name, std::string_view instead) {
  const auto value = take(name);
  if (!value || *value == json(false) || *value == json(0) || *value == json("") || (value->is_structured() && value->empty()))
    return;
  throw ApiError(400, fmt::format("{} is not supported by this version: {}", name, instead), name, "unsupported_parameter");
}

void BodyFields::ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) fields_.erase(name);
}

std::vector<std::string> BodyFields::left() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : fields_.items()) out.push_back(name.substr(0, kShownBytes));
  return out;
}

int64_t BodyFields::as_integer(const std::string& name, const json& value, int64_t min, int64_t max) {
  const std::string accepted = max == std::numeric_limits<int64_t>::max() ? fmt::format("a whole number from {} on", min)
                                                                          : fmt::format("a whole number, {} to {}", min, max);
  int64_t out = 0;
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      refuse_field(name, accepted, shown_value(value));
    out = static_cast<int64_t>(value.get<uint64_t>());
  } else if (value.is_number_integer()) {
    out = value.get<int64_t>();
  } else {
    refuse_field(name, accepted, shown_value(value));
  }
  if (out < min || out > max) refuse_field(name, accepted, shown_value(value));
  return out;
}

double BodyFields::as_number(const std::string& name, const json& value, double min, double max) {
  const double out = value.is_number() ? value.get<double>() : std::nan("");
  if (!(out >= min && out <= max)) refuse_field(name, fmt::format("a number from {} to {}", min, max), shown_value(value));
  return out;
}

std::string BodyFields::as_text(const std::string& name, const json& value, size_t max_bytes) {
  if (!value.is_string()) refuse_field(name, "a string", shown_value(value));
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > max_bytes)
    refuse_field(name, fmt::format("a string of at most {} bytes", max_bytes), fmt::format("{} bytes", text.size()));
  return text;
}

}  // namespace weft
