#include "server/trace_context.h"

#include <algorithm>

namespace weft {
namespace {

constexpr size_t kLength = 55;  // 00-<32>-<16>-<2>

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool is_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::string TraceContext::header(std::string_view span_id) const {
  const bool sampled = std::string_view("13579bdf").find(flags.back()) != std::string_view::npos;  // The only flag we know.
  return "00-" + trace_id + "-" + std::string(span_id) + (sampled ? "-01" : "-00");
}

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32), parent = header.substr(36, 16),
                         flags = header.substr(53, 2);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(flags)) return std::nullopt;
  if (version == "ff" || is_zero(trace) || is_zero(parent)) return std::nullopt;
  const bool longer = header.size() > kLength;
  if (longer && (version == "00" || header[kLength] != '-')) return std::nullopt;
  return TraceContext{.trace_id = std::string(trace), .parent_id = std::string(parent), .flags = std::string(flags)};
}

}  // namespace weft
