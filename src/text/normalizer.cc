#include "text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace weft {
namespace {

// ICU sorts marks by insertion. Above this many in a row, longer than any in real writing, they are sorted here first.
constexpr size_t kManyMarks = 64;

// The tokenizers that ours must equal normalize by the tables of Unicode 9; younger characters stay where they are, and as they
// are.
constexpr const char* kKnownCharacters = "[:age=9.0:]";

class Nfc {
 public:
  static const Nfc& instance() {
    static const Nfc one;
    return one;
  }
  const icu::Normalizer2& normalizer() const { return filtered_; }

  /// Whether a character moves past others in canonical order, all of its decomposition.
  bool is_mark(char32_t code) const {
    constexpr char32_t kFirstMark = 0x300;
    const auto c = static_cast<UChar32>(code);
    return code >= kFirstMark && u_getIntPropertyValue(c, UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0 && known_.contains(c);
  }

 private:
  Nfc() : known_(icu::UnicodeString(kKnownCharacters), error_), filtered_(nfc(), known_) {
    check();
    known_.freeze();
  }
  const icu::Normalizer2& nfc() {
    check();
    const icu::Normalizer2* const instance = icu::Normalizer2::getNFCInstance(error_);
    check();
    return *instance;
  }
  void check() const {
    if (U_FAILURE(error_)) throw SystemError("ICU has no data for the normal form NFC: {}", u_errorName(error_));
  }

  UErrorCode error_ = U_ZERO_ERROR;
  icu::UnicodeSet known_;
  icu::FilteredNormalizer2 filtered_;
};

/// A mark moves past others unless their class is the same: characters after the one they belong to have a class above 0. Some
/// of class 0 consist of such.
struct Mark {
  char32_t code;
  uint8_t combining_class;
};

/// Appends `code`, decomposed.
void append_marks(const icu::Normalizer2& normalizer, char32_t code, std::vector<Mark>& marks) {
  icu::UnicodeString parts;
  if (!normalizer.getDecomposition(static_cast<UChar32>(code), parts)) parts.setTo(static_cast<UChar32>(code));
  for (int32_t at = 0; at < parts.length(); at = parts.moveIndex32(at, 1)) {
    const UChar32 part = parts.char32At(at);
    marks.push_back({static_cast<char32_t>(part), u_getCombiningClass(part)});
  }
}

/// Puts long rows of marks into canonical order, so that nothing is left for ICU to move. Empty if there are none.
std::string with_ordered_marks(const Nfc& nfc, std::string_view text) {
  std::string ordered;
  size_t copied = 0, row = 0, row_length = 0;
  const auto end_row = [&](size_t end) {
    if (row_length > kManyMarks) {
      std::vector<Mark> marks;
      for (size_t at = row; at < end;) {
        const auto [code, bytes] = character_at(text, at);
        append_marks(nfc.normalizer(), code, marks);
        at += bytes;
      }
      std::stable_sort(marks.begin(), marks.end(),
                       [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
      ordered.append(text.substr(copied, row - copied));
      for (const Mark& mark : marks) append_utf8(ordered, mark.code);
      copied = end;
    }
    row_length = 0;
  };
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text, at);
    if (!nfc.is_mark(code)) {
      end_row(at);
    } else if (row_length++ == 0) {
      row = at;
    }
    at += bytes;
  }
  end_row(text.size());
  if (copied > 0) ordered.append(text.substr(copied));
  return ordered;
}

}  // namespace

std::string composed(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; })) return std::string(text);
  const Nfc& nfc = Nfc::instance();
  const std::string ordered = with_ordered_marks(nfc, text);
  if (!ordered.empty()) text = ordered;
  std::string result;
  icu::StringByteSink sink(&result, static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  nfc.normalizer().normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, error);
  if (U_FAILURE(error)) throw SystemError("ICU could not normalize a text of {} bytes: {}", text.size(), u_errorName(error));
  return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(from, at), text.size());
    out += text.substr(at, end - at);
    if (end < text.size()) out += to;
    at = end + from.size();
  }
  return out;
}

bool NormalForm::has(Kind kind) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) { return step.kind == kind; });
}

std::string_view NormalForm::apply(std::string_view text, std::string& memory) const {
  if (text.empty() || steps_.empty()) return text;
  memory.assign(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::compose:
        memory = composed(memory);
        break;
      case Kind::prepend:
        if (!memory.empty()) memory.insert(0, step.to);
        break;
      case Kind::replace:
        memory = replaced(memory, step.from, step.to);
        break;
    }
  }
  return memory;
}

}  // namespace weft
