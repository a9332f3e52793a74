#include "text/jinja_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

void append_repr(Sandbox& box, const Value& value, std::string& out);

void append_items(Sandbox& box, const std::vector<Value>& items, std::string& out) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(box, item, out);
  }
}

void append_dict(Sandbox& box, const Dict& dict, std::string& out) {
  out += '{';
  for (const auto& [key, value] : dict.entries()) {
    if (out.back() != '{' || &key != &dict.entries().front().first) out += ", ";
    append_repr(box, key, out);
    out += ": ";
    append_repr(box, value, out);
  }
  out += '}';
}

void append_text(Sandbox& box, const std::string& text, std::string& out) {
  box.step_bytes(text.size());
  const Charge scratch(box, 4 * text.size());  // A byte may become four.
  out += python::repr(text);
}

void append_repr(Sandbox& box, const Value& value, std::string& out) {
  const Sandbox::Level level(box);
  box.step();
  // What is being built is no value yet. It must not outgrow the memory all the same.
  if (out.size() > box.limits().max_memory_bytes / 4) fail("the template needs too much memory: a text is too long");
  switch (value.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      out += std::to_string(value.as_int());
      return;
    case Kind::kBigInt:
      out += value.as_string();
      return;
    case Kind::kFloat:
      out += python::repr(value.as_float());
      return;
    case Kind::kString:
      append_text(box, value.as_string(), out);
      return;
    case Kind::kList:
      out += '[';
      append_items(box, value.items(), out);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(box, value.items(), out);
      out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict:
      append_dict(box, value.as_dict(), out);
      return;
    case Kind::kObject:
      out += value.as_object().repr(box);
      return;
  }
}

bool equal_items(Sandbox& box, const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [&](const Value& x, const Value& y) { return x.same_as(y) || equal(box, x, y); });
}

bool equal_dicts(Sandbox& box, const Dict& a, const Dict& b) {
  if (a.entries().size() != b.entries().size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const Dict::Entry& entry) {
    const Value* const other = b.find(box, entry.first);
    return other != nullptr && (entry.second.same_as(*other) || equal(box, entry.second, *other));
  });
}

/// An integer against a float, exactly: 2**53 + 1 is not 2.0**53.
int compare_exactly(int64_t a, double b) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (b >= kTwo63) return -1;
  if (b < -kTwo63) return 1;
  const double whole = std::floor(b);
  const auto floor = static_cast<int64_t>(whole);
  if (a != floor) return a < floor ? -1 : 1;
  return b > whole ? -1 : 0;
}

/// Three-way, or nullopt where one is NaN. Both are numbers of 64 bits.
std::optional<int> compare_numbers(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  if (std::isnan(a.as_float()) || std::isnan(b.as_float())) return {};
  if (a.is_int()) return compare_exactly(a.as_int(), b.as_float());
  if (b.is_int()) return -compare_exactly(b.as_int(), a.as_float());
  return a.as_float() < b.as_float() ? -1 : a.as_float() > b.as_float() ? 1 : 0;
}

bool is_plain_number(const Value& value) { return value.is_int() || value.kind() == Kind::kFloat; }

const char* symbol(Order order) {
  constexpr const char* kSymbols[] = {"<", "<=", ">", ">="};
  return kSymbols[static_cast<int>(order)];
}

bool holds(Order order, int comparison) {
  switch (order) {
    case Order::kLess:
      return comparison < 0;
    case Order::kLessEqual:
      return comparison <= 0;
    case Order::kGreater:
      return comparison > 0;
    case Order::kGreaterEqual:
      return comparison >= 0;
  }
  return false;
}

const char* symbol(BinaryOperator op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<int>(op)];
}

[[noreturn]] void fail_operands(BinaryOperator op, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  if (a.kind() == Kind::kBigInt || b.kind() == Kind::kBigInt) fail("integers of more than 64 bits are not supported here");
  fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), a.type_name(), b.type_name()));
}

