#include "tools/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace weft {
namespace {

constexpr size_t kShownBytes = 80;

}  // namespace

double number_of(const std::string& name, const std::string& text, double min, double max) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || last != end || !(value >= min && value <= max))
    throw UserError("--{} must be a number, {:g} to {:g}: got {}", name, min, max, text.substr(0, kShownBytes));
  return value;
}

std::vector<std::string> parts_of(std::string_view text, char between) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(between, at), text.size());
    out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::optional<std::string> text_option(const Invocation& invocation, const std::string& name) {
  return invocation.has(name) ? std::optional(invocation[name]) : std::nullopt;
}

std::optional<int64_t> whole_option(const Invocation& invocation, const std::string& name, int64_t min, int64_t max) {
  if (!invocation.has(name)) return std::nullopt;
  const std::string& text = invocation[name];
  int64_t value = 0;
  if (!parse_size(text, value) || value < min || value > max)
    throw UserError("--{} must be a whole number, {} to {}: got {}", name, min, max, text.substr(0, kShownBytes));
  return value;
}

std::optional<double> number_option(const Invocation& invocation, const std::string& name, double min, double max) {
  if (!invocation.has(name)) return std::nullopt;
  return number_of(name, invocation[name], min, max);
}

std::vector<double> numbers_option(const Invocation& invocation, const std::string& name, double min, double max) {
  std::vector<double> out;
  if (!invocation.has(name)) return out;
  for (const std::string& part : parts_of(invocation[name], ',')) out.push_back(number_of(name, part, min, max));
  return out;
}

std::vector<std::string> several_option(const Invocation& invocation, const std::string& name) {
  return invocation.has(name) ? parts_of(invocation[name], kBetweenValues) : std::vector<std::string>();
}

std::vector<std::pair<std::string, std::string>> pairs_option(const Invocation& invocation, const std::string& name,
                                                              char between) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& text : several_option(invocation, name)) {
    const size_t at = text.find(between);
    if (at == 0 || at == std::string::npos)
      throw UserError("--{} must be KEY{}VALUE: got {}", name, between, text.substr(0, kShownBytes));
    out.emplace_back(text.substr(0, at), text.substr(at + 1));
  }
  return out;
}

}  // namespace weft
