#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>

#include "base/check.h"
#include "text/utf8.h"

namespace weft {
namespace {

// The patterns in use take a few steps per character; one that takes more than this tries the same characters again and again.
constexpr uint32_t kFewSteps = 1'000'000;
constexpr uint32_t kStepsPerByte = 3;  // 2^32 steps suffice for the longest text, 1 GiB
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kLongestPattern = 64 * 1024;

// Unicode's White_Space in short; PCRE2's own \s has U+180E too.
constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
// As Oniguruma has it: the fractions and superscripts of Latin-1 too. PCRE2's own \w is letters, numbers and the underscore.
constexpr std::string_view kWordCharacters = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// Copies a pattern, rewriting what Oniguruma (in its Ruby syntax) and PCRE2 read differently.
class Translation {
 public:
  Translation(std::string_view pattern, std::string_view what) : in_(pattern), what_(what) {}

  std::string run() {
    while (!done()) {
      const char next = in_[at_];
      if (next == '\\') {
        escape(false);
      } else if (next == '[') {
        character_class();
      } else if (next == '(') {
        group();
      } else if (next == '*' || next == '+' || next == '?' || next == '{') {
        quantifier();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool done() const { return at_ == in_.size(); }
  bool sees(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }
  void replace(size_t bytes, std::string_view by) {
    out_ += by;
    at_ += bytes;
  }
  [[noreturn]] void refuse(std::string_view part) const {
    throw UserError("{} has a pattern that is not supported: {} at byte {}; write it without, if you can", what_, part, at_);
  }

  void escape(bool in_class) {
    if (at_ + 1 == in_.size()) refuse("a backslash at the end");
    const char kind = in_[at_ + 1];
    switch (kind) {
      case 's':
        return replace(2, in_class ? std::string(kSpaces) : "[" + std::string(kSpaces) + "]");
      case 'S':
        return replace(2, in_class ? R"(\P{White_Space})" : "[^" + std::string(kSpaces) + "]");
      case 'w':
        return replace(2, in_class ? std::string(kWordCharacters) : "[" + std::string(kWordCharacters) + "]");
      case 'W':
        if (in_class) refuse("\\W in a class");
        return replace(2, "[^" + std::string(kWordCharacters) + "]");
      case 'd':
        return replace(2, R"(\p{Nd})");
      case 'D':
        return replace(2, R"(\P{Nd})");
      case 'v':
        return replace(2, R"(\x0B)");
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return copy(2);
      case 'A':
      case 'z':
        if (!in_class) return copy(2);
        break;
      default:
        if (std::ispunct(static_cast<unsigned char>(kind)) != 0 || kind == ' ') return copy(2);
    }
    refuse("an escape that PCRE2 may read otherwise");
  }

  /// \p{L}, \p{^L}, \P{Han}: general categories and scripts have the same names in both.
  void property() {
    const size_t end = in_.find('}', at_);
    if (at_ + 2 == in_.size() || in_[at_ + 2] != '{' || end == std::string_view::npos) refuse("\\p without {name}");
    for (const char c : in_.substr(at_ + 3, end - at_ - 3)) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '^') refuse("an odd property name");
    }
    copy(end + 1 - at_);
  }

  void hexadecimal() {
    size_t end = at_ + 2;
    if (end < in_.size() && in_[end] == '{') {
      end = in_.find('}', at_);
      if (end == std::string_view::npos) refuse("\\x{ without }");
      return copy(end + 1 - at_);
    }
    // Two digits would be a byte there and a character here.
    while (end < in_.size() && end < at_ + 4 && std::isxdigit(static_cast<unsigned char>(in_[end])) != 0) ++end;
    if (end != at_ + 4 || in_[at_ + 2] >= '8') refuse("\\x of a byte that is no character");
    copy(4);
  }

  void character_class() {
    copy(1);
    if (sees("^")) copy(1);
    if (sees("]")) refuse("a class that begins with ]");
    while (!done() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse("a class in a class");
      if (sees("&&")) refuse("an intersection of classes");
      if (in_[at_] == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
    if (done()) refuse("a class without end");
    copy(1);
  }

  void group() {
    static constexpr std::array<std::string_view, 8> kKnown = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (sees("(*")) refuse("a group of unknown kind");
    if (!sees("(?")) return copy(1);
    if (at_ == 0 && sees("(?i)")) return copy(4);  // Further on, its reach over alternatives differs.
    for (const std::string_view known : kKnown) {
      if (sees(known)) return copy(known.size());
    }
    refuse("a group of unknown kind");
  }

  void quantifier() {
    if (in_[at_] != '{') {
      copy(1);
    } else {
      size_t end = at_ + 1;
      while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == ',')) ++end;
      if (end == in_.size() || in_[end] != '}' || end == at_ + 1 || in_[at_ + 1] == ',') refuse("{ that begins no {n,m}");
      copy(end + 1 - at_);
      // There, this is a repetition of the repetition.
      if (!done() && (in_[at_] == '+' || in_[at_] == '?')) refuse("{n,m} followed by + or ?");
    }
    if (!done() && (in_[at_] == '+' || in_[at_] == '?')) copy(1);
    if (!done() && (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?')) refuse("a repetition of a repetition");
  }

  std::string_view in_;
  std::string_view what_;
  size_t at_ = 0;
  std::string out_;
};

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string translated_regex(std::string_view pattern, std::string_view what) { return Translation(pattern, what).run(); }

std::string literal_regex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0 || c == ' ') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

struct Regex::Program {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string what;
  ~Program() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view what) : program_(std::make_unique<Program>()) {
  if (pattern.size() > kLongestPattern) {
    throw UserError("{} has a pattern that is too long: {} bytes, at most {}", what, pattern.size(), kLongestPattern);
  }
  program_->what = what;
  const std::string translated = translated_regex(pattern, what);
  // ^ and $ match at every line there.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  int error = 0;
  PCRE2_SIZE where = 0;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                        &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 50);
  program_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &where, context.get());
  if (program_->code == nullptr)
    throw UserError("{} has a pattern that is not valid: {} at byte {}", what, pcre2_message(error), where);
  program_->jit = pcre2_jit_compile(program_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Scratch::Memory {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  ~Memory() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
  }
};

Regex::Scratch::Scratch() : memory_(std::make_unique<Memory>()) {
  if (memory_->match == nullptr || memory_->context == nullptr) throw std::bad_alloc();
  pcre2_set_heap_limit(memory_->context, kHeapLimitKib);
}
Regex::Scratch::~Scratch() = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
  const auto [match, context] = std::pair(scratch.memory_->match, scratch.memory_->context);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(context, kFewSteps + kStepsPerByte * static_cast<uint32_t>(text.size()));
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (program_->jit) found = pcre2_jit_match(program_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
  // The compiled form has 32 KiB of stack for what it must remember; the interpreter keeps that on the heap.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(program_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) throw UserError("{} has a pattern that is too slow for this text: {}", program_->what, pcre2_message(found));
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(match);
  return Match{bounds[0], bounds[1]};
}

}  // namespace weft
