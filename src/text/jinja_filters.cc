// Jinja's filters, and the tojson of chat templates. Text is never marked as safe for HTML: `safe` changes nothing, and
// `escape` gives plain text.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_json.h"
#include "text/jinja_operators.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

/// The text of an input: filters for text take anything.
class TextInput {
 public:
  TextInput(Sandbox& box, const Value& value)
      : own_(value.is_string() ? "" : str(box, value)), text_(value.is_string() ? value.as_string() : own_) {
    box.step_bytes(text_.size());
  }
  const std::string& operator*() const { return text_; }

 private:
  const std::string own_;
  const std::string& text_;
};

Value generator(Sandbox& box, std::vector<Value> items) {
  return Value::object(std::make_shared<Generator>(box, std::move(items)));
}

/// Elements that a filter collects, counted as memory.
class Collected {
 public:
  explicit Collected(Sandbox& box) : charge_(box, 0) {}
  void add(Value value) {
    charge_.more(2 * sizeof(Value));
    items_.push_back(std::move(value));
  }
  std::vector<Value> take() { return std::move(items_); }

 private:
  Charge charge_;
  std::vector<Value> items_;
};

// ---- By attribute

/// "a.b.0" of an element, as `attribute=` names it.
class AttributeGetter {
 public:
  AttributeGetter(Sandbox& box, const Value* attribute, bool ignore_case = false, const Value* otherwise = nullptr)
      : box_(box), ignore_case_(ignore_case), otherwise_(otherwise != nullptr && !otherwise->is_none() ? otherwise : nullptr) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_string()) {
      parts_.push_back(*attribute);
      return;
    }
    for (const std::string_view part : python::split(attribute->as_string(), ".", -1)) {
      const auto index = python::is_digit(part) ? python::to_integer(part) : std::nullopt;
      parts_.push_back(index ? Value::integer(*index) : Value::text(box, std::string(part)));
    }
  }

  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      item = get_item(box_, item, part);
      if (otherwise_ != nullptr && item.is_undefined()) item = *otherwise_;
    }
    if (ignore_case_ && item.is_string()) return Value::text(box_, python::lower(item.as_string()));
    return item;
  }

 private:
  Sandbox& box_;
  std::vector<Value> parts_;
  bool ignore_case_;
  const Value* otherwise_;
};

// ---- Text

template <std::string (*map)(std::string_view)>
Value mapped(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("text filter", arguments, {});
  const TextInput text(box, input);
  box.step_bytes((*text).size() * 4);
  const Charge scratch(box, 3 * (*text).size());
  return Value::text(box, map(*text));
}

/// Jinja's own idea of a title: words begin after blanks, hyphens and opening brackets.
std::string title(std::string_view text) {
  const auto separates = [](char32_t code) {
    return python::is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
  };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t first = character_at(text, at).bytes;
    const bool blank = separates(character_at(text, at).code);
    size_t end = at + first;
    while (end < text.size() && separates(character_at(text, end).code) == blank) end += character_at(text, end).bytes;
    out += python::upper(text.substr(at, first)) + python::lower(text.substr(at + first, end - at - first));
    at = end;
  }
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t which = kSpecial.find(c);
    if (which == std::string_view::npos) {
      out += c;
    } else {
      out += kNames[which];
    }
  }
  return out;
}

Value escape(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("escape", arguments, {});
  const TextInput text(box, input);
  const Charge scratch(box, 5 * (*text).size());
  return Value::text(box, escaped(*text));
}

Value to_text(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("string", arguments, {});
  return input.is_string() ? input : Value::text(box, str(box, input));
}

Value trim(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"});
  const TextInput text(box, input);
  if (parameters[0] == nullptr || parameters[0]->is_none())
    return Value::text(box, std::string(python::strip(*text, python::Side::kBoth)));
  const std::string& set = parameters.text(0, {});
  box.step_bytes((*text).size() + set.size());
  return Value::text(box, std::string(python::strip(*text, python::Side::kBoth, set)));
}

