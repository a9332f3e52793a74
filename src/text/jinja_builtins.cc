#include "text/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_operators.h"

namespace weft::jinja {
namespace {

class Function : public Object {
 public:
  Function(Sandbox& box, std::string_view name, NativeFunction function) : Object(box), name_(name), function_(function) {}
  std::string type_name() const override { return "function"; }
  std::string repr(Sandbox&) const override { return fmt::format("<function {}>", name_); }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments& arguments) override { return function_(box, arguments); }

 private:
  std::string_view name_;
  NativeFunction function_;
};

/// cycler(a, b, ...): next() gives one after another.
class Cycler : public Object {
 public:
  Cycler(Sandbox& box, std::vector<Value> items)
      : Object(box, items.size() * sizeof(Value)), items_(Value::list(box, std::move(items))) {
    depth = items_.depth();
  }
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Sandbox& box, std::string_view name) override;
  Value take_next() {
    const Value item = current();
    at_ = (at_ + 1) % items_.items().size();
    return item;
  }
  Value current() const { return items_.items()[at_]; }
  void reset() { at_ = 0; }

 private:
  Value items_;
  size_t at_ = 0;
};

/// joiner(separator): nothing at the first call, the separator afterwards.
class Joiner : public Object {
 public:
  Joiner(Sandbox& box, Value separator) : Object(box), separator_(std::move(separator)) { depth = separator_.depth(); }
  std::string type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments&) override { return std::exchange(used_, true) ? separator_ : Value::text(box, ""); }

 private:
  Value separator_;
  bool used_ = false;
};

/// cycler.next and cycler.reset.
class CyclerMethod : public Object {
 public:
  CyclerMethod(Sandbox& box, std::shared_ptr<Cycler> cycler, bool is_next)
      : Object(box), cycler_(std::move(cycler)), is_next_(is_next) {
    depth = cycler_->depth;
  }
  std::string type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  Value call(Sandbox&, const Arguments&) override {
    if (is_next_) return cycler_->take_next();
    cycler_->reset();
    return {};
  }

 private:
  std::shared_ptr<Cycler> cycler_;
  bool is_next_;
};

int64_t range_argument(const Value& value) {
  require_defined(value);
  if (!value.is_int()) throw OperationError(fmt::format("'{}' object cannot be interpreted as an integer", value.type_name()));
  return value.as_int();
}

Value range(Sandbox& box, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) {
    throw OperationError(fmt::format("range expected 1 to 3 arguments, got {}", given.size()));
  }
  const int64_t first = range_argument(given[0]);
  if (given.size() == 1) return Value::object(std::make_shared<Range>(box, 0, first, 1));
  const int64_t step = given.size() == 3 ? range_argument(given[2]) : 1;
  return Value::object(std::make_shared<Range>(box, first, range_argument(given[1]), step));
}

Value dict(Sandbox& box, const Arguments& arguments) {
  if (arguments.positional.size() > 1) {
    throw OperationError(fmt::format("dict expected at most 1 argument, got {}", arguments.positional.size()));
  }
  const auto made = std::make_shared<Dict>(box);
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.as_dict().entries()) made->set(box, key, value);
    } else {
      for (const Value& pair : elements(box, from)) {
        std::vector<Value> both = elements(box, pair);
        if (both.size() != 2) throw OperationError("dictionary update sequence elements must have length 2");
        made->set(box, both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) made->set(box, Value::text(box, name), value);
  return Value::dict(made);
}

Value cycler(Sandbox& box, const Arguments& arguments) {
  if (arguments.positional.empty()) throw OperationError("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(box, arguments.positional));
}

Value joiner(Sandbox& box, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {"sep"});
  return Value::object(std::make_shared<Joiner>(box, parameters[0] == nullptr ? Value::text(box, ", ") : *parameters[0]));
}

Value raise_exception(Sandbox& box, const Arguments& arguments) {
  const Parameters parameters("raise_exception", arguments, {"message"});
  throw RaisedByTemplate(str(box, parameters.require(0)));
}

}  // namespace

std::optional<Value> Cycler::attribute(Sandbox& box, std::string_view name) {
  if (name == "current") return current();
  if (name != "next" && name != "reset") return {};
  return Value::object(
      std::make_shared<CyclerMethod>(box, std::static_pointer_cast<Cycler>(shared_from_this()), name == "next"));
}

Value native_function(Sandbox& box, std::string_view name, NativeFunction function) {
  return Value::object(std::make_shared<Function>(box, name, function));
}

std::vector<std::pair<std::string_view, NativeFunction>> global_functions() {
  return {{"range", range}, {"dict", dict}, {"cycler", cycler}, {"joiner", joiner}, {"raise_exception", raise_exception}};
}

Value formatted_time(Sandbox& box, std::time_t now, const Arguments& arguments) {
  const Parameters parameters("strftime_now", arguments, {"format"});
  const std::string& format = parameters.require(0).is_string() ? parameters.require(0).as_string()
                                                                : throw OperationError("strftime() argument 1 must be str");
  constexpr size_t kMostFormat = 1024;
  if (format.size() > kMostFormat)
    throw OperationError(fmt::format("a date format is too long: at most {} bytes", kMostFormat));
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) throw OperationError("the time cannot be told");
  char buffer[4096];
  const size_t bytes = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return Value::text(box, std::string(buffer, bytes));
}

Value apply_filter(Sandbox& box, std::string_view name, const Value& input, const Arguments& arguments) {
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr) throw OperationError(fmt::format("No filter named '{}'.", name.substr(0, 80)));
  return filter(box, input, arguments);
}

bool apply_test(Sandbox& box, std::string_view name, const Value& input, const Arguments& arguments) {
  const TestFunction test = find_test(name);
  if (test == nullptr) throw OperationError(fmt::format("No test named '{}'.", name.substr(0, 80)));
  return test(box, input, arguments);
}

Parameters::Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    throw OperationError(
        fmt::format("{}() takes at most {} arguments ({} given)", function, names_.size(), arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const size_t at = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    if (at == names_.size()) {
      throw OperationError(fmt::format("{}() got an unexpected keyword argument '{}'", function, name.substr(0, 80)));
    }
    if (values_[at] != nullptr) throw OperationError(fmt::format("{}() got multiple values for argument '{}'", function, name));
    values_[at] = &value;
  }
}

const Value& Parameters::require(size_t parameter) const {
  if (values_[parameter] == nullptr) {
    throw OperationError(fmt::format("{}() missing a required argument: '{}'", function_, names_[parameter]));
  }
  return *values_[parameter];
}

bool Parameters::flag(size_t parameter, bool otherwise) const {
  return values_[parameter] == nullptr ? otherwise : values_[parameter]->truth();
}

int64_t Parameters::integer(size_t parameter, int64_t otherwise) const {
  if (values_[parameter] == nullptr) return otherwise;
  require_defined(*values_[parameter]);
  if (!values_[parameter]->is_int()) {
    throw OperationError(
        fmt::format("{}(): '{}' must be an integer, not {}", function_, names_[parameter], values_[parameter]->type_name()));
  }
  return values_[parameter]->as_int();
}

const std::string& Parameters::text(size_t parameter, const std::string& otherwise) const {
  if (values_[parameter] == nullptr) return otherwise;
  require_defined(*values_[parameter]);
  if (!values_[parameter]->is_string()) {
    throw OperationError(
        fmt::format("{}(): '{}' must be str, not {}", function_, names_[parameter], values_[parameter]->type_name()));
  }
  return values_[parameter]->as_string();
}

}  // namespace weft::jinja
