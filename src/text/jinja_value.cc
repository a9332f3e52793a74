#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "text/jinja_operators.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

constexpr size_t kCellBytes = 96;  // a cell, its counters and what the allocator needs
constexpr size_t kDictEntryBytes = sizeof(Dict::Entry) + 64;

struct Text : Cell {
  Text(Sandbox& box, std::string value) : Cell(box, kCellBytes + value.size()), text(std::move(value)) {}
  const std::string text;
};

struct Sequence : Cell {
  Sequence(Sandbox& box, std::vector<Value> values)
      : Cell(box, kCellBytes + values.size() * sizeof(Value)), items(std::move(values)) {}
  const std::vector<Value> items;
};

int checked_depth(int depth) {
  if (depth > kMaxValueDepth) throw OperationError(fmt::format("values nest too deeply: more than {} levels", kMaxValueDepth));
  return depth;
}

int depth_above(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return checked_depth(depth + 1);
}

std::shared_ptr<Cell> sequence(Sandbox& box, std::vector<Value> items) {
  const int depth = depth_above(items);
  box.step(static_cast<int64_t>(items.size()));
  auto cell = std::make_shared<Sequence>(box, std::move(items));
  cell->depth = depth;
  return cell;
}

/// "unhashable type" for what Python does not take as a key.
void check_hashable(const Value& key) {
  using Kind = Value::Kind;
  if (key.kind() == Kind::kList || key.kind() == Kind::kDict) {
    throw OperationError(fmt::format("unhashable type: '{}'", key.type_name()));
  }
  if (key.kind() == Kind::kTuple) std::for_each(key.items().begin(), key.items().end(), check_hashable);
}

}  // namespace

Value Value::boolean(bool value) {
  Value made(Kind::kBool, nullptr);
  made.number_.integer = value ? 1 : 0;
  return made;
}

Value Value::integer(int64_t value) {
  Value made(Kind::kInt, nullptr);
  made.number_.integer = value;
  return made;
}

Value Value::number(double value) {
  Value made(Kind::kFloat, nullptr);
  made.number_.real = value;
  return made;
}

Value Value::text(Sandbox& box, std::string text) {
  box.step_bytes(text.size());
  return {Kind::kString, std::make_shared<Text>(box, std::move(text))};
}

Value Value::big_integer(Sandbox& box, std::string digits) {
  return {Kind::kBigInt, std::make_shared<Text>(box, std::move(digits))};
}

Value Value::undefined(Sandbox& box, std::string why) {
  return {Kind::kUndefined, std::make_shared<Text>(box, std::move(why))};
}

Value Value::list(Sandbox& box, std::vector<Value> items) { return {Kind::kList, sequence(box, std::move(items))}; }
Value Value::tuple(Sandbox& box, std::vector<Value> items) { return {Kind::kTuple, sequence(box, std::move(items))}; }
Value Value::dict(std::shared_ptr<const Dict> dict) { return {Kind::kDict, std::const_pointer_cast<Dict>(std::move(dict))}; }
Value Value::object(std::shared_ptr<Object> object) { return {Kind::kObject, std::move(object)}; }

const std::string& Value::as_string() const {
  WEFT_CHECK(kind_ == Kind::kString || kind_ == Kind::kBigInt || kind_ == Kind::kUndefined);
  return static_cast<const Text&>(*cell_).text;
}

const std::vector<Value>& Value::items() const {
  WEFT_CHECK(is_sequence());
  return static_cast<const Sequence&>(*cell_).items;
}

const Dict& Value::as_dict() const {
  WEFT_CHECK(is_dict());
  return static_cast<const Dict&>(*cell_);
}

Object& Value::as_object() const {
  WEFT_CHECK(is_object());
  return static_cast<Object&>(*cell_);
}

bool Value::same_as(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (cell_ || other.cell_) return cell_ == other.cell_;
  return is_none() || (kind_ == Kind::kFloat ? number_.real == other.number_.real : number_.integer == other.number_.integer);
}

