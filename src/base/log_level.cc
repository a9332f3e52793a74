#include "base/log_level.h"

#include <spdlog/spdlog.h>

namespace weft::log {

bool set_level(const std::string& level) {
  if (level != "debug" && level != "info" && level != "warning" && level != "error") return false;
  spdlog::set_level(spdlog::level::from_str(level));
  return true;
}

}  // namespace weft::log
