#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <concepts>
#include <span>
#include <string>
#include <string_view>

namespace weft::log {

// One line an event on stderr: "2026-01-31 12:00:00.123 INFO  message". Standard output is kept for results.
using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::should_log;
using spdlog::warn;

/// Sets the format and the stream. Call once, first thing in main.
void start();

/// A value that belongs to a line, apart from its message: "name=value" behind it, or a member of the JSON object.
struct Field {
  Field(std::string_view name_in, std::string_view text) : name(name_in), value(text), quoted(true) {}
  Field(std::string_view name_in, std::integral auto number) : name(name_in), value(fmt::format("{}", number)) {}
  Field(std::string_view name_in, std::floating_point auto number) : name(name_in), value(fmt::format("{:.3f}", number)) {}

  std::string name, value;
  bool quoted = false;
};
using Level = spdlog::level::level_enum;
/// A line with fields. Values may be any bytes: what is no plain text is escaped.
void event(Level level, std::string_view message, std::span<const Field> fields);

}  // namespace weft::log
