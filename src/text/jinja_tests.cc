// Jinja's tests: what stands after `is`.

#include <fmt/format.h>

#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/python_text.h"

namespace weft::jinja {
namespace {

using Kind = Value::Kind;

template <bool (*holds)(const Value&)>
bool simple(Sandbox&, const Value& value, const Arguments& arguments) {
  const Parameters none("test", arguments, {});
  return holds(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true(const Value& value) { return value.is_bool() && value.as_bool(); }
bool is_false(const Value& value) { return value.is_bool() && !value.as_bool(); }
bool is_integer(const Value& value) { return value.kind() == Kind::kInt || value.kind() == Kind::kBigInt; }
bool is_float(const Value& value) { return value.kind() == Kind::kFloat; }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is_dict(); }
bool is_escaped(const Value&) { return false; }
bool is_callable(const Value& value) { return value.is_undefined() || (value.is_object() && value.as_object().is_callable()); }
/// What has a length and elements by number or key; so has what is undefined.
bool is_sequence(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict() ||
         (value.is_object() && dynamic_cast<const Range*>(&value.as_object()) != nullptr);
}

bool is_odd(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters none("odd", arguments, {});
  return equal(box, calculate(box, BinaryOperator::kModulo, value, Value::integer(2)), Value::integer(1));
}

bool is_even(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters none("even", arguments, {});
  return equal(box, calculate(box, BinaryOperator::kModulo, value, Value::integer(2)), Value::integer(0));
}

bool is_divisible(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters parameters("divisibleby", arguments, {"num"});
  return equal(box, calculate(box, BinaryOperator::kModulo, value, parameters.require(0)), Value::integer(0));
}

template <bool wanted>
bool is_equal(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters parameters("eq", arguments, {"other"});
  return equal(box, value, parameters.require(0)) == wanted;
}

template <Order order>
bool is_ordered(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters parameters("comparison", arguments, {"other"});
  return ordered(box, order, value, parameters.require(0));
}

bool is_in(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters parameters("in", arguments, {"seq"});
  return contains(box, parameters.require(0), value);
}

bool is_same(Sandbox&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("sameas", arguments, {"other"});
  return value.same_as(parameters.require(0));
}

template <bool (*holds)(std::string_view)>
bool text_is(Sandbox& box, const Value& value, const Arguments& arguments) {
  const Parameters none("test", arguments, {});
  return holds(str(box, value));
}

void check_hashable(const Value& value) {
  if (value.kind() == Kind::kList || value.is_dict())
    throw OperationError(fmt::format("unhashable type: '{}'", value.type_name()));
}
bool is_filter(Sandbox&, const Value& value, const Arguments&) {
  check_hashable(value);
  return value.is_string() && find_filter(value.as_string()) != nullptr;
}
bool is_test(Sandbox&, const Value& value, const Arguments&) {
  check_hashable(value);
  return value.is_string() && find_test(value.as_string()) != nullptr;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFunction> tests = {
      {"!=", is_equal<false>},
      {"<", is_ordered<Order::kLess>},
      {"<=", is_ordered<Order::kLessEqual>},
      {"==", is_equal<true>},
      {">", is_ordered<Order::kGreater>},
      {">=", is_ordered<Order::kGreaterEqual>},
      {"boolean", simple<is_boolean>},
      {"callable", simple<is_callable>},
      {"defined", simple<is_defined>},
      {"divisibleby", is_divisible},
      {"eq", is_equal<true>},
      {"equalto", is_equal<true>},
      {"escaped", simple<is_escaped>},
      {"even", is_even},
      {"false", simple<is_false>},
      {"filter", is_filter},
      {"float", simple<is_float>},
      {"ge", is_ordered<Order::kGreaterEqual>},
      {"greaterthan", is_ordered<Order::kGreater>},
      {"gt", is_ordered<Order::kGreater>},
      {"in", is_in},
      {"integer", simple<is_integer>},
      {"iterable", simple<is_iterable>},
      {"le", is_ordered<Order::kLessEqual>},
      {"lessthan", is_ordered<Order::kLess>},
      {"lower", text_is<python::is_lower>},
      {"lt", is_ordered<Order::kLess>},
      {"mapping", simple<is_mapping>},
      {"ne", is_equal<false>},
      {"none", simple<is_none>},
      {"number", simple<is_number>},
      {"odd", is_odd},
      {"sameas", is_same},
      {"sequence", simple<is_sequence>},
      {"string", simple<is_string>},
      {"test", is_test},
      {"true", simple<is_true>},
      {"undefined", simple<is_undefined>},
      {"upper", text_is<python::is_upper>},
  };
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

}  // namespace weft::jinja
