#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_sandbox.h"

namespace weft::jinja {

class Dict;
class Object;
class Value;

/// What values share. A cell never changes once a template can see it, namespaces apart.
struct Cell {
  virtual ~Cell() = default;
  int depth = 0;  ///< lists in lists: at most kMaxValueDepth
  Charge charge;

 protected:
  Cell() = default;
  Cell(Sandbox& box, size_t bytes) : charge(box, bytes) {}
};

/// A Python value as templates see it. Copies share.
class Value {
 public:
  enum class Kind : uint8_t { kUndefined, kNone, kBool, kInt, kBigInt, kFloat, kString, kList, kTuple, kDict, kObject };

  Value() = default;  ///< None
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value text(Sandbox& box, std::string text);
  static Value list(Sandbox& box, std::vector<Value> items);
  static Value tuple(Sandbox& box, std::vector<Value> items);
  static Value dict(std::shared_ptr<const Dict> dict);
  static Value object(std::shared_ptr<Object> object);
  /// An integer of more than 64 bits, by its digits. It can be printed and compared with its like, nothing else.
  static Value big_integer(Sandbox& box, std::string digits);
  /// A name, member or element that does not exist. `why` is for whoever needs it to exist.
  static Value undefined(Sandbox& box, std::string why);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  /// Booleans are integers.
  bool is_int() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_int() || kind_ == Kind::kFloat || kind_ == Kind::kBigInt; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // Each requires the kind of its name.
  bool as_bool() const { return number_.integer != 0; }
  int64_t as_int() const { return number_.integer; }
  double as_float() const { return kind_ == Kind::kFloat ? number_.real : static_cast<double>(number_.integer); }
  const std::string& as_string() const;  ///< also of a big integer its digits, and of what is undefined why
  const std::vector<Value>& items() const;
  const Dict& as_dict() const;
  Object& as_object() const;

  /// The same object, for `is sameas` and for objects.
  bool same_as(const Value& other) const;

  /// "str", "NoneType", "dict": as Python's messages name it.
  std::string type_name() const;
  bool truth() const;
  int depth() const { return cell_ ? cell_->depth : 0; }

 private:
  Value(Kind kind, std::shared_ptr<Cell> cell) : kind_(kind), cell_(std::move(cell)) {}

  Kind kind_ = Kind::kNone;
  union {
    int64_t integer;
    double real;
  } number_ = {0};
  std::shared_ptr<Cell> cell_;
};

/// A dict: keys in the order in which they came, found in logarithmic time where they are text.
class Dict : public Cell {
 public:
  explicit Dict(Sandbox& box);
  using Entry = std::pair<Value, Value>;

  /// Throws OperationError for a key that Python cannot hash. Only while nobody else sees the dict.
  void set(Sandbox& box, Value key, Value value);
  const Value* find(std::string_view key) const;
  const Value* find(Sandbox& box, const Value& key) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  const size_t* position(Sandbox& box, const Value& key) const;

  std::vector<Entry> entries_;
  std::map<std::string_view, size_t> by_text_;
  std::vector<size_t> others_;  ///< entries whose key is not text
};

/// What is called with.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Everything else: functions, loops, namespaces, ranges, iterators. By default it can do nothing.
class Object : public Cell, public std::enable_shared_from_this<Object> {
 public:
  virtual std::string type_name() const = 0;
  virtual std::string repr(Sandbox& box) const;
  virtual bool truth() const { return true; }
  virtual std::optional<int64_t> length() const { return {}; }
  virtual bool is_iterable() const { return false; }
  /// The next of its elements. `cursor` is 0 at first and belongs to the object.
  virtual std::optional<Value> next(Sandbox& box, size_t& cursor);
  virtual std::optional<Value> attribute(Sandbox& box, std::string_view name);
  virtual std::optional<Value> element(Sandbox& box, const Value& key);
  virtual bool is_callable() const { return false; }
  virtual Value call(Sandbox& box, const Arguments& arguments);
  virtual bool equals(Sandbox& box, const Object& other) const;

 protected:
  explicit Object(Sandbox& box, size_t bytes = 0);
};

/// Walks over the elements of a value, once: those of a list, the characters of a text, the keys of a dict.
class Iterator {
 public:
  /// Throws OperationError if `value` has no elements.
  Iterator(Sandbox& box, Value value);
  std::optional<Value> next();

 private:
  Sandbox& box_;
  Value value_;
  size_t cursor_ = 0;
};

bool is_iterable(const Value& value);
/// All elements.
std::vector<Value> elements(Sandbox& box, const Value& value);

/// range(start, stop, step).
class Range : public Object {
 public:
  Range(Sandbox& box, int64_t start, int64_t stop, int64_t step);
  std::string type_name() const override { return "range"; }
  std::string repr(Sandbox& box) const override;
  bool truth() const override { return count_ > 0; }
  std::optional<int64_t> length() const override { return count_; }
  bool is_iterable() const override { return true; }
  std::optional<Value> next(Sandbox& box, size_t& cursor) override;
  std::optional<Value> element(Sandbox& box, const Value& key) override;
  bool equals(Sandbox& box, const Object& other) const override;

 private:
  int64_t start_, stop_, step_, count_;
};

/// What `map`, `select` and their like give: elements that can be walked over once.
class Generator : public Object {
 public:
  Generator(Sandbox& box, std::vector<Value> items, std::string_view type = "generator");
  std::string type_name() const override { return std::string(type_); }
  bool is_iterable() const override { return true; }
  std::optional<Value> next(Sandbox& box, size_t& cursor) override;

 private:
  std::vector<Value> items_;
  std::string_view type_;
  size_t given_ = 0;
};

/// d.items(), d.keys(), d.values().
class DictView : public Object {
 public:
  DictView(Sandbox& box, std::string_view type, std::vector<Value> items);
  std::string type_name() const override { return std::string(type_); }
  std::string repr(Sandbox& box) const override;
  bool truth() const override { return !items_.empty(); }
  std::optional<int64_t> length() const override { return static_cast<int64_t>(items_.size()); }
  bool is_iterable() const override { return true; }
  std::optional<Value> next(Sandbox& box, size_t& cursor) override;
  bool equals(Sandbox& box, const Object& other) const override;

 private:
  std::string_view type_;
  std::vector<Value> items_;
};

/// namespace(): the only thing that a template can change.
class Namespace : public Object {
 public:
  explicit Namespace(Sandbox& box) : Object(box) {}
  std::string type_name() const override { return "Namespace"; }
  std::string repr(Sandbox& box) const override;
  std::optional<Value> attribute(Sandbox& box, std::string_view name) override;
  void set(Sandbox& box, const std::string& name, Value value);
  void clear() { attributes_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
  mutable bool being_shown_ = false;
};

}  // namespace weft::jinja
