// Jinja's filters for lists and other values with elements.

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filter_parts.h"
#include "text/python_text.h"

namespace weft::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

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

const FilterTable& sequence_filters() {
  static const FilterTable filters = {
      {"batch", batch},
      {"dictsort", dictsort},
      {"first", first},
      {"groupby", groupby},
      {"items", items},
      {"join", join},
      {"last", last},
      {"list", to_list},
      {"map", map},
      {"max", extreme<Order::kGreater>},
      {"min", extreme<Order::kLess>},
      {"reject", choose<false, false>},
      {"rejectattr", choose<false, true>},
      {"reverse", reverse},
      {"select", choose<true, false>},
      {"selectattr", choose<true, true>},
      {"slice", slices},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  return filters;
}

}  // namespace weft::jinja
