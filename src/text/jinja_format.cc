// Python's two ways to format text, as far as templates use them: "%s" % value, and "{}".format(value).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "text/jinja_operators.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

constexpr int kMostWidth = 4096;
constexpr int kMostPrecision = 100;

[[noreturn]] void fail(std::string message) { throw OperationError(message); }

/// What stands between % or : and the type.
struct Spec {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool alternate = false, zeros = false;
  int width = 0, precision = -1;
  char group = 0;
  char type = 0;
};

int number(std::string_view text, size_t& at, int most) {
  int value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > most) fail(fmt::format("a format asks for too much: {}, at most {}", value, most));
  }
  return value;
}

std::string padded(const std::string& text, const Spec& spec, char otherwise) {
  const int64_t missing = spec.width - python::length(text);
  if (missing <= 0) return text;
  const char align = spec.align != 0 ? spec.align : otherwise;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  for (int64_t i = 0; i < before; ++i) out += spec.fill;
  out += text;
  for (int64_t i = before; i < missing; ++i) out += spec.fill;
  return out;
}

std::string grouped(std::string digits, char separator, size_t of) {
  for (size_t at = digits.size(); at > of;) {
    at -= of;
    digits.insert(at, 1, separator);
  }
  return digits;
}

/// Sign, zeros and width around digits.
std::string number_text(bool is_negative, std::string prefix, std::string digits, const Spec& spec) {
  std::string sign = is_negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  sign += prefix;
  if (spec.zeros && spec.align == 0) {
    const int64_t missing = spec.width - static_cast<int64_t>(sign.size() + digits.size());
    if (missing > 0) digits.insert(0, static_cast<size_t>(missing), '0');
  }
  if (spec.align == '=') {
    Spec inner = spec;
    inner.width = std::max(0, spec.width - static_cast<int>(sign.size()));
    inner.align = '>';
    return sign + padded(digits, inner, '>');
  }
  return padded(sign + digits, spec, '>');
}

std::string formatted_integer(int64_t value, const Spec& spec) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits, prefix;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", size), prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", size), prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", size), prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", size), prefix = "0b";
      break;
    default:
      digits = std::to_string(size);
  }
  if (spec.group != 0) digits = grouped(digits, spec.group, spec.type == 0 || spec.type == 'd' ? 3 : 4);
  return number_text(value < 0, spec.alternate ? prefix : "", digits, spec);
}

std::string formatted_float(double value, const Spec& spec) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double size = std::abs(value);
  const char type = spec.type;
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  std::string digits;
  if (std::isnan(size)) {
    digits = "nan";
  } else if (std::isinf(size)) {
    digits = "inf";
  } else if (type == 0 && spec.precision < 0) {
    digits = python::repr(size);
  } else if (type == '%') {
    digits = fmt::format("{:.{}f}%", size * 100, precision);
  } else if (type == 'e' || type == 'E') {
    digits = fmt::format("{:.{}e}", size, precision);
  } else if (type == 'g' || type == 'G' || type == 0) {
    digits = fmt::format("{:.{}g}", size, std::max(precision, 1));
    if (type == 0 && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  } else {
    digits = fmt::format("{:.{}f}", size, precision);
  }
  if (type == 'E' || type == 'G' || type == 'F') {
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  }
  if (spec.group != 0) {
    const size_t whole = std::min(digits.find_first_of(".e%"), digits.size());
    digits = grouped(digits.substr(0, whole), spec.group, 3) + digits.substr(whole);
  }
  return number_text(is_negative, "", digits, spec);
}

std::string cut(const std::string& text, int precision) {
  return precision < 0 ? text : text.substr(0, python::byte_offset(text, precision));
}

// ---- "%s" % value