Value replace(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"});
  const TextInput text(box, input), old(box, parameters.require(0)), fresh(box, parameters.require(1));
  int64_t left = parameters[2] == nullptr || parameters[2]->is_none() ? -1 : parameters.integer(2, -1);
  if (left < 0) left = INT64_MAX;
  const std::string_view from = *text;
  std::string out;
  Charge scratch(box, from.size());
  size_t at = 0;
  while (left > 0) {
    const size_t found = (*old).empty() ? at : python::find(from, *old, at);
    if (found == std::string_view::npos) break;
    scratch.more((*fresh).size());
    out.append(from, at, found - at);
    out += *fresh;
    --left;
    at = found + (*old).size();
    if (!(*old).empty()) continue;
    if (at >= from.size()) break;
    // Nothing is found before each character, and at the end.
    const size_t bytes = character_at(from, at).bytes;
    out.append(from, at, bytes);
    at += bytes;
  }
  if (at < from.size()) out.append(from, at);
  return Value::text(box, std::move(out));
}

Value indent(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"});
  require_defined(input);
  if (!input.is_string()) fail(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", input.type_name()));
  std::string margin;
  if (parameters[0] != nullptr && parameters[0]->is_string()) {
    margin = parameters[0]->as_string();
  } else {
    constexpr int64_t kMost = 1024;
    const int64_t width = parameters.integer(0, 4);
    if (width > kMost) fail(fmt::format("indent() takes a width of at most {}", kMost));
    margin.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const std::string text = input.as_string() + "\n";  // so that what ends with a line end keeps it
  box.step_bytes(text.size());
  const std::vector<std::string_view> lines = python::split_lines(text);
  const Charge scratch(box, text.size() + lines.size() * (sizeof(std::string_view) + margin.size()));
  const bool blank = parameters.flag(2, false);
  std::string out = parameters.flag(1, false) ? margin : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out += '\n';
    if (i != 0 && (blank || !lines[i].empty())) out += margin;
    out += lines[i];
  }
  return Value::text(box, std::move(out));
}

Value center(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"});
  const TextInput text(box, input);
  const auto method = find_method(box, Value::text(box, *text), "center");
  return method->as_object().call(box, {{Value::integer(parameters.integer(0, 80))}, {}});
}

Value truncate(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (!input.is_string()) {
    const auto size = length(box, input);
    if (!size) fail(fmt::format("object of type '{}' has no len()", input.type_name()));
    if (*size - parameters.integer(3, 5) <= parameters.integer(0, 255)) return input;
    fail("truncate() takes a text");
  }
  const TextInput text(box, input);
  static const std::string kDots = "...";
  const std::string& end = parameters.text(2, kDots);
  const int64_t most = parameters.integer(0, 255),
                slack = parameters[3] == nullptr || parameters[3]->is_none() ? 5 : parameters.integer(3, 5);
  const int64_t kept = most - python::length(end);
  if (kept < 0) fail(fmt::format("expected length >= {}, got {}", python::length(end), most));
  if (slack < 0) fail(fmt::format("expected leeway >= 0, got {}", slack));
  if (python::length(*text) - slack <= most) return Value::text(box, *text);
  std::string_view head = std::string_view(*text).substr(0, python::byte_offset(*text, kept));
  if (!parameters.flag(1, false)) head = head.substr(0, head.rfind(' '));
  return Value::text(box, std::string(head) + end);
}

Value word_count(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("wordcount", arguments, {});
  const TextInput text(box, input);
  int64_t words = 0;
  bool in_word = false;
  for (size_t at = 0; at < (*text).size();) {
    const Character character = character_at(*text, at);
    const bool is_word = python::is_word_character(character.code);
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
    at += character.bytes;
  }
  return Value::integer(words);
}

Value format(Sandbox& box, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    fail("can't handle positional and keyword arguments at the same time");
  const TextInput text(box, input);
  if (arguments.named.empty()) return Value::text(box, format_percent(box, *text, Value::tuple(box, arguments.positional)));
  const auto named = std::make_shared<Dict>(box);
  for (const auto& [name, value] : arguments.named) named->set(box, Value::text(box, name), value);
  return Value::text(box, format_percent(box, *text, Value::dict(named)));
}

Value tojson(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = parameters.flag(0, false);
  style.sort_keys = parameters.flag(3, false);
  if (parameters[1] != nullptr && !parameters[1]->is_none()) {
    constexpr int64_t kMost = 64;
    style.has_indent = true;
    style.item_separator = ",";
    style.indent = parameters[1]->is_string()
                       ? parameters[1]->as_string()
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(parameters.integer(1, 0), 0, kMost)), ' ');
    if (style.indent.size() > kMost) fail(fmt::format("tojson() takes an indent of at most {}", kMost));
  }
  if (parameters[2] != nullptr && !parameters[2]->is_none()) {
    const std::vector<Value> both = elements(box, *parameters[2]);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) fail("tojson(): separators must be two texts");
    style.item_separator = both[0].as_string();
    style.key_separator = both[1].as_string();
  }
  return Value::text(box, to_json(box, input, style));
}

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

