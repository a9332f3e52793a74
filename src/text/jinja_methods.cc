// The methods of Python's str, list, tuple, dict and float that change nothing. What would change its object is unsafe, as it
// is in Jinja's immutable sandbox: undefined, and an error when it is called.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

using python::Side;
using Kind = Value::Kind;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

Value texts(Sandbox& box, const std::vector<std::string_view>& parts) {
  const Charge scratch(box, parts.size() * (sizeof(Value) + sizeof(std::string_view)));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Value::text(box, std::string(part)));
  return Value::list(box, std::move(items));
}

// ---- str

template <Side side>
Value strip(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("strip", arguments, {"chars"});
  const bool given = parameters[0] != nullptr && !parameters[0]->is_none();
  const std::string& set = given ? parameters.text(0, {}) : self.as_string();
  if (given) box.step_bytes(self.as_string().size() * std::min<size_t>(set.size(), 64));
  return Value::text(
      box, std::string(python::strip(self.as_string(), side, given ? std::optional<std::string_view>(set) : std::nullopt)));
}

template <std::string (*map)(std::string_view)>
Value mapped(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters none("str method", arguments, {});
  box.step_bytes(self.as_string().size() * 4);
  const Charge scratch(box, 3 * self.as_string().size());  // A character may become three.
  return Value::text(box, map(self.as_string()));
}

template <bool (*test)(std::string_view)>
Value tested(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters none("str method", arguments, {});
  box.step_bytes(self.as_string().size());
  return Value::boolean(test(self.as_string()));
}

template <bool from_right>
Value split(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters(from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const int64_t most = parameters.integer(1, -1);
  const std::string& text = self.as_string();
  box.step_bytes(text.size());
  const size_t separator_bytes = parameters[0] != nullptr && parameters[0]->is_string() ? parameters[0]->as_string().size() : 2;
  const size_t parts = std::min(text.size() / std::max<size_t>(separator_bytes, 1), static_cast<size_t>(most)) + 1;
  const Charge scratch(box, parts * sizeof(std::string_view));  // as many as there may be
  if (parameters[0] == nullptr || parameters[0]->is_none()) {
    return texts(box, from_right ? python::rsplit(text, most) : python::split(text, most));
  }
  const std::string& separator = parameters.text(0, {});
  if (separator.empty()) fail("empty separator");
  if (from_right) box.step_bytes(text.size() * separator.size());
  return texts(box, from_right ? python::rsplit(text, separator, most) : python::split(text, separator, most));
}

Value splitlines(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("splitlines", arguments, {"keepends"});
  box.step_bytes(self.as_string().size());
  return texts(box, python::split_lines(self.as_string(), parameters.flag(0, false)));
}

/// What of a text its methods look at: between the characters `start` and `end`.
struct Window {
  size_t begin;
  std::string_view text;
  bool is_valid;  ///< not behind the end
};

Window window(Sandbox& box, const std::string& text, const Value* start, const Value* end) {
  if (start == nullptr && end == nullptr) return {0, text, true};
  box.step_bytes(text.size());
  const int64_t size = python::length(text);
  const auto position = [&](const Value* value, int64_t otherwise) {
    if (value == nullptr || value->is_none()) return otherwise;
    require_defined(*value);
    if (!value->is_int()) fail("slice indices must be integers or None or have an __index__ method");
    return value->as_int() < 0 ? std::max<int64_t>(value->as_int() + size, 0) : value->as_int();
  };
  const int64_t first = position(start, 0), last = std::min(position(end, size), size);
  if (first > last) return {0, {}, false};
  const size_t begin = python::byte_offset(text, first), stop = python::byte_offset(text, last);
  return {begin, std::string_view(text).substr(begin, stop - begin), true};
}

template <bool at_end>
Value starts_with(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters(at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"});
  const Window in = window(box, self.as_string(), parameters[1], parameters[2]);
  const auto matches = [&](const Value& affix) {
    require_defined(affix);
    if (!affix.is_string()) {
      fail(fmt::format("{} first arg must be str or a tuple of str, not {}", at_end ? "endswith" : "startswith",
                       affix.type_name()));
    }
    return in.is_valid && (at_end ? in.text.ends_with(affix.as_string()) : in.text.starts_with(affix.as_string()));
  };
  const Value& affix = parameters.require(0);
  if (affix.kind() == Kind::kTuple) return Value::boolean(std::any_of(affix.items().begin(), affix.items().end(), matches));
  return Value::boolean(matches(affix));
}

enum class Missing { kMinusOne, kError };
template <bool from_right, Missing missing>
Value find(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("find", arguments, {"sub", "start", "end"});
  parameters.require(0);
  const std::string& sought = parameters.text(0, {});
  box.step_bytes(self.as_string().size());
  const Window in = window(box, self.as_string(), parameters[1], parameters[2]);
  if (from_right) box.step_bytes(in.text.size() * sought.size());
  const size_t at = !in.is_valid ? std::string_view::npos : from_right ? in.text.rfind(sought) : python::find(in.text, sought);
  if (at == std::string_view::npos) {
    if (missing == Missing::kError) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(python::length(std::string_view(self.as_string()).substr(0, in.begin + at)));
}

Value count_text(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"sub", "start", "end"});
  parameters.require(0);
  const std::string& sought = parameters.text(0, {});
  box.step_bytes(self.as_string().size());
  const Window in = window(box, self.as_string(), parameters[1], parameters[2]);
  if (!in.is_valid) return Value::integer(0);
  if (sought.empty()) return Value::integer(python::length(in.text) + 1);
  int64_t count = 0;
  for (size_t at = python::find(in.text, sought); at != std::string_view::npos;
       at = python::find(in.text, sought, at + sought.size()))
    ++count;
  return Value::integer(count);
}

Value join(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"iterable"});
  std::string out;
  Charge scratch(box, 0);
  bool first = true;
  Iterator walk(box, parameters.require(0));
  while (const auto item = walk.next()) {
    if (!item->is_string()) fail(fmt::format("sequence item: expected str instance, {} found", item->type_name()));
    scratch.more(item->as_string().size() + (first ? 0 : self.as_string().size()));
    if (!first) out += self.as_string();
    first = false;
    out += item->as_string();
  }
  return Value::text(box, std::move(out));
}

