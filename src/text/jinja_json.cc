#include "text/jinja_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja_operators.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

/// Builds values while nlohmann's parser reads.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(Sandbox& box) : box_(box) {}
  Value result() { return std::move(result_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value <= INT64_MAX ? Value::integer(static_cast<int64_t>(value))
                                  : Value::big_integer(box_, std::to_string(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    return add(is_integer ? Value::big_integer(box_, text) : Value::number(value));
  }
  bool string(string_t& value) override { return add(Value::text(box_, value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(std::make_shared<Dict>(box_)); }
  bool start_array(std::size_t) override { return open(nullptr); }
  bool key(string_t& name) override {
    open_.back().key = Value::text(box_, name);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    std::string_view why = error.what();
    if (const size_t at = why.find("syntax error"); at != std::string_view::npos) why.remove_prefix(at);
    throw OperationError(fmt::format("not JSON at byte {}: {}", position, why));
  }

 private:
  struct Open {
    std::shared_ptr<Dict> dict;  ///< none: a list
    Value key;
    std::vector<Value> items;
    std::unique_ptr<Charge> charge;
  };

  bool open(std::shared_ptr<Dict> dict) {
    if (open_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      throw OperationError(fmt::format("values nest too deeply: more than {} levels", kMaxValueDepth));
    }
    open_.push_back({std::move(dict), {}, {}, std::make_unique<Charge>(box_, 0)});
    return true;
  }
  bool close() {
    Open last = std::move(open_.back());
    open_.pop_back();
    return add(last.dict ? Value::dict(std::move(last.dict)) : Value::list(box_, std::move(last.items)));
  }
  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (Open& last = open_.back(); last.dict) {
      last.dict->set(box_, std::move(last.key), std::move(value));
    } else {
      last.charge->more(2 * sizeof(Value));
      last.items.push_back(std::move(value));
    }
    return true;
  }

  Sandbox& box_;
  std::vector<Open> open_;
  Value result_;
};

class Writer {
 public:
  Writer(Sandbox& box, const JsonStyle& style) : box_(box), style_(style), charge_(box, 0) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int depth) {
    const Sandbox::Level level(box_);
    box_.step();
    // The text counts as memory while it grows.
    if (out_.size() > charged_) {
      charge_.more(out_.size());
      charged_ += out_.size();
    }
    using Kind = Value::Kind;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.as_int());
        return;
      case Kind::kBigInt:
        out_ += value.as_string();
        return;
      case Kind::kFloat:
        out_ += number(value.as_float());
        return;
      case Kind::kString:
        write_text(value.as_string());
        return;
      case Kind::kList:
      case Kind::kTuple:
        write_list(value.items(), depth);
        return;
      case Kind::kDict:
        write_dict(value.as_dict(), depth);
        return;
      default:
        throw OperationError(fmt::format("Object of type {} is not JSON serializable", value.type_name()));
    }
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return python::repr(value);
  }

  void new_line(int depth) {
    if (!style_.has_indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style_.indent;
  }

  void write_list(const std::vector<Value>& items, int depth) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      new_line(depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return ordered(box_, Order::kLess, a->first, b->first); });
    }
    out_ += '{';
    bool first = true;
    for (const Dict::Entry* const entry : entries) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write_text(key(entry->first));
      out_ += style_.key_separator;
      write(entry->second, depth + 1);
    }
    if (!first) new_line(depth);
    out_ += '}';
  }

  std::string key(const Value& value) {
    using Kind = Value::Kind;
    switch (value.kind()) {
      case Kind::kString:
        return value.as_string();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.as_bool() ? "true" : "false";
      case Kind::kFloat:
        return number(value.as_float());
      case Kind::kInt:
      case Kind::kBigInt:
        return repr(box_, value);
      default:
        throw OperationError(fmt::format("keys must be str, int, float, bool or None, not {}", value.type_name()));
    }
  }

  void write_text(std::string_view text) {
    box_.step_bytes(text.size());
    const Charge scratch(box_, 6 * text.size());  // A byte may become six.
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (static_cast<unsigned char>(c) < 0x80) {
        write_ascii(c);
        ++at;
        continue;
      }
      const Character character = character_at(text, at);
      if (style_.ensure_ascii) {
        write_escape(character.code);
      } else {
        out_.append(text, at, character.bytes);
      }
      at += character.bytes;
    }
    out_ += '"';
  }

  void write_ascii(char c) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    if (const size_t which = kEscaped.find(c); which != std::string_view::npos) {
      out_ += '\\';
      out_ += kLetters[which];
    } else if (static_cast<unsigned char>(c) < 0x20 || (style_.ensure_ascii && c == 0x7F)) {
      write_escape(static_cast<unsigned char>(c));
    } else {
      out_ += c;
    }
  }

  void write_escape(char32_t code) {
    auto c = static_cast<uint32_t>(code);
    if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", c);
    } else {
      c -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
    }
  }

  Sandbox& box_;
  const JsonStyle& style_;
  Charge charge_;
  size_t charged_ = 0;
  std::string out_;
};

}  // namespace

Value from_json(Sandbox& box, std::string_view json) {
  Builder builder(box);
  nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  return builder.result();
}

std::string to_json(Sandbox& box, const Value& value, const JsonStyle& style) { return Writer(box, style).run(value); }

}  // namespace weft::jinja
