#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/user_error.h"
#include "text/newer_characters.h"
#include "text/utf8.h"

namespace weft {
namespace {

using test::user_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  const Regex regex(pattern, "the test");
  Regex::Scratch scratch;
  std::vector<std::string> found;
  for (size_t from = 0; from <= text.size();) {
    const auto match = regex.find(text, from, scratch);
    if (!match) break;
    found.push_back(text.substr(match->begin, match->end - match->begin));
    from = match->end + (match->begin == match->end ? 1 : 0);
  }
  return found;
}

TEST(Regex, FindsFromLeftToRight) {
  EXPECT_THAT(matches(R"(\p{N}{1,3})", "a12345b6"), ElementsAre("123", "45", "6"));
  EXPECT_THAT(matches(R"(\s+(?!\S)|\s+)", "a   b "), ElementsAre("  ", " ", " "));
  EXPECT_THAT(matches("(?i:'s|'ll)", "it's IT'S we'LL l's"), ElementsAre("'s", "'S", "'LL", "'s"));
  EXPECT_THAT(matches("(?<=a)b", "ab cb ab"), ElementsAre("b", "b"));
}

TEST(Regex, ClassesAreThoseOfUnicode) {
  EXPECT_THAT(matches(R"(\p{L}+)", "d\u00e1bel \uacbc1\U0001d518"), ElementsAre("d\u00e1bel", "\uacbc", "\U0001d518"));
  EXPECT_THAT(matches(R"(\s)", "\u0085\u00a0\u3000\u180e\u200b\x0b"), ElementsAre("\u0085", "\u00a0", "\u3000", "\x0b"));
  EXPECT_THAT(matches(R"([^\s]+)", "a\u180e b"), ElementsAre("a\u180e", "b"));
  EXPECT_THAT(matches(R"(\w+)", "a_1\u00b2\u0301-\u2460"), ElementsAre("a_1\u00b2\u0301"));
}

TEST(Regex, LinesHaveEndsOfTheirOwn) {
  EXPECT_THAT(matches("^.|.$", "ab\ncd"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(matches(R"(.\z)", "ab\ncd"), ElementsAre("d"));
}

TEST(Regex, ALiteralMatchesItselfAlone) {
  const std::string text = R"(a.b*[c]\(d){2} |^$#-)";
  EXPECT_THAT(matches(literal_regex(text), "x" + text + "y"), ElementsAre(text));
  EXPECT_THAT(matches(literal_regex("."), "a.b"), ElementsAre("."));
}

TEST(Regex, WhatPcre2WouldReadOtherwiseIsRefusedByName) {
  const auto refusal = [](std::string_view pattern) { return user_error([&] { Regex(pattern, "the pre_tokenizer"); }); };
  EXPECT_THAT(refusal("[a-z&&[^b]]"), HasSubstr("an intersection of classes at byte 4"));
  EXPECT_THAT(refusal("[a[b]]"), HasSubstr("a class in a class"));
  EXPECT_THAT(refusal("[[:alpha:]]"), HasSubstr("a class in a class"));
  EXPECT_THAT(refusal("\\h"), HasSubstr("an escape"));
  EXPECT_THAT(refusal("\\Rx"), HasSubstr("an escape"));
  EXPECT_THAT(refusal("(a)\\1"), HasSubstr("an escape"));
  EXPECT_THAT(refusal("(?<name>a)"), HasSubstr("a group of unknown kind"));
  EXPECT_THAT(refusal("(?m:.)"), HasSubstr("a group of unknown kind"));
  EXPECT_THAT(refusal("(*LIMIT_MATCH=9)a"), HasSubstr("a group of unknown kind"));
  EXPECT_THAT(refusal("a{1,2}+"), HasSubstr("{n,m} followed by"));
  EXPECT_THAT(refusal("a{,2}"), HasSubstr("{ that begins no {n,m}"));
  EXPECT_THAT(refusal("a**"), HasSubstr("a repetition of a repetition"));
  EXPECT_THAT(refusal("(a"), HasSubstr("not valid"));
  EXPECT_THAT(refusal("[a"), HasSubstr("a class without end"));
  EXPECT_THAT(refusal("a\\"), HasSubstr("a backslash at the end"));
  EXPECT_THAT(refusal("\\p{Nope}"), HasSubstr("not valid"));
  EXPECT_THAT(refusal(std::string(100'000, 'a')), HasSubstr("too long"));
  EXPECT_THAT(refusal(std::string(1000, '(') + std::string(1000, ')')), HasSubstr("not valid"));
}

TEST(Regex, ASearchThatWouldTakeForEverIsRefused) {
  const std::string text(5000, 'a');
  EXPECT_THAT(user_error([&] { matches("(a|aa)+[bc]", text); }), HasSubstr("too slow"));
}

TEST(NewerCharacters, AreReplacedByOldOnesOfTheirKindAndLength) {
  std::string look;
  EXPECT_FALSE(replace_newer_characters("plain d\u00e1bel \uacbc \U0001F600 \u4e2d \u0950", look));
  // A capital of Unicode 16, an ideograph of 15, a symbol of 15.1, a mark of 15.
  const std::string text = "a\u1c89b\U00031350 \u2ffc.\u0ecez";
  ASSERT_TRUE(replace_newer_characters(text, look));
  EXPECT_EQ(look.size(), text.size());
  EXPECT_THAT(matches(R"(\p{Lu}|\p{Han}|\p{S}|\p{M})", text), ElementsAre());
  EXPECT_THAT(matches(R"(\p{Lu}|\p{Han}|\p{S}|\p{M})", look).size(), 4u);
  EXPECT_THAT(matches("[a-z .]", look), ElementsAre("a", "b", " ", ".", "z"));
}

}  // namespace
}  // namespace weft
