#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace weft {

/// What a request is checked against while it is read.
struct ApiLimits {
  int64_t vocab = 0;            ///< token ids are 0 to vocab - 1
  int max_prompts = 1024;       ///< in one request
  int max_choices = 128;        ///< n
  int max_stops = 64;           ///< stop strings
  int max_depth = 32;           ///< of lists and objects in one another
  size_t max_values = 1 << 17;  ///< JSON values outside the prompt
  size_t max_keys = 1 << 17;    ///< of one object
};

/// A prompt as it came: text, or token ids.
struct PromptInput {
  bool is_text = false;
  std::string text;
  std::string mark = {};  ///< in the text, where no special token may be read: see Tokenizer::break_special()
  std::vector<int32_t> ids;
};

/// A request body as JSON, but for the field that may hold a million token ids.
struct ParsedBody {
  nlohmann::json fields = nlohmann::json::object();
  std::vector<PromptInput> prompts;
};

/// Reads a body in one pass: the field named `prompt_field` straight into ids and strings, the other fields as JSON values. So
/// memory is bounded by the bytes of the body, not by what a document tree makes of them. Throws ApiError with status 400.
ParsedBody read_body(std::string_view body, const ApiLimits& limits, std::string_view prompt_field = "prompt");

/// A value for a message: as JSON, on one line, shortened.
std::string shown_value(const nlohmann::json& value);
/// Throws ApiError: `field` must be what is accepted, and is not.
[[noreturn]] void refuse_field(const std::string& field, std::string_view accepted, const std::string& got);

/// The fields of a body beside the prompt. Each reader takes a field out, so that what is left is unknown. null is the same as
/// nothing. All throw ApiError with status 400 that names the field, its value and what is accepted.
class BodyFields {
 public:
  explicit BodyFields(nlohmann::json fields) : fields_(std::move(fields)) {}

  std::optional<nlohmann::json> take(const std::string& name);
  bool flag(const std::string& name, bool fallback);
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max);
  float number(const std::string& name, double min, double max, double fallback);
  std::string text(const std::string& name, size_t max_bytes);
  std::optional<std::vector<int32_t>> ids(const std::string& name, int64_t vocab);
  /// A feature that this version does not have: fine as long as it is not used.
  void unsupported(const std::string& name, std::string_view instead);
  /// BodyFields that change nothing.
  void ignore(std::initializer_list<const char*> names);
  /// Names that nobody has taken.
  std::vector<std::string> left() const;

  static int64_t as_integer(const std::string& name, const nlohmann::json& value, int64_t min, int64_t max);
  static double as_number(const std::string& name, const nlohmann::json& value, double min, double max);
  static std::string as_text(const std::string& name, const nlohmann::json& value, size_t max_bytes);

 private:
  nlohmann::json fields_;
};

}  // namespace weft
