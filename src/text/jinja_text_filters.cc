// Jinja's filters for text, and the tojson of chat templates. Text is never marked as safe for HTML: `safe` changes nothing,
// and `escape` gives plain text.

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filter_parts.h"
#include "text/jinja_json.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

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

/// As in the path of an address, or as in its query.
std::string quoted(std::string_view text, bool is_query) {
  std::string out;
  for (const char c : text) {
    const bool is_safe = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '.' ||
                         c == '-' || c == '~' || (c == '/' && !is_query);
    if (is_safe) {
      out += c;
    } else if (c == ' ' && is_query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value urlencode(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters none("urlencode", arguments, {});
  std::string out;
  Charge scratch(box, 0);
  const auto add = [&](const Value& value, bool is_query) {
    const TextInput text(box, value);
    scratch.more(3 * (*text).size() + 1);
    out += quoted(*text, is_query);
  };
  if (input.is_string() || !is_iterable(input)) {
    add(input, false);
    return Value::text(box, std::move(out));
  }
  const auto add_pair = [&](const Value& name, const Value& value) {
    if (!out.empty()) out += '&';
    add(name, true);
    out += '=';
    add(value, true);
  };
  if (input.is_dict()) {
    for (const auto& [name, value] : input.as_dict().entries()) add_pair(name, value);
    return Value::text(box, std::move(out));
  }
  Iterator walk(box, input);
  while (const auto pair = walk.next()) {
    const std::vector<Value> both = elements(box, *pair);
    if (both.size() != 2) fail(fmt::format("urlencode() takes pairs, not {} values", both.size()));
    add_pair(both[0], both[1]);
  }
  return Value::text(box, std::move(out));
}

Value xmlattr(Sandbox& box, const Value& input, const Arguments& arguments) {
  const Parameters parameters("xmlattr", arguments, {"autospace"});
  require_defined(input);
  if (!input.is_dict()) fail(fmt::format("'{}' object has no attribute 'items'", input.type_name()));
  std::string out;
  Charge scratch(box, 0);
  for (const auto& [name, value] : input.as_dict().entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!name.is_string()) fail("expected string or bytes-like object");
    for (size_t at = 0; at < name.as_string().size(); at += character_at(name.as_string(), at).bytes) {
      const char32_t code = character_at(name.as_string(), at).code;
      if (python::is_space(code) || code == '/' || code == '>' || code == '=') fail("Invalid character in attribute name");
    }
    const TextInput text(box, value);
    scratch.more(5 * ((*text).size() + name.as_string().size()) + 4);
    if (!out.empty() || parameters.flag(0, true)) out += ' ';
    out += escaped(name.as_string()) + "=\"" + escaped(*text) + "\"";
  }
  return Value::text(box, std::move(out));
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

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable filters = {
      {"capitalize", mapped<python::capitalize>},
      {"center", center},
      {"e", escape},
      {"escape", escape},
      {"forceescape", escape},
      {"format", format},
      {"indent", indent},
      {"lower", mapped<python::lower>},
      {"replace", replace},
      {"string", to_text},
      {"title", mapped<title>},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", mapped<python::upper>},
      {"urlencode", urlencode},
      {"wordcount", word_count},
      {"xmlattr", xmlattr},
  };
  return filters;
}

}  // namespace weft::jinja