// ---- Lists

Value first(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("first", arguments, {});
  auto item = Iterator(box, input).next();
  return item ? *item : Value::undefined(box, "No first item, sequence was empty.");
}

/// Elements of what Python can walk over backwards.
std::vector<Value> reversible(Sandbox& box, const Value& input) {
  if (input.is_object() && !input.as_object().length()) fail(fmt::format("'{}' object is not reversible", input.type_name()));
  return elements(box, input);
}

Value last(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("last", arguments, {});
  if (input.is_sequence() && !input.items().empty()) return input.items().back();
  if (input.is_string() && !input.as_string().empty()) return get_item(box, input, Value::integer(-1));
  const std::vector<Value> items = reversible(box, input);
  return items.empty() ? Value::undefined(box, "No last item, sequence was empty.") : items.back();
}

Value to_list(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("list", arguments, {});
  return Value::list(box, elements(box, input));
}

Value join(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"});
  const std::string separator = parameters[0] == nullptr ? "" : str(box, *parameters[0]);
  const AttributeGetter get(box, parameters[1]);
  std::string out;
  Charge scratch(box, 0);
  bool is_first = true;
  Iterator walk(box, input);
  while (auto item = walk.next()) {
    const std::string text = str(box, get(*std::move(item)));
    scratch.more(text.size() + (is_first ? 0 : separator.size()));
    if (!is_first) out += separator;
    is_first = false;
    out += text;
  }
  return Value::text(box, std::move(out));
}

Value reverse(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("reverse", arguments, {});
  if (input.is_string()) return slice(box, input, {}, {}, Value::integer(-1));
  std::vector<Value> items = elements(box, input);
  std::reverse(items.begin(), items.end());
  const std::string_view type = input.kind() == Kind::kList ? "list_reverseiterator"
                                : input.is_dict()           ? "dict_reversekeyiterator"
                                                            : "reversed";
  return Value::object(std::make_shared<Generator>(box, std::move(items), type));
}

Value items(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("items", arguments, {});
  Collected pairs(box);
  if (!input.is_undefined()) {
    if (!input.is_dict()) fail("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : input.as_dict().entries()) pairs.add(Value::tuple(box, {key, value}));
  }
  return generator(box, pairs.take());
}

/// Items with what they are sorted by.
struct Keyed {
  Value key, item;
};

std::vector<Value> sorted(Sandbox& box, std::vector<Keyed> keyed, bool is_reverse) {
  const Charge scratch(box, keyed.size() * 2 * sizeof(Keyed));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return is_reverse ? ordered(box, Order::kLess, b.key, a.key) : ordered(box, Order::kLess, a.key, b.key);
  });
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (Keyed& one : keyed) out.push_back(std::move(one.item));
  return out;
}

