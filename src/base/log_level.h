#pragma once

#include <string>

namespace weft::log {

/// From now on nothing below "debug", "info", "warning" or "error" is logged. False for any other word.
bool set_level(const std::string& level);

}  // namespace weft::log