Value replace_text(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"});
  parameters.require(0), parameters.require(1), parameters.text(0, {}), parameters.text(1, {});
  return apply_filter(box, "replace", self, arguments);
}

Value format(Sandbox& box, const Value& self, const Arguments& arguments) {
  return Value::text(box, format_braces(box, self.as_string(), arguments));
}

template <bool from_right>
Value partition(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("partition", arguments, {"sep"});
  parameters.require(0);
  const std::string &text = self.as_string(), &separator = parameters.text(0, {});
  if (separator.empty()) fail("empty separator");
  box.step_bytes(text.size());
  if (from_right) box.step_bytes(text.size() * separator.size());
  const size_t at = from_right ? text.rfind(separator) : python::find(text, separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {self, Value::text(box, ""), Value::text(box, "")};
    if (from_right) std::swap(parts[0], parts[2]);
  } else {
    parts = {Value::text(box, text.substr(0, at)), Value::text(box, separator),
             Value::text(box, text.substr(at + separator.size()))};
  }
  return Value::tuple(box, std::move(parts));
}

template <bool suffix>
Value remove_affix(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("removeprefix", arguments, {"prefix"});
  parameters.require(0);
  std::string_view text = self.as_string();
  const std::string& affix = parameters.text(0, {});
  if (suffix && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!suffix && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Value::text(box, std::string(text));
}

enum class Pad { kLeft, kRight, kBoth, kZeros };
template <Pad pad>
Value padded(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("padding", arguments, {"width", "fillchar"});
  parameters.require(0);
  static const std::string kSpace = " ", kZero = "0";
  const std::string& fill = pad == Pad::kZeros ? kZero : parameters.text(1, kSpace);
  if (python::length(fill) != 1) fail("The fill character must be exactly one character long");
  std::string text = self.as_string();
  const int64_t width = parameters.integer(0, 0), missing = width - python::length(text);
  if (missing <= 0) return self;
  const Charge scratch(box, static_cast<size_t>(missing) * fill.size() + text.size());
  const int64_t left = pad == Pad::kBoth ? missing / 2 + (missing & width & 1) : pad == Pad::kRight ? 0 : missing;
  const auto filling = [&](int64_t times) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += fill;
    return out;
  };
  if (pad == Pad::kZeros) {
    const bool sign = text.starts_with('-') || text.starts_with('+');
    return Value::text(box, text.insert(sign ? 1 : 0, filling(missing)));
  }
  return Value::text(box, filling(left) + text + filling(missing - left));
}

