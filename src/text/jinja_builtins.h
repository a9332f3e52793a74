#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/jinja_value.h"

/// The filters, tests, methods and functions that templates find.
namespace weft::jinja {

using FilterFunction = Value (*)(Sandbox& box, const Value& input, const Arguments& arguments);
using TestFunction = bool (*)(Sandbox& box, const Value& input, const Arguments& arguments);
using MethodFunction = Value (*)(Sandbox& box, const Value& self, const Arguments& arguments);

/// Null if there is none of that name.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
/// These throw OperationError instead.
Value apply_filter(Sandbox& box, std::string_view name, const Value& input, const Arguments& arguments);
bool apply_test(Sandbox& box, std::string_view name, const Value& input, const Arguments& arguments);

/// A function of C++ as a value.
using NativeFunction = Value (*)(Sandbox& box, const Arguments& arguments);
Value native_function(Sandbox& box, std::string_view name, NativeFunction function);

/// What every template finds: range, dict, cycler, joiner, raise_exception. (namespace and strftime_now need to know more.)
std::vector<std::pair<std::string_view, NativeFunction>> global_functions();
/// strftime_now(format): `now` in local time.
Value formatted_time(Sandbox& box, std::time_t now, const Arguments& arguments);

/// What raise_exception throws: on its way out of a rendering only.
class RaisedByTemplate : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Arguments by the names of the parameters. Throws OperationError for what the function does not take.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names);

  /// Null if it was not given.
  const Value* operator[](size_t parameter) const { return values_[parameter]; }
  const Value& require(size_t parameter) const;
  bool flag(size_t parameter, bool otherwise) const;
  int64_t integer(size_t parameter, int64_t otherwise) const;
  /// The text itself: anything else is refused.
  const std::string& text(size_t parameter, const std::string& otherwise) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace weft::jinja
