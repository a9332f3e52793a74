#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

std::string repaired(std::string_view bytes) {
  std::string text;
  Utf8Stream stream;
  stream.append(bytes, text);
  stream.finish(text);
  return text;
}

TEST(Utf8, ValidTextEndsWhereTheFirstBadByteBegins) {
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  EXPECT_EQ(valid_utf8_prefix("plain text, longer than eight bytes"), 35u);
  EXPECT_EQ(valid_utf8_prefix("d\u00e1bel \uacbc \U0001d518"), 15u);
  EXPECT_EQ(valid_utf8_prefix("abc\xE2\x82"), 3u) << "cut";
  EXPECT_EQ(valid_utf8_prefix("ab\xC0\xAF"), 2u) << "overlong";
  EXPECT_EQ(valid_utf8_prefix("ab\xED\xA0\x80"), 2u) << "a surrogate";
  EXPECT_EQ(valid_utf8_prefix("ab\xF4\x90\x80\x80"), 2u) << "above U+10FFFF";
  EXPECT_EQ(valid_utf8_prefix("ab\x80"), 2u) << "no lead byte";
}

TEST(Utf8, EveryCharacterSurvivesBothWays) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(valid_utf8_prefix(text), text.size()) << static_cast<uint32_t>(code);
    ASSERT_EQ(character_at(text, 0).code, code);
    ASSERT_EQ(character_at(text, 0).bytes, text.size());
    ASSERT_EQ(character_before("x" + text, 1 + text.size()).code, code);
  }
}

TEST(Utf8, BadBytesBecomeOneReplacementPerMaximalSubpart) {
  EXPECT_EQ(repaired("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(repaired("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xE2\x82\xE2\x82\xAC"), "\uFFFD\u20AC");
  EXPECT_EQ(repaired("\xF0\x9F"), "\uFFFD");
  EXPECT_EQ(repaired("\xE9t\xE9"), "\uFFFDt\uFFFD");
}

TEST(Utf8, ACharacterComesWhenItIsComplete) {
  Utf8Stream stream;
  std::string text;
  for (const char byte : std::string("\xF0\x9F\x98")) stream.append({&byte, 1}, text);
  EXPECT_EQ(text, "");
  EXPECT_EQ(stream.held_bytes(), 3u);
  stream.append("\x80!", text);
  EXPECT_EQ(text, "\U0001F600!");
  EXPECT_EQ(stream.held_bytes(), 0u);
}

TEST(Utf8, TheResultDoesNotDependOnThePieces) {
  for_each_case([](Gen& gen) {
    std::string bytes;
    for (int64_t i = gen.in(0, 40); i > 0; --i) {
      bytes += gen.chance(0.3)
                   ? gen.pick<std::string>({"\u00e9", "\u20ac", "\U0001F600", "abcdefghij"})
                   : std::string(1, static_cast<char>(gen.pick({0xE0, 0xED, 0xF0, 0xF4, 0x80, 0x9F, 0xA0, 0x41, 0xC2, 0xFF})));
    }
    std::string text;
    Utf8Stream stream;
    for (size_t at = 0; at < bytes.size();) {
      const auto size = static_cast<size_t>(gen.in(1, 5));
      stream.append(std::string_view(bytes).substr(at, size), text);
      EXPECT_EQ(valid_utf8_prefix(text), text.size());
      at += size;
    }
    stream.finish(text);
    EXPECT_EQ(text, repaired(bytes));
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      EXPECT_EQ(text, bytes);
    }
  });
}

}  // namespace
}  // namespace weft
