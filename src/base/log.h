#pragma once

#include <spdlog/spdlog.h>

namespace weft::log {

// One line format on stderr: "2026-01-31 12:00:00.123 INFO  message". Standard output is kept for results.
using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

/// Sets the format and the stream. Call once, first thing in main.
void start();

}  // namespace weft::log
