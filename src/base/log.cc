#include "base/log.h"

#include <spdlog/details/fmt_helper.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <ctime>

#include "base/log_level.h"

namespace weft::log {
namespace {

/// Of the line that this thread is writing. The logger is synchronous: it formats within the call.
thread_local std::span<const Field> current_fields;

bool is_plain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~' && c != '"'; });
}

/// In quotes, on one line, ASCII only: valid JSON whatever the bytes are.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    }
  }
  return out + '"';
}

class TextFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    pattern_.format(line, out);
    for (const Field& field : current_fields) {
      const bool bare = !field.quoted || is_plain(field.value);
      fmt::format_to(std::back_inserter(out), " {}={}", field.name, bare ? field.value : in_quotes(field.value));
    }
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<TextFormatter>(); }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%d %H:%M:%S.%e %-5!l %v", spdlog::pattern_time_type::local, ""};
};

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    using namespace std::chrono;
    const auto since = line.time.time_since_epoch();
    const std::time_t seconds = duration_cast<std::chrono::seconds>(since).count();
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    char time[32];
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &parts);
    const auto level = spdlog::level::to_string_view(line.level);
    fmt::format_to(std::back_inserter(out), R"({{"time":"{}.{:03}Z","level":"{}","message":{})", time,
                   duration_cast<milliseconds>(since).count() % 1000, std::string_view(level.data(), level.size()),
                   in_quotes({line.payload.data(), line.payload.size()}));
    for (const Field& field : current_fields)
      fmt::format_to(std::back_inserter(out), R"(,"{}":{})", field.name, field.quoted ? in_quotes(field.value) : field.value);
    fmt::format_to(std::back_inserter(out), "}}\n");
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

void start() {
  auto logger = spdlog::stderr_logger_mt("weft");
  logger->set_formatter(std::make_unique<TextFormatter>());
  spdlog::set_default_logger(std::move(logger));
}

void event(Level level, std::string_view message, std::span<const Field> fields) {
  current_fields = fields;
  spdlog::log(level, "{}", message);
  current_fields = {};
}

bool set_format(const std::string& format) {
  if (format != "text" && format != "json") return false;
  if (format == "json") {
    spdlog::set_formatter(std::make_unique<JsonFormatter>());
  } else {
    spdlog::set_formatter(std::make_unique<TextFormatter>());
  }
  return true;
}

}  // namespace weft::log