Value expandtabs(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("expandtabs", arguments, {"tabsize"});
  const int64_t size = std::clamp<int64_t>(parameters.integer(0, 8), 0, 256);
  const std::string& text = self.as_string();
  Charge scratch(box, text.size());
  std::string out;
  int64_t column = 0;
  for (const char c : text) {
    if (c == '\t') {
      const int64_t blanks = size == 0 ? 0 : size - column % size;
      scratch.more(static_cast<size_t>(blanks));
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      out += c;
      if (c == '\n' || c == '\r') {
        column = 0;
      } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
        ++column;
      }
    }
  }
  return Value::text(box, std::move(out));
}

Value not_supported(Sandbox&, const Value& self, const Arguments&) {
  fail(fmt::format("this method of '{}' is not supported", self.type_name()));
}

using Methods = std::unordered_map<std::string_view, MethodFunction>;

const Methods& text_methods() {
  static const Methods methods = {
      {"strip", strip<Side::kBoth>},
      {"lstrip", strip<Side::kLeft>},
      {"rstrip", strip<Side::kRight>},
      {"upper", mapped<python::upper>},
      {"lower", mapped<python::lower>},
      {"casefold", mapped<python::casefold>},
      {"title", mapped<python::title>},
      {"capitalize", mapped<python::capitalize>},
      {"swapcase", mapped<python::swapcase>},
      {"isupper", tested<python::is_upper>},
      {"islower", tested<python::is_lower>},
      {"istitle", tested<python::is_title>},
      {"isspace", tested<static_cast<bool (*)(std::string_view)>(python::is_space)>},
      {"isdigit", tested<python::is_digit>},
      {"isnumeric", tested<python::is_numeric>},
      {"isdecimal", tested<python::is_decimal>},
      {"isalpha", tested<python::is_alpha>},
      {"isalnum", tested<python::is_alnum>},
      {"isascii", tested<python::is_ascii>},
      {"isidentifier", tested<python::is_identifier>},
      {"isprintable", tested<static_cast<bool (*)(std::string_view)>(python::is_printable)>},
      {"split", split<false>},
      {"rsplit", split<true>},
      {"splitlines", splitlines},
      {"startswith", starts_with<false>},
      {"endswith", starts_with<true>},
      {"find", find<false, Missing::kMinusOne>},
      {"rfind", find<true, Missing::kMinusOne>},
      {"index", find<false, Missing::kError>},
      {"rindex", find<true, Missing::kError>},
      {"count", count_text},
      {"join", join},
      {"replace", replace_text},
      {"format", format},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"ljust", padded<Pad::kRight>},
      {"rjust", padded<Pad::kLeft>},
      {"center", padded<Pad::kBoth>},
      {"zfill", padded<Pad::kZeros>},
      {"expandtabs", expandtabs},
      {"encode", not_supported},
      {"translate", not_supported},
      {"maketrans", not_supported},
      {"format_map", not_supported},
  };
  return methods;
}

// ---- list and tuple

Value count_items(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"value"});
  int64_t count = 0;
  for (const Value& item : self.items())
    count += item.same_as(parameters.require(0)) || equal(box, item, parameters.require(0)) ? 1 : 0;
  return Value::integer(count);
}

