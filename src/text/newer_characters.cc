#include "text/newer_characters.h"

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace weft {
namespace {

enum Category : uint8_t { upper, lower, modifier, letter, han, mark, digit, number, punctuation, symbol };
// An old character of each category, of three bytes and of four.
constexpr std::array<std::string_view, 10> kThreeBytes = {"\u1E00", "\u1E01", "\u1D2C", "\u1000", "\u4E00",
                                                          "\u20D0", "\u0966", "\u2460", "\u203B", "\u2300"};
constexpr std::array<std::string_view, 10> kFourBytes = {"\U00010400", "\U00010428", "\U00010780", "\U00010000", "\U0002A700",
                                                         "\U00010A01", "\U000104A0", "\U00010107", "\U00010100", "\U0001F300"};

struct Range {
  char32_t first, last;
  Category category;
};
/// What Unicode 15, 15.1 and 16 added (UnicodeData.txt, general category), but for format and private characters, whose
/// category is like that of unassigned ones to every pattern.
constexpr Range kNewer[] = {{0x897, 0x897, mark},
                            {0xCF3, 0xCF3, mark},
                            {0xECE, 0xECE, mark},
                            {0x1B4E, 0x1B4F, punctuation},
                            {0x1B7F, 0x1B7F, punctuation},
                            {0x1C89, 0x1C89, upper},
                            {0x1C8A, 0x1C8A, lower},
                            {0x2427, 0x2429, symbol},
                            {0x2FFC, 0x2FFF, symbol},
                            {0x31E4, 0x31E5, symbol},
                            {0x31EF, 0x31EF, symbol},
                            {0xA7CB, 0xA7CC, upper},
                            {0xA7CD, 0xA7CD, lower},
                            {0xA7DA, 0xA7DA, upper},
                            {0xA7DB, 0xA7DB, lower},
                            {0xA7DC, 0xA7DC, upper},
                            {0x105C0, 0x105F3, letter},
                            {0x10D40, 0x10D49, digit},
                            {0x10D4A, 0x10D4D, letter},
                            {0x10D4E, 0x10D4E, modifier},
                            {0x10D4F, 0x10D4F, letter},
                            {0x10D50, 0x10D65, upper},
                            {0x10D69, 0x10D6D, mark},
                            {0x10D6E, 0x10D6E, punctuation},
                            {0x10D6F, 0x10D6F, modifier},
                            {0x10D70, 0x10D85, lower},
                            {0x10D8E, 0x10D8F, symbol},
                            {0x10EC2, 0x10EC4, letter},
                            {0x10EFC, 0x10EFF, mark},
                            {0x1123F, 0x11240, letter},
                            {0x11241, 0x11241, mark},
                            {0x11380, 0x11389, letter},
                            {0x1138B, 0x1138B, letter},
                            {0x1138E, 0x1138E, letter},
                            {0x11390, 0x113B5, letter},
                            {0x113B7, 0x113B7, letter},
                            {0x113B8, 0x113C0, mark},
                            {0x113C2, 0x113C2, mark},
                            {0x113C5, 0x113C5, mark},
                            {0x113C7, 0x113CA, mark},
                            {0x113CC, 0x113D0, mark},
                            {0x113D1, 0x113D1, letter},
                            {0x113D2, 0x113D2, mark},
                            {0x113D3, 0x113D3, letter},
                            {0x113D4, 0x113D5, punctuation},
                            {0x113D7, 0x113D8, punctuation},
                            {0x113E1, 0x113E2, mark},
                            {0x116D0, 0x116E3, digit},
                            {0x11B00, 0x11B09, punctuation},
                            {0x11BC0, 0x11BE0, letter},
                            {0x11BE1, 0x11BE1, punctuation},
                            {0x11BF0, 0x11BF9, digit},
                            {0x11F00, 0x11F01, mark},
                            {0x11F02, 0x11F02, letter},
                            {0x11F03, 0x11F03, mark},
                            {0x11F04, 0x11F10, letter},
                            {0x11F12, 0x11F33, letter},
                            {0x11F34, 0x11F3A, mark},
                            {0x11F3E, 0x11F42, mark},
                            {0x11F43, 0x11F4F, punctuation},
                            {0x11F50, 0x11F59, digit},
                            {0x11F5A, 0x11F5A, mark},
                            {0x1342F, 0x1342F, letter},
                            {0x13440, 0x13440, mark},
                            {0x13441, 0x13446, letter},
                            {0x13447, 0x13455, mark},
                            {0x13460, 0x143FA, letter},
                            {0x16100, 0x1611D, letter},
                            {0x1611E, 0x1612F, mark},
                            {0x16130, 0x16139, digit},
                            {0x16D40, 0x16D42, modifier},
                            {0x16D43, 0x16D6A, letter},
                            {0x16D6B, 0x16D6C, modifier},
                            {0x16D6D, 0x16D6F, punctuation},
                            {0x16D70, 0x16D79, digit},
                            {0x18CFF, 0x18CFF, letter},
                            {0x1B132, 0x1B132, letter},
                            {0x1B155, 0x1B155, letter},
                            {0x1CC00, 0x1CCEF, symbol},
                            {0x1CCF0, 0x1CCF9, digit},
                            {0x1CD00, 0x1CEB3, symbol},
                            {0x1D2C0, 0x1D2D3, number},
                            {0x1DF25, 0x1DF2A, lower},
                            {0x1E030, 0x1E06D, modifier},
                            {0x1E08F, 0x1E08F, mark},
                            {0x1E4D0, 0x1E4EA, letter},
                            {0x1E4EB, 0x1E4EB, modifier},
                            {0x1E4EC, 0x1E4EF, mark},
                            {0x1E4F0, 0x1E4F9, digit},
                            {0x1E5D0, 0x1E5ED, letter},
                            {0x1E5EE, 0x1E5EF, mark},
                            {0x1E5F0, 0x1E5F0, letter},
                            {0x1E5F1, 0x1E5FA, digit},
                            {0x1E5FF, 0x1E5FF, punctuation},
                            {0x1F6DC, 0x1F6DC, symbol},
                            {0x1F774, 0x1F776, symbol},
                            {0x1F77B, 0x1F77F, symbol},
                            {0x1F7D9, 0x1F7D9, symbol},
                            {0x1F8B2, 0x1F8BB, symbol},
                            {0x1F8C0, 0x1F8C1, symbol},
                            {0x1FA75, 0x1FA77, symbol},
                            {0x1FA87, 0x1FA89, symbol},
                            {0x1FA8F, 0x1FA8F, symbol},
                            {0x1FAAD, 0x1FAAF, symbol},
                            {0x1FABB, 0x1FABF, symbol},
                            {0x1FAC6, 0x1FAC6, symbol},
                            {0x1FACE, 0x1FACF, symbol},
                            {0x1FADA, 0x1FADC, symbol},
                            {0x1FADF, 0x1FADF, symbol},
                            {0x1FAE8, 0x1FAE9, symbol},
                            {0x1FAF7, 0x1FAF8, symbol},
                            {0x1FBCB, 0x1FBEF, symbol},
                            {0x2B739, 0x2B739, han},
                            {0x2EBF0, 0x2EE5D, han},
                            {0x31350, 0x323AF, han}};

const Range* newer(char32_t code) {
  // Most of what is not ASCII lies between: Han, Hangul, kana, and everything up to Arabic.
  if (code < kNewer[0].first || (code >= 0x31F0 && code < 0xA7CB) || (code > 0xA7DC && code < 0x105C0)) return nullptr;
  const Range* const range = std::lower_bound(std::begin(kNewer), std::end(kNewer), code,
                                              [](const Range& r, char32_t wanted) { return r.last < wanted; });
  return range != std::end(kNewer) && range->first <= code ? range : nullptr;
}

}  // namespace

bool replace_newer_characters(std::string_view text, std::string& replaced) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xE0) {  // One and two bytes: all older.
      ++at;
      continue;
    }
    const auto [code, bytes] = character_at(text, at);
    if (const Range* const range = newer(code)) {
      if (!found) replaced = text;
      found = true;
      replaced.replace(at, bytes, (bytes == 3 ? kThreeBytes : kFourBytes)[range->category]);
    }
    at += bytes;
  }
  return found;
}

}  // namespace weft