Value sort(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool ignore_case = !parameters.flag(1, false);
  std::vector<AttributeGetter> getters;
  if (parameters[2] != nullptr && parameters[2]->is_string()) {
    for (const std::string_view one : python::split(parameters[2]->as_string(), ",", -1)) {
      const Value attribute = Value::text(box, std::string(one));
      getters.emplace_back(box, &attribute, ignore_case);
    }
  } else {
    getters.emplace_back(box, parameters[2], ignore_case);
  }
  std::vector<Keyed> keyed;
  for (const Value& item : elements(box, input)) {
    std::vector<Value> key;
    for (const AttributeGetter& get : getters) key.push_back(get(item));
    keyed.push_back({Value::list(box, std::move(key)), item});
  }
  return Value::list(box, sorted(box, std::move(keyed), parameters.flag(0, false)));
}

Value dictsort(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  static const std::string kKey = "key";
  const std::string& by = parameters.text(1, kKey);
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  require_defined(input);
  if (!input.is_dict()) fail(fmt::format("'{} object' has no attribute 'items'", input.type_name()));
  const AttributeGetter fold(box, nullptr, !parameters.flag(0, false));
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : input.as_dict().entries()) {
    keyed.push_back({fold(by == "key" ? key : value), Value::tuple(box, {key, value})});
  }
  return Value::list(box, sorted(box, std::move(keyed), parameters.flag(2, false)));
}

Value groupby(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const AttributeGetter get(box, &parameters.require(0), !parameters.flag(2, false), parameters[1]);
  const AttributeGetter shown(box, &parameters.require(0), false, parameters[1]);
  std::vector<Keyed> keyed;
  for (const Value& item : elements(box, input)) keyed.push_back({get(item), item});
  const std::vector<Value> all = sorted(box, std::move(keyed), false);
  Collected groups(box);
  for (size_t begin = 0; begin < all.size();) {
    const Value key = get(all[begin]);
    std::vector<Value> group;
    size_t end = begin;
    for (; end < all.size() && equal(box, get(all[end]), key); ++end) group.push_back(all[end]);
    groups.add(Value::tuple(box, {shown(all[begin]), Value::list(box, std::move(group))}));
    begin = end;
  }
  return Value::list(box, groups.take());
}

Value unique(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"});
  const AttributeGetter get(box, parameters[1], !parameters.flag(0, false));
  Dict seen(box);
  Collected out(box);
  Iterator walk(box, input);
  while (auto item = walk.next()) {
    Value key = get(*item);
    if (seen.find(box, key) != nullptr) continue;
    seen.set(box, std::move(key), {});
    out.add(*std::move(item));
  }
  return generator(box, out.take());
}

template <Order better>
Value extreme(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("min or max", arguments, {"case_sensitive", "attribute"});
  const AttributeGetter get(box, parameters[1], !parameters.flag(0, false));
  Iterator walk(box, input);
  auto best = walk.next();
  if (!best) return Value::undefined(box, "No aggregated item, sequence was empty.");
  Value best_key = get(*best);
  while (auto item = walk.next()) {
    Value key = get(*item);
    if (!ordered(box, better, key, best_key)) continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"});
  const AttributeGetter get(box, parameters[0]);
  Value total = parameters[1] == nullptr ? Value::integer(0) : *parameters[1];
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  Iterator walk(box, input);
  while (auto item = walk.next()) total = calculate(box, BinaryOperator::kAdd, total, get(*std::move(item)));
  return total;
}

Value batch(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"});
  parameters.require(0);
  const int64_t size = parameters.integer(0, 0);
  Collected out(box), row(box);
  int64_t in_row = 0;
  Iterator walk(box, input);
  while (auto item = walk.next()) {
    if (in_row > 0 && in_row == size) {
      out.add(Value::list(box, row.take()));
      in_row = 0;
    }
    row.add(*std::move(item));
    ++in_row;
  }
  if (in_row > 0) {
    if (parameters[1] != nullptr && !parameters[1]->is_none()) {
      for (; in_row < size; ++in_row) {
        box.step();
        row.add(*parameters[1]);
      }
    }
    out.add(Value::list(box, row.take()));
  }
  return generator(box, out.take());
}

Value slices(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"});
  parameters.require(0);
  const int64_t count = parameters.integer(0, 0);
  const std::vector<Value> all = elements(box, input);
  if (count == 0) fail("integer division or modulo by zero");
  const auto size = static_cast<int64_t>(all.size());
  const int64_t least = size / std::max<int64_t>(count, 1), larger = size % std::max<int64_t>(count, 1);
  Collected out(box);
  auto at = all.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = at + least + (i < larger ? 1 : 0);
    std::vector<Value> part(at, end);
    at = end;
    if (parameters[1] != nullptr && !parameters[1]->is_none() && i >= larger) part.push_back(*parameters[1]);
    out.add(Value::list(box, std::move(part)));
  }
  return generator(box, out.take());
}

