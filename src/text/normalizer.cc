#include "text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace weft {
namespace {

// ICU sorts marks by insertion. Above this many in a row, longer than any in real writing, they are sorted here first.
constexpr size_t kManyMarks = 64;

const icu::Normalizer2& nfc() {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const instance = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) throw SystemError("ICU has no data for NFC: {}", u_errorName(error));
  return *instance;
}

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

bool is_mark(const icu::Normalizer2& normalizer, char32_t code) {
  return code >= 0x300 && !normalizer.hasBoundaryBefore(static_cast<UChar32>(code)) &&
         u_getIntPropertyValue(static_cast<UChar32>(code), UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0;
}

/// Puts long rows of marks into canonical order, so that nothing is left for ICU to move. Empty if there are none.
std::string with_ordered_marks(const icu::Normalizer2& normalizer, std::string_view text) {
  std::string ordered;
  size_t copied = 0, row = 0, row_length = 0;
  const auto end_row = [&](size_t end) {
    if (row_length > kManyMarks) {
      std::vector<Mark> marks;
      for (size_t at = row; at < end;) {
        const auto [code, bytes] = character_at(text, at);
        append_marks(normalizer, code, marks);
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
    if (!is_mark(normalizer, code)) {
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
  const icu::Normalizer2& normalizer = nfc();
  const std::string ordered = with_ordered_marks(normalizer, text);
  if (!ordered.empty()) text = ordered;
  std::string result;
  icu::StringByteSink sink(&result, static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, error);
  if (U_FAILURE(error)) throw SystemError("ICU could not normalize a text of {} bytes: {}", text.size(), u_errorName(error));
  return result;
}

}  // namespace weft
