#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"

/// What filters share: they are in three files, by what they take.
namespace weft::jinja {

using FilterTable = std::unordered_map<std::string_view, FilterFunction>;
const FilterTable& text_filters();      ///< take a text, or make one
const FilterTable& value_filters();     ///< take a number, or anything
const FilterTable& sequence_filters();  ///< take elements, or apply other filters and tests to them

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

/// Elements that can be walked over once.
inline Value generator(Sandbox& box, std::vector<Value> items) {
  return Value::object(std::make_shared<Generator>(box, std::move(items)));
}

}  // namespace weft::jinja
