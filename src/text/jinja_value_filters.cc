// Jinja's filters for numbers and for any value.

#include <fmt/format.h>

#include <cmath>

#include "text/jinja_filter_parts.h"
#include "text/python_text.h"

namespace weft::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

// ---- Numbers

Value absolute(Sandbox&, const Value& input, const Arguments& arguments) {
  const Parameters none("abs", arguments, {});
  if (input.is_int()) return input.as_int() < 0 ? negative(input) : Value::integer(input.as_int());
  if (input.kind() == Kind::kFloat) return Value::number(std::abs(input.as_float()));
  fail(fmt::format("bad operand type for abs(): '{}'", input.type_name()));
}

std::optional<int64_t> truncated(double value) {
  if (std::isnan(value) || std::abs(value) >= 9.2e18) return {};
  return static_cast<int64_t>(value);
}

Value to_integer(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"});
  require_defined(input);
  const Value otherwise = parameters[0] == nullptr ? Value::integer(0) : *parameters[0];
  if (input.is_int()) return Value::integer(input.as_int());
  if (input.kind() == Kind::kBigInt) return input;
  if (input.kind() == Kind::kFloat) {
    if (std::isnan(input.as_float())) return otherwise;
    const auto whole = truncated(input.as_float());
    if (!whole) fail("cannot convert this float to an integer of 64 bits");
    return Value::integer(*whole);
  }
  if (!input.is_string()) return otherwise;
  box.step_bytes(input.as_string().size());
  const int64_t base = parameters.integer(1, 10);
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  if (const auto value = python::to_integer(input.as_string(), static_cast<int>(base))) return Value::integer(*value);
  const auto real = python::to_float(input.as_string());
  const auto whole = real ? truncated(*real) : std::nullopt;
  return whole ? Value::integer(*whole) : otherwise;
}

Value to_float(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"});
  require_defined(input);
  if (input.is_int() || input.kind() == Kind::kFloat) return Value::number(input.as_float());
  if (input.is_string()) {
    box.step_bytes(input.as_string().size());
    if (const auto value = python::to_float(input.as_string())) return Value::number(*value);
  }
  return parameters[0] == nullptr ? Value::number(0) : *parameters[0];
}

/// round(value, digits): half to even, of the exact binary value.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value)) return value;
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::isinf(unit) ? std::copysign(0.0, value) : std::nearbyint(value / unit) * unit;
  }
  if (digits > 22 + 300) return value;
  return *python::to_float(fmt::format("{:.{}f}", value, digits));
}

Value round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return Value::integer(value);
  if (digits < -18) return Value::integer(0);
  int64_t unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  int64_t quotient = value / unit, rest = value % unit;
  if (rest < 0) rest += unit, --quotient;
  const int64_t half = unit / 2;
  if (rest > half || (rest == half && quotient % 2 != 0)) ++quotient;
  int64_t result = 0;
  if (__builtin_mul_overflow(quotient, unit, &result)) fail("integers of more than 64 bits are not supported");
  return Value::integer(result);
}

Value round(Sandbox&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"});
  static const std::string kCommon = "common";
  const int64_t digits = parameters.integer(0, 0);
  const std::string& method = parameters.text(1, kCommon);
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  if (!input.is_int() && input.kind() != Kind::kFloat)
    fail(fmt::format("type {} doesn't define __round__ method", input.type_name()));
  if (method == "common") {
    return input.is_int() ? round_integer(input.as_int(), digits) : Value::number(rounded(input.as_float(), digits));
  }
  const double unit = std::pow(10.0, static_cast<double>(digits));
  const double scaled = input.as_float() * unit;
  return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value filesizeformat(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("filesizeformat", arguments, {"binary"});
  require_defined(input);
  std::optional<double> bytes;
  if (input.is_int() || input.kind() == Kind::kFloat) bytes = input.as_float();
  if (input.is_string()) bytes = python::to_float(input.as_string());
  if (!bytes || !std::isfinite(*bytes)) fail(fmt::format("filesizeformat() takes a number, not {}", input.type_name()));
  const bool binary = parameters.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return Value::text(box, "1 Byte");
  if (*bytes < base) return Value::text(box, fmt::format("{:.0f} Bytes", std::trunc(*bytes) + 0.0));  // without a sign of zero
  constexpr std::string_view kUnits = "kMGTPEZY";
  double unit = base * base;
  size_t at = 0;
  for (; at + 1 < kUnits.size() && *bytes >= unit; ++at) unit *= base;
  const std::string name = binary ? fmt::format("{}iB", at == 0 ? 'K' : kUnits[at]) : fmt::format("{}B", kUnits[at]);
  return Value::text(box, fmt::format("{:.1f} {}", base * *bytes / unit, name));
}

// ---- Anything

Value identity(Sandbox&, const Value& input, const Arguments& arguments) {
  const Parameters none("safe", arguments, {});
  return input;
}

Value default_value(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(parameters.flag(1, false) && !input.truth())) return input;
  return parameters[0] == nullptr ? Value::text(box, "") : *parameters[0];
}

Value attr(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"});
  const TextInput name(box, parameters.require(0));
  return get_own_attribute(box, input, *name);
}

Value length_of(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("length", arguments, {});
  const auto size = length(box, input);
  if (!size) fail(fmt::format("object of type '{}' has no len()", input.type_name()));
  return Value::integer(*size);
}

}  // namespace

const FilterTable& value_filters() {
  static const FilterTable filters = {
      {"abs", absolute},          {"attr", attr},
      {"count", length_of},       {"d", default_value},
      {"default", default_value}, {"filesizeformat", filesizeformat},
      {"float", to_float},        {"int", to_integer},
      {"length", length_of},      {"round", round},
      {"safe", identity},
  };
  return filters;
}

}  // namespace weft::jinja