[[noreturn]] void fail_overflow() { fail("integers of more than 64 bits are not supported"); }
[[noreturn]] void fail_zero(const char* what) { fail(what); }

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) fail_overflow();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value calculate_integers(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOperator::kDivide:
      if (b == 0) fail_zero("division by zero");
      return Value::number(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case BinaryOperator::kFloorDivide:
      if (b == 0) fail_zero("integer division or modulo by zero");
      return Value::integer(floor_divide(a, b));
    case BinaryOperator::kModulo:
      if (b == 0) fail_zero("integer modulo by zero");
      if (b == -1) return Value::integer(0);
      result = a % b;
      return Value::integer(result != 0 && (result < 0) != (b < 0) ? result + b : result);
    case BinaryOperator::kPower:
      if (b >= 0) return Value::integer(power(a, b));
      if (a == 0) fail_zero("0.0 cannot be raised to a negative power");
      return Value::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  return {};
}

double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Value calculate_floats(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::number(a + b);
    case BinaryOperator::kSubtract:
      return Value::number(a - b);
    case BinaryOperator::kMultiply:
      return Value::number(a * b);
    case BinaryOperator::kDivide:
      if (b == 0) fail_zero("float division by zero");
      return Value::number(a / b);
    case BinaryOperator::kFloorDivide: {
      if (b == 0) fail_zero("float floor division by zero");
      const double rest = float_modulo(a, b);
      const double quotient = (a - rest) / b;
      const double whole = std::floor(quotient);
      if (quotient == 0) return Value::number(std::copysign(0.0, a / b));
      return Value::number(quotient - whole > 0.5 ? whole + 1 : whole);
    }
    case BinaryOperator::kModulo:
      if (b == 0) fail_zero("float modulo");
      return Value::number(float_modulo(a, b));
    case BinaryOperator::kPower: {
      if (a == 0 && b < 0) fail_zero("0.0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("complex numbers are not supported");
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) fail("Numerical result out of range");
      return Value::number(result);
    }
  }
  return {};
}

Value repeat(Sandbox& box, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const size_t unit = value.is_string() ? value.as_string().size() : value.items().size() * sizeof(Value);
  const size_t most = box.limits().max_memory_bytes;
  if (unit != 0 && static_cast<size_t>(times) > most / unit)
    fail(fmt::format("the template needs too much memory: more than {} bytes", most));
  const Charge scratch(box, unit * static_cast<size_t>(times));
  if (unit == 0) times = 0;
  if (value.is_string()) {
    std::string text;
    text.reserve(unit * static_cast<size_t>(times));
    for (int64_t i = 0; i < times; ++i) text += value.as_string();
    return Value::text(box, std::move(text));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return value.kind() == Kind::kList ? Value::list(box, std::move(items)) : Value::tuple(box, std::move(items));
}

Value concatenated(Sandbox& box, const Value& a, const Value& b) {
  if (a.is_string()) {
    const Charge scratch(box, a.as_string().size() + b.as_string().size());
    return Value::text(box, a.as_string() + b.as_string());
  }
  std::vector<Value> items = elements(box, a);
  const std::vector<Value>& more = b.items();
  const Charge scratch(box, (items.size() + more.size()) * sizeof(Value));
  items.insert(items.end(), more.begin(), more.end());
  return a.kind() == Kind::kList ? Value::list(box, std::move(items)) : Value::tuple(box, std::move(items));
}

bool is_repeatable(const Value& value) { return value.is_string() || value.is_sequence(); }

/// A slice of `size` elements as Python understands it: first index, count and step.
struct SliceRange {
  int64_t first, count, step;
};

std::optional<int64_t> slice_index(const Value& value) {
  if (value.is_none()) return {};
  require_defined(value);
  if (!value.is_int()) fail("slice indices must be integers or None or have an __index__ method");
  return value.as_int();
}

SliceRange slice_range(int64_t size, const Value& start, const Value& stop, const Value& step_value) {
  const int64_t step = std::max<int64_t>(slice_index(step_value).value_or(1), -INT64_MAX);
  if (step == 0) fail("slice step cannot be zero");
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto clamped = [&](const std::optional<int64_t>& index, int64_t otherwise) {
    if (!index) return otherwise;
    const int64_t at = *index < 0 ? *index + size : *index;
    return std::clamp(at, low, high);
  };
  const int64_t first = clamped(slice_index(start), step < 0 ? high : low);
  const int64_t end = clamped(slice_index(stop), step < 0 ? low : high);
  const int64_t span = step < 0 ? first - end : end - first;
  if (span <= 0) return {0, 0, 1};
  const int64_t stride = std::abs(step);
  return {first, (span - 1) / stride + 1, step};
}

Value slice_text(Sandbox& box, const std::string& text, const Value& start, const Value& stop, const Value& step) {
  box.step_bytes(text.size());
  const SliceRange range = slice_range(python::length(text), start, stop, step);
  if (range.count == 0) return Value::text(box, "");
  if (range.step == 1) {
    const size_t begin = python::byte_offset(text, range.first);
    const size_t bytes = python::byte_offset(std::string_view(text).substr(begin), range.count);
    return Value::text(box, text.substr(begin, bytes));
  }
  const Charge scratch(box, text.size() * sizeof(uint32_t));
  std::vector<uint32_t> begins;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) begins.push_back(static_cast<uint32_t>(at));
  std::string out;
  for (int64_t i = 0; i < range.count; ++i) {
    const size_t at = begins[static_cast<size_t>(range.first + i * range.step)];
    out.append(text, at, character_at(text, at).bytes);
  }
  return Value::text(box, std::move(out));
}