std::string Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      break;
  }
  return as_object().type_name();
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return number_.integer != 0;
    case Kind::kFloat:
      return number_.real != 0;
    case Kind::kString:
      return !as_string().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return !as_dict().entries().empty();
    case Kind::kBigInt:
      return true;
    case Kind::kObject:
      break;
  }
  return as_object().truth();
}

Dict::Dict(Sandbox& box) : Cell(box, kCellBytes) { depth = 1; }

const size_t* Dict::position(Sandbox& box, const Value& key) const {
  if (key.is_string()) {
    const auto found = by_text_.find(key.as_string());
    return found == by_text_.end() ? nullptr : &found->second;
  }
  check_hashable(key);
  for (const size_t& at : others_) {
    box.step();
    if (equal(box, entries_[at].first, key)) return &at;
  }
  return nullptr;
}

void Dict::set(Sandbox& box, Value key, Value value) {
  box.step();
  depth = checked_depth(std::max(depth, 1 + std::max(key.depth(), value.depth())));
  if (const size_t* const at = position(box, key); at != nullptr) {
    entries_[*at].second = std::move(value);
    return;
  }
  charge.more(kDictEntryBytes);
  entries_.emplace_back(std::move(key), std::move(value));
  const size_t at = entries_.size() - 1;
  const Value& kept = entries_.back().first;
  if (kept.is_string()) {
    by_text_.emplace(kept.as_string(), at);  // The text stays where it is: its cell is shared, not copied.
  } else {
    others_.push_back(at);
  }
}

const Value* Dict::find(std::string_view key) const {
  const auto found = by_text_.find(key);
  return found == by_text_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(Sandbox& box, const Value& key) const {
  const size_t* const at = position(box, key);
  return at == nullptr ? nullptr : &entries_[*at].second;
}

Object::Object(Sandbox& box, size_t bytes) : Cell(box, kCellBytes + bytes) {}
std::string Object::repr(Sandbox&) const { return fmt::format("<{} object>", type_name()); }
std::optional<Value> Object::next(Sandbox&, size_t&) { return {}; }
std::optional<Value> Object::attribute(Sandbox&, std::string_view) { return {}; }
std::optional<Value> Object::element(Sandbox&, const Value&) { return {}; }
Value Object::call(Sandbox&, const Arguments&) {
  throw OperationError(fmt::format("'{}' object is not callable", type_name()));
}
bool Object::equals(Sandbox&, const Object& other) const { return this == &other; }

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict() ||
         (value.is_object() && value.as_object().is_iterable());
}

Iterator::Iterator(Sandbox& box, Value value) : box_(box), value_(std::move(value)) {
  if (!is_iterable(value_)) throw OperationError(fmt::format("'{}' object is not iterable", value_.type_name()));
}

std::optional<Value> Iterator::next() {
  box_.step();
  if (value_.is_sequence()) {
    const auto& items = value_.items();
    return cursor_ < items.size() ? std::optional(items[cursor_++]) : std::nullopt;
  }
  if (value_.is_string()) {
    const std::string& text = value_.as_string();
    if (cursor_ == text.size()) return {};
    const size_t bytes = character_at(text, cursor_).bytes;
    cursor_ += bytes;
    return Value::text(box_, text.substr(cursor_ - bytes, bytes));
  }
  if (value_.is_dict()) {
    const auto& entries = value_.as_dict().entries();
    return cursor_ < entries.size() ? std::optional(entries[cursor_++].first) : std::nullopt;
  }
  return value_.is_object() ? value_.as_object().next(box_, cursor_) : std::nullopt;
}

std::vector<Value> elements(Sandbox& box, const Value& value) {
  if (value.is_sequence()) {
    box.step(static_cast<int64_t>(value.items().size()));
    const Charge scratch(box, value.items().size() * sizeof(Value));
    return value.items();
  }
  std::vector<Value> all;
  Charge scratch(box, 0);
  Iterator walk(box, value);
  while (auto item = walk.next()) {
    scratch.more(2 * sizeof(Value));
    all.push_back(*std::move(item));
  }
  return all;
}