// ---- Filters over filters and tests

Arguments without_first(const Arguments& arguments, size_t count) {
  return {{arguments.positional.begin() + static_cast<ptrdiff_t>(std::min(count, arguments.positional.size())),
           arguments.positional.end()},
          arguments.named};
}

Value map(Sandbox& box, const Value& input, const Arguments& arguments) {
  if (!input.truth()) return generator(box, {});
  const Value *attribute = nullptr, *otherwise = nullptr;
  if (arguments.positional.empty()) {
    const Parameters parameters("map", arguments, {"attribute", "default"});
    attribute = parameters[0];
    otherwise = parameters[1];
    if (attribute == nullptr) fail("map requires a filter argument");
  }
  Collected out(box);
  Iterator walk(box, input);
  if (attribute != nullptr) {
    const AttributeGetter get(box, attribute, false, otherwise);
    while (auto item = walk.next()) out.add(get(*std::move(item)));
    return generator(box, out.take());
  }
  const std::string name = str(box, arguments.positional[0]);
  const Arguments rest = without_first(arguments, 1);
  const Sandbox::Level level(box);
  while (const auto item = walk.next()) out.add(apply_filter(box, name, *item, rest));
  return generator(box, out.take());
}

template <bool wanted, bool by_attribute>
Value choose(Sandbox& box, const Value& input, const Arguments& arguments) {
  constexpr size_t kBefore = by_attribute ? 1 : 0;
  if (!input.truth()) return generator(box, {});
  if (arguments.positional.size() < kBefore) fail("Missing parameter for attribute name");
  const AttributeGetter get(box, by_attribute ? &arguments.positional[0] : nullptr);
  const bool has_test = arguments.positional.size() > kBefore;
  const std::string test = has_test ? str(box, arguments.positional[kBefore]) : "";
  const Arguments rest = without_first(arguments, kBefore + 1);
  Collected out(box);
  Iterator walk(box, input);
  while (auto item = walk.next()) {
    const Value subject = get(*item);
    const bool holds = has_test ? apply_test(box, test, subject, rest) : subject.truth();
    if (holds == wanted) out.add(*std::move(item));
  }
  return generator(box, out.take());
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> filters = {
      {"abs", absolute},
      {"attr", attr},
      {"batch", batch},
      {"capitalize", mapped<python::capitalize>},
      {"center", center},
      {"count", length_of},
      {"d", default_value},
      {"default", default_value},
      {"dictsort", dictsort},
      {"e", escape},
      {"escape", escape},
      {"first", first},
      {"float", to_float},
      {"forceescape", escape},
      {"format", format},
      {"groupby", groupby},
      {"indent", indent},
      {"int", to_integer},
      {"items", items},
      {"join", join},
      {"last", last},
      {"length", length_of},
      {"list", to_list},
      {"lower", mapped<python::lower>},
      {"map", map},
      {"max", extreme<Order::kGreater>},
      {"min", extreme<Order::kLess>},
      {"reject", choose<false, false>},
      {"rejectattr", choose<false, true>},
      {"replace", replace},
      {"reverse", reverse},
      {"round", round},
      {"safe", identity},
      {"select", choose<true, false>},
      {"selectattr", choose<true, true>},
      {"slice", slices},
      {"sort", sort},
      {"string", to_text},
      {"sum", sum},
      {"title", mapped<title>},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"unique", unique},
      {"upper", mapped<python::upper>},
      {"wordcount", word_count},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace weft::jinja
