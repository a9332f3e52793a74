#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace weft::jinja {

/// A template that is wrong, or does not go with the data it is given.
class TemplateError : public UserError {
 public:
  TemplateError(int line_in, const std::string& message)
      : UserError("chat template, line {}: {}", line_in, message), line(line_in) {}
  int line;
};

struct Token {
  enum class Kind {
    kData,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  ///< what it says: of a string its content, of a number its digits
  int line;
};

/// Cuts a template into tokens, as Jinja does with trim_blocks and lstrip_blocks: comments and raw blocks are resolved, white
/// space that tags take away is gone, line ends are "\n", and one at the very end is dropped. The last token is kEnd. Linear
/// time. Throws TemplateError. Requires: valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace weft::jinja
