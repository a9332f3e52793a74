#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace weft {

/// Parses untrusted JSON: no comments, no duplicate keys, at most `max_depth` levels. Throws UserError, one line, that starts
/// with `what` ("config.json") and ends with `path`.
nlohmann::json parse_strict_json(std::string_view text, std::string_view what, std::string_view path, int max_depth = 16);

/// Untrusted text for a message: in quotes, on one line, printable, shortened.
std::string in_quotes(std::string_view text);

/// A value for a message: as JSON, on one line, shortened.
std::string shown(const nlohmann::json& value);

}  // namespace weft
