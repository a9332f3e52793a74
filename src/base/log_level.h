#pragma once

#include <string>

namespace weft::log {

/// From now on nothing below "debug", "info", "warning" or "error" is logged. False for any other word.
bool set_level(const std::string& level);
/// From now on lines are "text", or "json": an object a line, with time (UTC), level, message and the fields of the event.
/// False for any other word.
bool set_format(const std::string& format);

}  // namespace weft::log
