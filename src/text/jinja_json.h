#pragma once

#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace weft::jinja {

/// A JSON text as Python's json.loads gives it: members in their order, of two with the same name the last, integers of any
/// size. Throws OperationError that says what is wrong where.
Value from_json(Sandbox& box, std::string_view json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  /// Between elements, and between key and value. Elements have lines of their own if there is an indent.
  std::string item_separator = ", ", key_separator = ": ";
  bool has_indent = false;
  std::string indent = "";
};
/// As Python's json.dumps writes it. Throws OperationError for what JSON does not have.
std::string to_json(Sandbox& box, const Value& value, const JsonStyle& style = {});

}  // namespace weft::jinja
