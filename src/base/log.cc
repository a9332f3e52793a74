#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

namespace weft::log {

void start() {
  auto logger = spdlog::stderr_logger_mt("weft");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %-5!l %v");
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace weft::log