/// Takes the values one after another, or by name.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : values_(values) {}

  Value named(std::string_view name) {
    if (!values_.is_dict()) fail("format requires a mapping");
    used_ = true;
    const Value* const found = values_.as_dict().find(name);
    if (found == nullptr) fail(fmt::format("KeyError: {}", python::repr(name)));
    return *found;
  }
  Value next() {
    const bool many = values_.kind() == Value::Kind::kTuple;
    if (many ? at_ >= values_.items().size() : used_) fail("not enough arguments for format string");
    used_ = true;
    return many ? values_.items()[at_++] : values_;
  }
  void finish() const {
    if (values_.kind() == Value::Kind::kTuple) {
      if (at_ < values_.items().size()) fail_unused();
      return;
    }
    // What has elements by key might have been used by name.
    const bool is_range = values_.is_object() && dynamic_cast<const Range*>(&values_.as_object()) != nullptr;
    if (!used_ && !values_.is_dict() && !values_.is_sequence() && !is_range) fail_unused();
  }

 private:
  [[noreturn]] static void fail_unused() { fail("not all arguments converted during string formatting"); }

  const Value& values_;
  size_t at_ = 0;
  bool used_ = false;
};

int64_t whole_number(const Value& value, char type) {
  require_defined(value);
  if (value.is_int()) return value.as_int();
  if (value.kind() == Value::Kind::kFloat && std::abs(value.as_float()) < 9e18 && type != 'x' && type != 'X' && type != 'o') {
    return static_cast<int64_t>(value.as_float());
  }
  fail(fmt::format("%{} format: a real number is required, not {}", type, value.type_name()));
}

std::string percent(Sandbox& box, const Spec& spec, const Value& value) {
  switch (spec.type) {
    case 's':
      return padded(cut(str(box, value), spec.precision), spec, '>');
    case 'r':
      return padded(cut(repr(box, value), spec.precision), spec, '>');
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      Spec integer = spec;
      const int64_t number = whole_number(value, spec.type);
      if (spec.precision < 0) return formatted_integer(number, integer);
      integer.width = spec.precision, integer.zeros = true, integer.align = 0;
      const std::string digits = formatted_integer(number < 0 ? -number : number, integer);
      return number_text(number < 0, "", digits, [&] {
        Spec outer = spec;
        outer.zeros = false;
        return outer;
      }());
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
      require_defined(value);
      if (!value.is_int() && value.kind() != Value::Kind::kFloat)
        fail(fmt::format("must be real number, not {}", value.type_name()));
      return formatted_float(value.as_float(), spec);
    case 'c': {
      if (value.is_string() && python::length(value.as_string()) == 1) return padded(value.as_string(), spec, '>');
      fail("%c requires a character");
    }
    default:
      fail(fmt::format("unsupported format character {}", python::repr(std::string_view(&spec.type, 1))));
  }
}

// ---- "{}".format(value)

Spec brace_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : character_at(text, 0).bytes;
  if (first != 0 && is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[0];
    at = 1;
  }
  const auto take = [&](std::string_view any) {
    if (at < text.size() && any.find(text[at]) != std::string_view::npos) return text[at++];
    return '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0) {
    spec.zeros = true;
    if (spec.align == 0) spec.fill = "0", spec.align = '=';
  }
  spec.width = number(text, at, kMostWidth);
  spec.group = take(",_");
  if (take(".") != 0) spec.precision = number(text, at, kMostPrecision);
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail("Invalid format specifier");
  return spec;
}

std::string brace_value(Sandbox& box, const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return str(box, value);
  const Spec spec = brace_spec(spec_text);
  const bool integer_type = spec.type == 0 || std::string_view("dxXobn").find(spec.type) != std::string_view::npos;
  if (value.is_int() && integer_type && !(value.is_bool() && spec.type == 0)) return formatted_integer(value.as_int(), spec);
  if ((value.is_int() && !integer_type) || value.kind() == Value::Kind::kFloat) {
    if (spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) == std::string_view::npos) {
      fail(fmt::format("Unknown format code '{}' for object of type '{}'", spec.type, value.type_name()));
    }
    return formatted_float(value.as_float(), spec);
  }
  if (value.is_string() || value.is_bool()) {
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=')
      fail(fmt::format("Invalid format specifier for a '{}'", value.type_name()));
    return padded(cut(str(box, value), spec.precision), spec, '<');
  }
  fail(fmt::format("unsupported format string passed to {}.__format__", value.type_name()));
}

class BraceFormat {
 public:
  BraceFormat(Sandbox& box, const Arguments& arguments) : box_(box), arguments_(arguments) {}

