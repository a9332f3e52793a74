#pragma once

#include <string>
#include <string_view>

#include "text/jinja_value.h"

/// Python's operators on values. Each throws OperationError where Python raises, with its words where they are known.
namespace weft::jinja {

std::string str(Sandbox& box, const Value& value);
std::string repr(Sandbox& box, const Value& value);

bool equal(Sandbox& box, const Value& a, const Value& b);
enum class Order { kLess, kLessEqual, kGreater, kGreaterEqual };
bool ordered(Sandbox& box, Order order, const Value& a, const Value& b);
bool contains(Sandbox& box, const Value& container, const Value& item);

enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value calculate(Sandbox& box, BinaryOperator op, const Value& a, const Value& b);
Value negative(const Value& value);
Value positive(const Value& value);

/// len(), if the value has one.
std::optional<int64_t> length(Sandbox& box, const Value& value);

/// value[key] as Jinja does it: an attribute where there is no element, else undefined.
Value get_item(Sandbox& box, const Value& value, const Value& key);
/// value.name as Jinja does it: an element where there is no attribute, else undefined. Whatever leads out of the data is
/// undefined too.
Value get_attribute(Sandbox& box, const Value& value, std::string_view name);
/// The attribute alone, as the filter `attr` gives it.
Value get_own_attribute(Sandbox& box, const Value& value, std::string_view name);
/// value[start:stop:step]; each part may be None.
Value slice(Sandbox& box, const Value& value, const Value& start, const Value& stop, const Value& step);

/// Throws what the use of something undefined throws.
[[noreturn]] void fail_undefined(const Value& value);
/// Throws if the value is undefined.
inline void require_defined(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
}

/// A method of a text, list or dict by its name, bound to it: nullopt if the type has none such.
std::optional<Value> find_method(Sandbox& box, const Value& self, std::string_view name);

/// text % values, and text.format(...).
std::string format_percent(Sandbox& box, const std::string& format, const Value& values);
std::string format_braces(Sandbox& box, const std::string& format, const Arguments& arguments);

}  // namespace weft::jinja
