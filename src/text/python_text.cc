#include "text/python_text.h"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/check.h"
#include "text/utf8.h"

namespace weft::python {
namespace {

template <typename Visit>  // bool(char32_t): whether to go on
bool every_character(std::string_view text, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!visit(character.code)) return false;
    at += character.bytes;
  }
  return true;
}

bool has_type(char32_t code, uint32_t mask) { return (U_MASK(u_charType(static_cast<UChar32>(code))) & mask) != 0; }
bool is_cased(char32_t code) { return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_CASED) != 0; }
bool is_lower_character(char32_t code) { return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_LOWERCASE) != 0; }
bool is_upper_character(char32_t code) { return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_UPPERCASE) != 0; }
bool is_title_character(char32_t code) { return has_type(code, U_GC_LT_MASK); }

int32_t icu_size(std::string_view text) {
  WEFT_CHECK_LE(text.size(), static_cast<size_t>(INT32_MAX));
  return static_cast<int32_t>(text.size());
}

template <typename Map>
std::string mapped(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  UErrorCode status = U_ZERO_ERROR;
  map(icu::StringPiece(text.data(), icu_size(text)), sink, status);
  WEFT_CHECK(U_SUCCESS(status)) << u_errorName(status);
  return out;
}

/// One character in title case, which may become several: "ß" becomes "Ss".
std::string title_character(std::string_view character) {
  return mapped(character, [](auto piece, auto& sink, auto& status) {
    const uint32_t options = U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_LOWERCASE | U_TITLECASE_NO_BREAK_ADJUSTMENT;
    icu::CaseMap::utf8ToTitle("", options, nullptr, piece, sink, nullptr, status);
  });
}

bool is_line_end(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

/// Splits at white space from the left. `most` cuts at most.
std::vector<std::string_view> split_spaces(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  while (true) {
    text = strip(text, Side::kLeft);
    if (text.empty()) return parts;
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.push_back(strip(text, Side::kRight));
      return parts;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Character character = character_at(text, end);
      if (is_space(character.code)) break;
      end += character.bytes;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

/// Digits, with single underscores between them.
bool without_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto digit = [&](size_t at) { return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return false;
  }
  return true;
}

/// Decimal digits of any script become those of ASCII, as int() and float() read them.
std::string ascii_digits(std::string_view text) {
  std::string out;
  every_character(text, [&](char32_t code) {
    const int32_t digit = code < 0x80 ? -1 : u_charDigitValue(static_cast<UChar32>(code));
    if (digit >= 0 && has_type(code, U_GC_ND_MASK)) {
      out += static_cast<char>('0' + digit);
    } else {
      append_utf8(out, code);
    }
    return true;
  });
  return out;
}

}  // namespace

size_t find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* const found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

int64_t length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

size_t byte_offset(std::string_view text, int64_t character) {
  size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += character_at(text, at).bytes;
  return at;
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool is_printable(char32_t code) {
  constexpr uint32_t kHidden =
      U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK | U_GC_CN_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return code == ' ' || !has_type(code, kHidden);
}

bool is_word_character(char32_t code) {
  return code == '_' || has_type(code, U_GC_L_MASK) || u_getNumericValue(static_cast<UChar32>(code)) != U_NO_NUMERIC_VALUE;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set) {
  std::set<char32_t> codes;
  for (size_t at = 0; set && at < set->size(); at += character_at(*set, at).bytes) codes.insert(character_at(*set, at).code);
  const auto goes = [&](const Character& character) { return set ? codes.contains(character.code) : is_space(character.code); };
  size_t begin = 0, end = text.size();
  while (side != Side::kRight && begin < end) {
    const Character character = character_at(text, begin);
    if (!goes(character)) break;
    begin += character.bytes;
  }
  while (side != Side::kLeft && begin < end) {
    const Character character = character_before(text, end);
    if (!goes(character)) break;
    end -= character.bytes;
  }
  return text.substr(begin, end - begin);
}

std::string upper(std::string_view text) {
  return mapped(text,
                [](auto piece, auto& sink, auto& status) { icu::CaseMap::utf8ToUpper("", 0, piece, sink, nullptr, status); });
}
std::string lower(std::string_view text) {
  return mapped(text,
                [](auto piece, auto& sink, auto& status) { icu::CaseMap::utf8ToLower("", 0, piece, sink, nullptr, status); });
}
std::string casefold(std::string_view text) {
  return mapped(text, [](auto piece, auto& sink, auto& status) { icu::CaseMap::utf8Fold(0, piece, sink, nullptr, status); });
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  // Lower case depends on what is around a character, so it is taken from the whole text, piece by piece.
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const std::string_view one = text.substr(at, character.bytes);
    out += in_word ? lower(one) : title_character(one);
    in_word = is_cased(character.code);
    at += character.bytes;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = character_at(text, 0).bytes;
  return title_character(text.substr(0, first)) + lower(text.substr(first));
}

std::string swapcase(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const std::string_view one = text.substr(at, character.bytes);
    if (is_upper_character(character.code)) {
      out += lower(one);
    } else if (is_lower_character(character.code)) {
      out += upper(one);
    } else {
      out += one;
    }
    at += character.bytes;
  }
  return out;
}

bool is_upper(std::string_view text) {
  bool cased = false;
  return every_character(text,
                         [&](char32_t code) {
                           cased = cased || is_upper_character(code);
                           return !is_lower_character(code) && !is_title_character(code);
                         }) &&
         cased;
}

bool is_lower(std::string_view text) {
  bool cased = false;
  return every_character(text,
                         [&](char32_t code) {
                           cased = cased || is_lower_character(code);
                           return !is_upper_character(code) && !is_title_character(code);
                         }) &&
         cased;
}

bool is_title(std::string_view text) {
  bool cased = false, in_word = false;
  return every_character(text,
                         [&](char32_t code) {
                           const bool big = is_upper_character(code) || is_title_character(code);
                           const bool small = is_lower_character(code);
                           if (big ? in_word : small && !in_word) return false;
                           cased = cased || big || small;
                           in_word = big || small;
                           return true;
                         }) &&
         cased;
}

namespace {

template <typename Test>
bool all_are(std::string_view text, Test test) {
  return !text.empty() && every_character(text, test);
}

bool is_decimal_character(char32_t code) { return has_type(code, U_GC_ND_MASK); }
bool is_digit_character(char32_t code) {
  const int32_t type = u_getIntPropertyValue(static_cast<UChar32>(code), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}
bool is_numeric_character(char32_t code) {
  return u_getIntPropertyValue(static_cast<UChar32>(code), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool is_alpha_character(char32_t code) { return has_type(code, U_GC_L_MASK); }

}  // namespace

bool is_space(std::string_view text) {
  return all_are(text, [](char32_t code) { return is_space(code); });
}
bool is_digit(std::string_view text) { return all_are(text, is_digit_character); }
bool is_numeric(std::string_view text) { return all_are(text, is_numeric_character); }
bool is_decimal(std::string_view text) { return all_are(text, is_decimal_character); }
bool is_alpha(std::string_view text) { return all_are(text, is_alpha_character); }
bool is_alnum(std::string_view text) {
  return all_are(text, [](char32_t code) { return is_alpha_character(code) || is_numeric_character(code); });
}
bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
}
bool is_printable(std::string_view text) {
  return every_character(text, [](char32_t code) { return is_printable(code); });
}
bool is_identifier(std::string_view text) {
  bool first = true;
  return all_are(text, [&](char32_t code) {
    const auto c = static_cast<UChar32>(code);
    const bool good = code == '_' || u_hasBinaryProperty(c, first ? UCHAR_XID_START : UCHAR_XID_CONTINUE) != 0;
    first = false;
    return good;
  });
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!is_line_end(character.code)) {
      at += character.bytes;
      continue;
    }
    const size_t end = at;
    at += character.code == '\r' && at + 1 < text.size() && text[at + 1] == '\n' ? 2 : character.bytes;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split(std::string_view text, int64_t most) { return split_spaces(text, most); }

std::vector<std::string_view> rsplit(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  while (true) {
    text = strip(text, Side::kRight);
    if (text.empty()) break;
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.push_back(strip(text, Side::kLeft));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const Character character = character_before(text, begin);
      if (is_space(character.code)) break;
      begin -= character.bytes;
    }
    parts.push_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = find(text, separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator, int64_t most) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos, has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  every_character(text, [&](char32_t code) {
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      append_utf8(out, code);
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(code));
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(code));
    }
    return true;
  });
  return out + quote;
}