  std::string run(std::string_view format, int depth = 0) {
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
        out += c;
        at += 2;
      } else if (c == '}') {
        fail("Single '}' encountered in format string");
      } else if (c == '{') {
        const size_t end = closing(format, at);
        out += field(format.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      } else {
        out += c;
        ++at;
      }
      if (out.size() > box_.limits().max_memory_bytes / 4) fail("the template needs too much memory: a text is too long");
    }
    return out;
  }

 private:
  static size_t closing(std::string_view format, size_t begin) {
    int open = 0;
    for (size_t at = begin; at < format.size(); ++at) {
      if (format[at] == '{') ++open;
      if (format[at] == '}' && --open == 0) return at;
    }
    fail("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    if (depth > 1) fail("Max string recursion exceeded");
    const size_t colon = text.find(':');
    std::string_view name = text.substr(0, colon);
    const std::string spec = colon == std::string_view::npos ? "" : run(text.substr(colon + 1), depth + 1);
    char conversion = 0;
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size() || std::string_view("sra").find(name[mark + 1]) == std::string_view::npos) {
        fail("expected ':' after conversion specifier");
      }
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = found(name);
    if (conversion != 0) value = Value::text(box_, conversion == 's' ? str(box_, value) : repr(box_, value));
    return brace_value(box_, value, spec);
  }

  /// 0.member[element], where each part is looked up as the template itself would.
  Value found(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      const bool dot = name[at] == '.';
      const size_t stop = dot ? std::min(name.find_first_of(".[", at + 1), name.size()) : name.find(']', at);
      if (stop == std::string_view::npos) fail("Missing ']' in format string");
      const std::string part(name.substr(at + 1, stop - at - 1));
      if (part.empty()) fail("Empty attribute in format string");
      const auto index = python::to_integer(part);
      value = dot ? get_attribute(box_, value, part)
                  : get_item(box_, value, index ? Value::integer(*index) : Value::text(box_, part));
      require_defined(value);
      at = dot ? stop : stop + 1;
    }
    return value;
  }

  Value argument(std::string_view name) {
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (name.empty() || is_number) {
      if (std::exchange(is_automatic_, name.empty()) != name.empty() && is_counted_) {
        fail(fmt::format(
            "cannot switch from {} field {}", name.empty() ? "manual" : "automatic",
            name.empty() ? "specification to automatic field numbering" : "numbering to manual field specification"));
      }
      is_counted_ = true;
      const auto index = name.empty() ? static_cast<int64_t>(automatic_++) : python::to_integer(name).value_or(INT64_MAX);
      if (index >= static_cast<int64_t>(arguments_.positional.size())) {
        fail(fmt::format("Replacement index {} out of range for positional args tuple", index));
      }
      return arguments_.positional[static_cast<size_t>(index)];
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    fail(fmt::format("KeyError: {}", python::repr(name)));
  }

  Sandbox& box_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
  bool is_automatic_ = false, is_counted_ = false;  ///< a field without a number came last; some field came
};

}  // namespace

std::string format_percent(Sandbox& box, const std::string& format, const Value& values) {
  PercentValues from(values);
  std::string out;
  for (size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    if (++at == format.size()) fail("incomplete format");
    std::optional<std::string_view> name;
    if (format[at] == '(') {
      const size_t end = format.find(')', at);
      if (end == std::string::npos) fail("incomplete format key");
      name = std::string_view(format).substr(at + 1, end - at - 1);
      at = end + 1;
    }
    Spec spec;
    for (; at < format.size() && std::string_view("-+ #0").find(format[at]) != std::string_view::npos; ++at) {
      if (format[at] == '-') spec.align = '<';
      if (format[at] == '+' || (format[at] == ' ' && spec.sign != '+')) spec.sign = format[at];
      if (format[at] == '#') spec.alternate = true;
      if (format[at] == '0') spec.zeros = true;
    }
    spec.width = number(format, at, kMostWidth);
    if (at < format.size() && format[at] == '.') spec.precision = number(format, ++at, kMostPrecision);
    if (at == format.size()) fail("incomplete format");
    spec.type = format[at++];
    box.step();
    if (spec.type == '%') {
      out += '%';
    } else {
      out += percent(box, spec, name ? from.named(*name) : from.next());
    }
    if (out.size() > box.limits().max_memory_bytes / 4) fail("the template needs too much memory: a text is too long");
  }
  from.finish();
  return out;
}

std::string format_braces(Sandbox& box, const std::string& format, const Arguments& arguments) {
  return BraceFormat(box, arguments).run(format);
}

}  // namespace weft::jinja