/// The element, or nullopt where Python raises a TypeError or a LookupError.
std::optional<Value> element(Sandbox& box, const Value& value, const Value& key) {
  if (value.is_dict()) {
    if (key.is_undefined()) return {};
    if (key.kind() == Kind::kList || key.is_dict()) return {};
    const Value* const found = value.as_dict().find(box, key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  if (value.is_object()) return value.as_object().element(box, key);
  if (!key.is_int() || !(value.is_sequence() || value.is_string())) return {};
  const int64_t size = *length(box, value);
  const int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
  if (at < 0 || at >= size) return {};
  if (value.is_sequence()) return value.items()[static_cast<size_t>(at)];
  const std::string& text = value.as_string();
  const size_t begin = python::byte_offset(text, at);
  return Value::text(box, text.substr(begin, character_at(text, begin).bytes));
}

std::string shown(std::string_view name) {
  constexpr size_t kMost = 80;
  if (name.size() <= kMost) return python::repr(name);
  size_t end = kMost;
  while ((static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return python::repr(std::string(name.substr(0, end)) + "...");
}

std::string object_name(const Value& value) { return value.is_none() ? "None" : value.type_name() + " object"; }

Value no_attribute(Sandbox& box, const Value& value, std::string_view name) {
  return Value::undefined(box, fmt::format("'{}' has no attribute {}", object_name(value), shown(name)));
}

}  // namespace

void fail_undefined(const Value& value) { throw OperationError(value.as_string()); }

std::string str(Sandbox& box, const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_string()) {
    box.step_bytes(value.as_string().size());
    return value.as_string();
  }
  std::string out;
  append_repr(box, value, out);
  return out;
}

std::string repr(Sandbox& box, const Value& value) {
  std::string out;
  append_repr(box, value, out);
  return out;
}

bool equal(Sandbox& box, const Value& a, const Value& b) {
  const Sandbox::Level level(box);
  box.step();
  if (is_plain_number(a) && is_plain_number(b)) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      box.step_bytes(std::min(a.as_string().size(), b.as_string().size()));
      return a.as_string() == b.as_string();
    case Kind::kBigInt:
      return a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return equal_items(box, a.items(), b.items());
    case Kind::kDict:
      return equal_dicts(box, a.as_dict(), b.as_dict());
    case Kind::kObject:
      return a.as_object().equals(box, b.as_object());
    default:
      return false;
  }
}

bool ordered(Sandbox& box, Order order, const Value& a, const Value& b) {
  const Sandbox::Level level(box);
  box.step();
  if (is_plain_number(a) && is_plain_number(b)) {
    const std::optional<int> comparison = compare_numbers(a, b);
    return comparison && holds(order, *comparison);
  }
  if (a.is_string() && b.is_string()) {
    box.step_bytes(std::min(a.as_string().size(), b.as_string().size()));
    return holds(order, a.as_string().compare(b.as_string()));  // The order of UTF-8 is that of the characters.
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!x[i].same_as(y[i]) && !equal(box, x[i], y[i])) return ordered(box, order, x[i], y[i]);
    }
    return holds(order, x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
  }
  require_defined(a);
  require_defined(b);
  if (a.kind() == Kind::kBigInt || b.kind() == Kind::kBigInt) fail("integers of more than 64 bits are not supported here");
  fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", symbol(order), a.type_name(), b.type_name()));
}

