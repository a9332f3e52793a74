#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

std::string with_plain_line_ends(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(with_plain_line_ends(source)) {
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    push(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // ---- Outside of tags

  /// Text up to the next tag, and the tag.
  void read_data() {
    size_t tag = text_.find('{', at_);
    while (tag != std::string::npos &&
           (tag + 1 >= text_.size() || std::string_view("{%#").find(text_[tag + 1]) == std::string_view::npos)) {
      tag = text_.find('{', tag + 1);
    }
    if (tag == std::string::npos) {
      push_data(std::string_view(text_).substr(at_));
      move_to(text_.size());
      return;
    }
    const std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    const char type = text_[tag + 1];
    size_t inside = tag + 2;
    const char sign = sign_at(inside);
    if (sign != 0) ++inside;
    push_data(stripped(data, sign, type != '{'));
    move_to(tag);
    move_to(inside);
    if (type == '#') {
      read_comment();
    } else if (type == '{') {
      read_tag(Token::Kind::kOutputBegin, Token::Kind::kOutputEnd, "}}");
    } else if (const auto after = raw_begin(inside)) {
      move_to(*after);
      read_raw();
    } else {
      read_tag(Token::Kind::kBlockBegin, Token::Kind::kBlockEnd, "%}");
    }
  }

  char sign_at(size_t at) const { return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0'; }

  /// What is left of the text before a tag. lstrip_blocks takes the blanks between the beginning of a line and a block.
  std::string_view stripped(std::string_view data, char sign, bool is_block) const {
    if (sign == '-') return python::strip(data, python::Side::kRight);
    if (sign == '+' || !is_block) return data;
    const size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
    if ((line > 0 || line_starts_) && python::strip(data.substr(line), python::Side::kBoth).empty())
      return data.substr(0, line);
    return data;
  }

  size_t after_spaces(size_t at) const {
    while (at < text_.size()) {
      const Character character = character_at(text_, at);
      if (!python::is_space(character.code)) break;
      at += character.bytes;
    }
    return at;
  }

  /// Where the text after a tag's end begins: trim_blocks takes one line end, a minus all white space.
  size_t after_end(char sign, size_t at, bool is_block) const {
    if (sign == '-') return after_spaces(at);
    if (is_block && sign != '+' && at < text_.size() && text_[at] == '\n') return at + 1;
    return at;
  }

  void read_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail("Missing end of comment tag");
    const char sign = end > at_ ? sign_at(end - 1) : '\0';
    move_to(after_end(sign, end + 2, true));
  }

  std::optional<size_t> word_after(size_t at, std::string_view word) const {
    at = after_spaces(at);
    if (std::string_view(text_).substr(at, word.size()) != word) return {};
    return after_spaces(at + word.size());
  }

  /// After "{% raw %}", if that is what stands here. The end of this tag takes no line end with it.
  std::optional<size_t> raw_begin(size_t inside) const {
    const auto at = word_after(inside, "raw");
    if (!at) return {};
    const std::string_view rest = std::string_view(text_).substr(*at);
    if (rest.starts_with("-%}")) return after_spaces(*at + 3);
    return rest.starts_with("%}") ? std::optional(*at + 2) : std::nullopt;
  }

  void read_raw() {
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const auto end = word_after(tag + (sign == 0 ? 2 : 3), "endraw");
      if (!end) continue;
      const char end_sign = sign_at(*end);
      const size_t close = *end + (end_sign == 0 ? 0 : 1);
      if (std::string_view(text_).substr(close, 2) != "%}") continue;
      push_data(stripped(std::string_view(text_).substr(at_, tag - at_), sign, true));
      move_to(after_end(end_sign, close + 2, true));
      return;
    }
    fail("Missing end of raw directive");
  }

  // ---- Inside of tags

  void read_tag(Token::Kind begin, Token::Kind end, std::string_view closing) {
    push(begin, "");
    std::string open;  // brackets that are not closed yet
    while (true) {
      const bool is_block = end == Token::Kind::kBlockEnd;
      // Of the signs, an output has the minus only.
      const char sign = sign_at(at_) == '+' && !is_block ? '\0' : sign_at(at_);
      const size_t close = at_ + (sign == 0 ? 0 : 1);
      if (open.empty() && std::string_view(text_).substr(close, 2) == closing) {
        push(end, "");
        move_to(after_end(sign, close + 2, is_block));
        return;
      }
      const size_t next = after_spaces(at_);
      if (next != at_) {
        move_to(next);
        continue;
      }
      if (at_ == text_.size()) return;  // The parser says what it misses.
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    if (is_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_string(c);
    } else if (python::is_word_character(character_at(text_, at_).code)) {
      read_name();
    } else {
      read_operator(open);
    }
  }

  void read_name() {
    size_t end = at_;
    while (end < text_.size()) {
      const Character character = character_at(text_, end);
      if (!python::is_word_character(character.code)) break;
      end += character.bytes;
    }
    const std::string_view name = std::string_view(text_).substr(at_, end - at_);
    if (!python::is_identifier(name)) fail("Invalid character in identifier");
    push(Token::Kind::kName, name);
    move_to(end);
  }

  /// Digits with single underscores between them.
  template <typename Accept>
  size_t after_digits(size_t at, Accept accept) const {
    while (at < text_.size() && (accept(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && accept(text_[at + 1]))))
      ++at;
    return at;
  }

  std::optional<size_t> after_fraction(size_t at) const {
    if (at + 1 >= text_.size() || text_[at] != '.' || !is_digit(text_[at + 1])) return {};
    return after_digits(at + 1, is_digit);
  }

  std::optional<size_t> after_exponent(size_t at) const {
    if (at >= text_.size() || (text_[at] | 0x20) != 'e') return {};
    if (++at < text_.size() && (text_[at] == '+' || text_[at] == '-')) ++at;
    if (at >= text_.size() || !is_digit(text_[at])) return {};
    return after_digits(at, is_digit);
  }

  void read_number() {
    const size_t whole = after_digits(at_, is_digit);
    // After a point there are no floats: a.0.5 is two subscripts.
    if (at_ == 0 || text_[at_ - 1] != '.') {
      const auto fraction = after_fraction(whole);
      const auto exponent = after_exponent(fraction.value_or(whole));
      if (fraction || exponent) {
        push_number(Token::Kind::kFloat, exponent.value_or(fraction.value_or(whole)));
        return;
      }
    }
    push_number(Token::Kind::kInteger, after_integer(whole));
  }

  size_t after_integer(size_t whole) const {
    if (text_[at_] != '0') return whole;
    const char base = at_ + 1 < text_.size() ? static_cast<char>(text_[at_ + 1] | 0x20) : '\0';
    const auto accept = [base](char c) {
      if (base == 'x') return std::isxdigit(static_cast<unsigned char>(c)) != 0;
      return c >= '0' && c <= (base == 'b' ? '1' : '7');
    };
    if (base == 'x' || base == 'o' || base == 'b') {
      const size_t end = after_digits(at_ + 2, accept);
      if (end > at_ + 2) return end;
    }
    return after_digits(at_, [](char c) { return c == '0'; });
  }

  void push_number(Token::Kind kind, size_t end) {
    std::string digits = text_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    push(kind, digits);
    move_to(end);
  }

  void read_string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail(fmt::format("unexpected char {} at {}", python::repr(std::string_view(&quote, 1)), at_));
    push(Token::Kind::kString, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  std::string unescaped(std::string_view raw) const {
    std::string out;
    for (size_t at = 0; at < raw.size();) {
      if (raw[at] != '\\') {
        out += raw[at++];
        continue;
      }
      at = append_escape(raw, at + 1, out);
    }
    return out;
  }

  /// What stands after a backslash. Gives where the text goes on.
  size_t append_escape(std::string_view raw, size_t at, std::string& out) const {
    const char c = raw[at];
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t which = kLetters.find(c); which != std::string_view::npos) {
      out += kMeanings[which];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t end = at;
      for (; end < raw.size() && end < at + 3 && raw[end] >= '0' && raw[end] <= '7'; ++end)
        code = code * 8 + static_cast<char32_t>(raw[end] - '0');
      append_utf8(out, code);
      return end;
    }
    if (c == 'x') return append_hex(raw, at + 1, 2, out);
    if (c == 'u') return append_hex(raw, at + 1, 4, out);
    if (c == 'U') return append_hex(raw, at + 1, 8, out);
    if (c == 'N') fail("characters by their names are not supported in strings");
    out += '\\';
    const Character character = character_at(raw, at);
    if (character.code < 0x80) {
      out += c;
    } else {
      // Jinja writes what is not ASCII as an escape before it reads escapes, and here the backslash eats that one's.
      const auto code = static_cast<uint32_t>(character.code);
      out += code < 0x100     ? fmt::format("x{:02x}", code)
             : code < 0x10000 ? fmt::format("u{:04x}", code)
                              : fmt::format("U{:08x}", code);
    }
    return at + character.bytes;
  }

  size_t append_hex(std::string_view raw, size_t at, size_t digits, std::string& out) const {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = at + i < raw.size() ? raw[at + i] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0)
        fail(fmt::format("truncated \\x, \\u or \\U escape: {} digits needed", digits));
      code = code * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape names no character");
    append_utf8(out, code);
    return at + digits;
  }

  void read_operator(std::string& open) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view rest = std::string_view(text_).substr(at_);
    std::string_view op = rest.substr(0, 1);
    for (const std::string_view one : kLong) {
      if (rest.starts_with(one)) op = one;
    }
    if (op.size() == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(op[0]) == std::string_view::npos) {
      fail(fmt::format("unexpected char {} at {}", python::repr(rest.substr(0, character_at(rest, 0).bytes)), at_));
    }
    if (op == "(") open += ')';
    if (op == "[") open += ']';
    if (op == "{") open += '}';
    if (op == ")" || op == "]" || op == "}") {
      if (open.empty()) fail(fmt::format("unexpected '{}'", op));
      if (open.back() != op[0]) fail(fmt::format("unexpected '{}', expected '{}'", op, open.back()));
      open.pop_back();
    }
    push(Token::Kind::kOperator, op);
    move_to(at_ + op.size());
  }

  // ----

  void push(Token::Kind kind, std::string_view text) { tokens_.push_back({kind, std::string(text), line_}); }
  void push_data(std::string_view text) {
    if (!text.empty()) push(Token::Kind::kData, text);
  }
  void move_to(size_t at) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    if (at > at_) line_starts_ = text_[at - 1] == '\n';
    at_ = at;
  }
  [[noreturn]] void fail(const std::string& message) const { throw TemplateError(line_, message); }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  ///< what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace weft::jinja
