#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace weft {

/// A request that is answered with an HTTP error in OpenAI's shape.
class ApiError : public UserError {
 public:
  /// `param` is the field that is wrong, `code` a word for programs; both may be empty.
  ApiError(int status_in, const std::string& message, std::string param_in = {}, std::string code_in = {})
      : UserError(message), status(status_in), param(std::move(param_in)), code(std::move(code_in)) {}

  int status;
  std::string param, code;
  bool never_fits = false;  ///< too long for the whole KV memory, not only for --max-model-len
};

/// {"error": {"message", "type", "param", "code"}}.
std::string error_json(int status, std::string_view message, std::string_view param = {}, std::string_view code = {});
std::string error_json(const ApiError& error);

/// Untrusted text for a message or the log: in quotes, on one line, shortened.
std::string as_quoted(std::string_view text);

}  // namespace weft
