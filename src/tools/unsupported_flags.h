#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// Flags that users know from other servers and that this version does not have.
struct UnsupportedFlags {
  std::vector<std::string> names;  ///< without dashes in front
  std::string reason, instead;
};
const std::vector<UnsupportedFlags>& unsupported_flags();

/// "not in this version: reason; instead", or "" for a name that is not in the list. `name` as written, dashes in front
/// included.
std::string why_unsupported(std::string_view name);

}  // namespace weft