Value index_of(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("index", arguments, {"value", "start", "stop"});
  const auto size = static_cast<int64_t>(self.items().size());
  const auto bound = [&](size_t parameter, int64_t otherwise) {
    const int64_t at = parameters.integer(parameter, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  for (int64_t i = bound(1, 0); i < bound(2, size); ++i) {
    const Value& item = self.items()[static_cast<size_t>(i)];
    if (item.same_as(parameters.require(0)) || equal(box, item, parameters.require(0))) return Value::integer(i);
  }
  fail(fmt::format("{} is not in {}", repr(box, parameters.require(0)), self.type_name()));
}

Value copy(Sandbox&, const Value& self, const Arguments& arguments) {
  const Parameters none("copy", arguments, {});
  return self;  // Nothing changes it.
}

const Methods& list_methods() {
  static const Methods methods = {{"count", count_items}, {"index", index_of}, {"copy", copy}};
  return methods;
}

const Methods& tuple_methods() {
  static const Methods methods = {{"count", count_items}, {"index", index_of}};
  return methods;
}

// ---- dict

Value get(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters parameters("get", arguments, {"key", "default"});
  const Value* const found = self.as_dict().find(box, parameters.require(0));
  if (found != nullptr) return *found;
  return parameters[1] == nullptr ? Value() : *parameters[1];
}

enum class View { kItems, kKeys, kValues };
template <View view>
Value dict_view(Sandbox& box, const Value& self, const Arguments& arguments) {
  const Parameters none("dict view", arguments, {});
  constexpr std::string_view kTypes[] = {"dict_items", "dict_keys", "dict_values"};
  std::vector<Value> items;
  const auto& entries = self.as_dict().entries();
  const Charge scratch(box, entries.size() * sizeof(Value));
  items.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    items.push_back(view == View::kItems ? Value::tuple(box, {key, value}) : view == View::kKeys ? key : value);
  }
  return Value::object(std::make_shared<DictView>(box, kTypes[static_cast<int>(view)], std::move(items)));
}

const Methods& dict_methods() {
  static const Methods methods = {{"get", get},
                                  {"items", dict_view<View::kItems>},
                                  {"keys", dict_view<View::kKeys>},
                                  {"values", dict_view<View::kValues>},
                                  {"copy", copy},
                                  {"fromkeys", not_supported}};
  return methods;
}

// ---- int and float

Value is_integer(Sandbox&, const Value& self, const Arguments& arguments) {
  const Parameters none("is_integer", arguments, {});
  return Value::boolean(std::isfinite(self.as_float()) && std::floor(self.as_float()) == self.as_float());
}

const Methods& float_methods() {
  static const Methods methods = {{"is_integer", is_integer}};
  return methods;
}

const Methods* methods_of(Kind kind) {
  switch (kind) {
    case Kind::kString:
      return &text_methods();
    case Kind::kList:
      return &list_methods();
    case Kind::kTuple:
      return &tuple_methods();
    case Kind::kDict:
      return &dict_methods();
    case Kind::kFloat:
      return &float_methods();
    default:
      return nullptr;
  }
}

bool changes(Kind kind, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto is_in = [&](const auto& names) { return std::find(std::begin(names), std::end(names), name) != std::end(names); };
  return kind == Kind::kList ? is_in(kList) : kind == Kind::kDict && is_in(kDict);
}

class BoundMethod : public Object {
 public:
  BoundMethod(Sandbox& box, Value self, std::string_view name, MethodFunction method)
      : Object(box), self_(std::move(self)), name_(name), method_(method) {
    depth = self_.depth();
  }
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Sandbox&) const override {
    return fmt::format("<built-in method {} of {} object>", name_, self_.type_name());
  }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments& arguments) override { return method_(box, self_, arguments); }

 private:
  const Value self_;
  const std::string_view name_;  ///< in the table of methods
  const MethodFunction method_;
};

}  // namespace

std::optional<Value> find_method(Sandbox& box, const Value& self, std::string_view name) {
  const Methods* const methods = methods_of(self.kind());
  if (methods == nullptr) return {};
  if (const auto found = methods->find(name); found != methods->end()) {
    return Value::object(std::make_shared<BoundMethod>(box, self, found->first, found->second));
  }
  if (changes(self.kind(), name)) {
    return Value::undefined(box, fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, self.type_name()));
  }
  return {};
}

}  // namespace weft::jinja