Range::Range(Sandbox& box, int64_t start, int64_t stop, int64_t step) : Object(box), start_(start), stop_(stop), step_(step) {
  constexpr int64_t kMost = 100'000;  // Jinja's sandbox has this bound too.
  if (step == 0) throw OperationError("range() arg 3 must not be zero");
  const __int128 from = start, to = stop, by = step;
  const __int128 count = by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by;
  if (count > kMost) throw OperationError(fmt::format("Range too big. The sandbox blocks ranges larger than {}", kMost));
  count_ = count < 0 ? 0 : static_cast<int64_t>(count);
}

std::string Range::repr(Sandbox&) const {
  return step_ == 1 ? fmt::format("range({}, {})", start_, stop_) : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::optional<Value> Range::next(Sandbox&, size_t& cursor) {
  if (static_cast<int64_t>(cursor) >= count_) return {};
  return Value::integer(start_ + step_ * static_cast<int64_t>(cursor++));
}

std::optional<Value> Range::element(Sandbox&, const Value& key) {
  if (!key.is_int()) return {};
  const int64_t at = key.as_int() < 0 ? key.as_int() + count_ : key.as_int();
  if (at < 0 || at >= count_) return {};
  return Value::integer(start_ + step_ * at);
}

bool Range::equals(Sandbox&, const Object& other) const {
  const auto* const range = dynamic_cast<const Range*>(&other);
  return range != nullptr && count_ == range->count_ &&
         (count_ == 0 || (start_ == range->start_ && (count_ == 1 || step_ == range->step_)));
}

Generator::Generator(Sandbox& box, std::vector<Value> items, std::string_view type)
    : Object(box, items.size() * sizeof(Value)), items_(std::move(items)), type_(type) {
  depth = depth_above(items_);
}

std::optional<Value> Generator::next(Sandbox&, size_t&) {
  return given_ < items_.size() ? std::optional(items_[given_++]) : std::nullopt;
}

DictView::DictView(Sandbox& box, std::string_view type, std::vector<Value> items)
    : Object(box, items.size() * sizeof(Value)), type_(type), items_(std::move(items)) {
  depth = depth_above(items_);
}

std::string DictView::repr(Sandbox& box) const {
  return fmt::format("{}({})", type_, jinja::repr(box, Value::list(box, items_)));
}

std::optional<Value> DictView::next(Sandbox&, size_t& cursor) {
  return cursor < items_.size() ? std::optional(items_[cursor++]) : std::nullopt;
}

/// Keys and items are sets in Python, values are not.
bool DictView::equals(Sandbox& box, const Object& other) const {
  const auto* const view = dynamic_cast<const DictView*>(&other);
  if (this == &other) return true;
  if (view == nullptr || type_ == "dict_values" || view->type_ == "dict_values") return false;
  if (items_.size() != view->items_.size()) return false;
  return std::all_of(items_.begin(), items_.end(), [&](const Value& mine) {
    return std::any_of(view->items_.begin(), view->items_.end(), [&](const Value& theirs) { return equal(box, mine, theirs); });
  });
}

std::string Namespace::repr(Sandbox& box) const {
  if (being_shown_) return "<Namespace {...}>";
  const Sandbox::Level level(box);
  being_shown_ = true;
  std::string text = "<Namespace {";
  try {
    for (const auto& [name, value] : attributes_) {
      if (text.back() != '{') text += ", ";
      text += jinja::repr(box, Value::text(box, name)) + ": " + jinja::repr(box, value);
    }
  } catch (...) {
    being_shown_ = false;
    throw;
  }
  being_shown_ = false;
  return text + "}>";
}

std::optional<Value> Namespace::attribute(Sandbox& box, std::string_view name) {
  for (const auto& [known, value] : attributes_) {
    box.step();
    if (known == name) return value;
  }
  return {};
}

void Namespace::set(Sandbox& box, const std::string& name, Value value) {
  for (auto& [known, old] : attributes_) {
    box.step();
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  charge.more(sizeof(Value) + sizeof(std::string) + name.size());
  attributes_.emplace_back(name, std::move(value));
}

}  // namespace weft::jinja
