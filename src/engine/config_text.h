#pragma once

#include <string>

#include "engine/config.h"

namespace weft {

/// A configuration as lines "field value", to be kept with what was done under it.
std::string to_text(const EngineConfig& config);
/// The configuration of such lines; fields that are not named keep their defaults. Throws SystemError for a line that is none.
EngineConfig config_from_text(const std::string& text);

}  // namespace weft