std::string repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  WEFT_CHECK(error == std::errc());
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* const sign = shortest.data() + e + 1;
  std::from_chars(*sign == '+' ? sign + 1 : sign, end, exponent);
  // Python writes out what has up to 16 digits before the point, or up to 4 zeros after it.
  if (exponent >= 16 || exponent < -4) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  char fixed[40];
  const auto written = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string out(fixed, written.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

std::optional<int64_t> to_integer(std::string_view raw, int base) {
  std::string digits = ascii_digits(strip(raw, Side::kBoth));
  std::string_view text = digits;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto prefixed = [&](char letter, int of) {
    if ((base != of && base != 0) || text.size() < 2 || text[0] != '0' || (text[1] | 0x20) != letter) return false;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
    base = of;
    return true;
  };
  if (!prefixed('x', 16) && !prefixed('o', 8) && !prefixed('b', 2) && base == 0) base = 10;
  std::string plain;
  if (text.empty() || !without_underscores(text, plain)) return {};
  if (negative) plain.insert(plain.begin(), '-');
  if (plain.starts_with("--") || plain.find('+') != std::string::npos) return {};
  int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (error != std::errc() || end != plain.data() + plain.size()) return {};
  return value;
}

std::optional<double> to_float(std::string_view raw) {
  const std::string text = ascii_digits(strip(raw, Side::kBoth));
  std::string plain;
  if (text.empty() || !without_underscores(text, plain)) return {};
  std::string_view rest = plain;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return {};
  std::string small(rest);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const double sign = negative ? -1 : 1;
  if (small == "inf" || small == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (small == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (small[0] != '.' && (small[0] < '0' || small[0] > '9')) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(small.data(), small.data() + small.size(), value);
  if (end != small.data() + small.size()) return {};
  if (error == std::errc::result_out_of_range) {
    // Too large, or too small for anything but zero.
    const size_t e = small.find('e');
    const bool tiny = e != std::string::npos ? small[e + 1] == '-' : small.starts_with("0.") || small.starts_with(".");
    value = tiny ? 0 : std::numeric_limits<double>::infinity();
  } else if (error != std::errc()) {
    return {};
  }
  return sign * value;
}

}  // namespace weft::python