bool contains(Sandbox& box, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      require_defined(item);
      fail(fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    }
    box.step_bytes(container.as_string().size());
    return python::find(container.as_string(), item.as_string()) != std::string::npos;
  }
  if (container.is_dict()) return container.as_dict().find(box, item) != nullptr;
  if (container.is_object() && !container.as_object().is_iterable()) {
    fail(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  }
  if (!is_iterable(container)) fail(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  Iterator walk(box, container);
  while (const auto candidate = walk.next()) {
    if (candidate->same_as(item) || equal(box, *candidate, item)) return true;
  }
  return false;
}

Value calculate(Sandbox& box, BinaryOperator op, const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return calculate_integers(op, a.as_int(), b.as_int());
  if (is_plain_number(a) && is_plain_number(b)) return calculate_floats(op, a.as_float(), b.as_float());
  require_defined(a);
  if (op == BinaryOperator::kAdd) {
    if (is_repeatable(a) && a.kind() == b.kind()) return concatenated(box, a, b);
    require_defined(b);
    if (a.is_string()) fail(fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
    if (a.is_sequence()) fail(fmt::format("can only concatenate {0} (not \"{1}\") to {0}", a.type_name(), b.type_name()));
  }
  if (op == BinaryOperator::kMultiply) {
    if (is_repeatable(a) && b.is_int()) return repeat(box, a, b.as_int());
    if (is_repeatable(b) && a.is_int()) return repeat(box, b, a.as_int());
  }
  if (op == BinaryOperator::kModulo && a.is_string()) return Value::text(box, format_percent(box, a.as_string(), b));
  fail_operands(op, a, b);
}

Value negative(const Value& value) {
  if (value.is_int()) return calculate_integers(BinaryOperator::kSubtract, 0, value.as_int());
  if (value.kind() == Kind::kFloat) return Value::number(-value.as_float());
  if (value.kind() == Kind::kBigInt) fail("integers of more than 64 bits are not supported here");
  require_defined(value);
  fail(fmt::format("bad operand type for unary -: '{}'", value.type_name()));
}

Value positive(const Value& value) {
  if (value.is_int()) return Value::integer(value.as_int());
  if (value.kind() == Kind::kFloat || value.kind() == Kind::kBigInt) return value;
  require_defined(value);
  fail(fmt::format("bad operand type for unary +: '{}'", value.type_name()));
}

std::optional<int64_t> length(Sandbox& box, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      box.step_bytes(value.as_string().size());
      return python::length(value.as_string());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().entries().size());
    case Kind::kObject:
      return value.as_object().length();
    default:
      return {};
  }
}

Value get_item(Sandbox& box, const Value& value, const Value& key) {
  require_defined(value);
  if (auto found = element(box, value, key)) return *found;
  if (key.is_string()) {
    if (key.as_string().starts_with("_")) return no_attribute(box, value, key.as_string());
    if (auto found =
            value.is_object() ? value.as_object().attribute(box, key.as_string()) : find_method(box, value, key.as_string())) {
      return *found;
    }
    return no_attribute(box, value, key.as_string());
  }
  return Value::undefined(box, fmt::format("{} has no element {}", object_name(value),
                                           key.is_int() ? repr(box, key) : "of the type " + key.type_name()));
}

Value get_own_attribute(Sandbox& box, const Value& value, std::string_view name) {
  require_defined(value);
  if (name.starts_with("_")) return no_attribute(box, value, name);
  if (value.is_object()) {
    if (auto found = value.as_object().attribute(box, name)) return *found;
  } else if (auto found = find_method(box, value, name)) {
    return *found;
  }
  return no_attribute(box, value, name);
}

Value get_attribute(Sandbox& box, const Value& value, std::string_view name) {
  require_defined(value);
  const bool inner = name.starts_with("__") && name.ends_with("__");
  if (!inner) {
    const bool hidden = name.starts_with("_");
    if (value.is_object()) {
      if (auto found = hidden ? std::nullopt : value.as_object().attribute(box, name)) return *found;
      if (auto found = value.as_object().element(box, Value::text(box, std::string(name)))) return *found;
    } else {
      if (auto found = hidden ? std::nullopt : find_method(box, value, name)) return *found;
      if (value.is_dict()) {
        if (const Value* const found = value.as_dict().find(name)) return *found;
      }
    }
  }
  return no_attribute(box, value, name);
}

Value slice(Sandbox& box, const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  if (value.is_string()) return slice_text(box, value.as_string(), start, stop, step);
  const auto* const range_object = value.is_object() ? dynamic_cast<const Range*>(&value.as_object()) : nullptr;
  if (!value.is_sequence() && range_object == nullptr) {
    fail(value.is_dict() ? "unhashable type: 'slice'" : fmt::format("'{}' object is not subscriptable", value.type_name()));
  }
  const std::vector<Value> all = elements(box, value);
  const SliceRange range = slice_range(static_cast<int64_t>(all.size()), start, stop, step);
  std::vector<Value> items;
  for (int64_t i = 0; i < range.count; ++i) items.push_back(all[static_cast<size_t>(range.first + i * range.step)]);
  return value.kind() == Kind::kTuple ? Value::tuple(box, std::move(items)) : Value::list(box, std::move(items));
}

}  // namespace weft::jinja
