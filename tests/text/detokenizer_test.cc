#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/prop.h"
#include "support/user_error.h"
#include "text/small_tokenizer.h"

namespace weft {
namespace {

using test::added_token;
using test::for_each_case;
using test::Gen;
using test::small_tokenizer_json;
using test::tokenizer_of;
using test::user_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 300, kThink = 301;

const Tokenizer& tokenizer() {
  static const auto one = [] {
    nlohmann::json file = small_tokenizer_json(
        {{"\n", "\n"}, {"A", "B"}, {"AB", "C"}, {"D", "E"}, {"F", "G"}, {"\xF0", "\x9F"}, {"\x98", "\x80"}});
    file["added_tokens"] =
        nlohmann::json::array({added_token(kEnd, "<|end|>", {{"special", true}}), added_token(kThink, "<think>")});
    return tokenizer_of(file);
  }();
  return *one;
}

int32_t id(std::string_view token) { return tokenizer().find(token).value(); }

/// Every piece, the last from finish().
std::vector<std::string> pieces(const std::vector<int32_t>& ids, const DetokenizerOptions& options = {}) {
  Detokenizer detokenizer(tokenizer(), options);
  std::vector<std::string> all;
  for (const int32_t token : ids) all.push_back(detokenizer.append(token));
  all.push_back(detokenizer.finish());
  return all;
}

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& piece : all) text += piece;
  return text;
}

TEST(Detokenizer, ACharacterComesWithItsLastToken) {
  EXPECT_THAT(pieces({id("\xF0\x9F"), id("\x98\x80"), 'a'}), ElementsAre("", "\U0001F600", "a", ""));
  EXPECT_THAT(pieces({0xC3, 0xA9}), ElementsAre("", "\u00e9", ""));
}

TEST(Detokenizer, AnIncompleteCharacterIsReplacedAtTheEnd) {
  EXPECT_THAT(pieces({'a', id("\xF0\x9F")}), ElementsAre("a", "", "\uFFFD"));
  EXPECT_THAT(pieces({id("\xF0\x9F"), 'a'}), ElementsAre("",
                                                         "\uFFFD"
                                                         "a",
                                                         ""));
}

TEST(Detokenizer, SpecialTokensAreNoText) {
  EXPECT_THAT(pieces({'a', kEnd, kThink, 'b'}), ElementsAre("a", "", "<think>", "b", ""));
  EXPECT_THAT(pieces({'a', kEnd}, {.skip_special = false}), ElementsAre("a", "<|end|>", ""));
  EXPECT_THAT(pieces({0xC3, kEnd, 0xA9}), ElementsAre("", "", "\u00e9", ""));
}

TEST(Detokenizer, NothingOfAStopStringIsGiven) {
  EXPECT_THAT(pieces({id("ABC"), id("DE"), id("FG"), 'H'}, {.stops = {"DEFGH"}}), ElementsAre("ABC", "", "", "", ""));
  EXPECT_THAT(pieces({'x', id("\n\n"), 'y'}, {.stops = {"\n\n"}}), ElementsAre("x", "", "", ""));
  EXPECT_THAT(pieces({'x', '\n', '\n', 'y'}, {.stops = {"\n\n"}}), ElementsAre("x", "", "", "", ""));
  EXPECT_THAT(pieces({id("ABC")}, {.stops = {"B"}}), ElementsAre("A", ""));
}

TEST(Detokenizer, TextKeptBackIsGivenWhenTheMatchFails) {
  EXPECT_THAT(pieces({id("ABC"), id("DE"), 'x'}, {.stops = {"DEFG"}}), ElementsAre("ABC", "", "DEx", ""));
  EXPECT_THAT(pieces({id("DE")}, {.stops = {"DEFG"}}), ElementsAre("", "DE"));
  EXPECT_THAT(pieces({'a', 'a', 'b'}, {.stops = {"ab"}}), ElementsAre("", "a", "", ""));
}

TEST(Detokenizer, SaysWhichStopItWas) {
  Detokenizer detokenizer(tokenizer(), {.stops = {"zz", "BC", "ABC"}});
  EXPECT_EQ(detokenizer.append(id("AB")), "");
  EXPECT_EQ(detokenizer.held_bytes(), 2u);
  EXPECT_EQ(detokenizer.stop(), std::nullopt);
  EXPECT_EQ(detokenizer.append('C'), "");
  EXPECT_EQ(detokenizer.stop(), 2u) << "of two that end here, the one that began first";
  EXPECT_EQ(detokenizer.append('x') + detokenizer.finish(), "");
}

TEST(Detokenizer, OfAStopAndItsBeginningTheBeginningCounts) {
  EXPECT_EQ(joined(pieces({'x', 'a', 'b', 'c'}, {.stops = {"abc", "ab"}})), "x");
  EXPECT_EQ(joined(pieces({'x', 'a', 'b', 'c'}, {.stops = {"abcd", "bc"}})), "xa");
}

TEST(Detokenizer, AStopMayEndWithinATokenAndBeginWithinACharactersTokens) {
  EXPECT_EQ(joined(pieces({'x', id("\xF0\x9F"), id("\x98\x80"), 'y'}, {.stops = {"\U0001F600"}})), "x");
  // The same first bytes, another character.
  EXPECT_EQ(joined(pieces({'x', id("\xF0\x9F"), 0x98, 0x81, 'y'}, {.stops = {"\U0001F600"}})), "x\U0001F601y");
  // A stop that is U+FFFD itself, made by the end.
  EXPECT_EQ(joined(pieces({'x', 0xC3}, {.stops = {"\uFFFD"}})), "x");
}

TEST(Detokenizer, TheStopIsGivenWhereAskedFor) {
  EXPECT_EQ(joined(pieces({id("ABC"), 'x'}, {.stops = {"B"}, .include_stop = true})), "AB");
}

TEST(Detokenizer, StopsThatAreNoTextAreRefused) {
  EXPECT_THAT(user_error([] { Detokenizer(tokenizer(), {.stops = {"a", ""}}); }), HasSubstr("empty"));
  EXPECT_THAT(user_error([] { Detokenizer(tokenizer(), {.stops = {"\xC3"}}); }), HasSubstr("UTF-8"));
}

/// The text up to the stop that is complete first.
std::string cut(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(Detokenizer, AllPiecesTogetherAreTheWholeTextUpToTheStop) {
  for_each_case(
      [](Gen& gen) {
        std::vector<int32_t> ids;
        for (int64_t i = gen.in(0, 40); i > 0; --i) {
          ids.push_back(gen.pick({int32_t{'a'}, int32_t{'b'}, int32_t{'a'}, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xE2,
                                  id("\xF0\x9F"), id("\x98\x80"), id("\n\n"), int32_t{'\n'}, kEnd, kThink}));
        }
        std::vector<std::string> stops;
        for (int64_t i = gen.in(0, 3); i > 0; --i) {
          std::string stop;
          for (int64_t n = gen.in(1, 4); n > 0; --n)
            stop += gen.pick<std::string>({"a", "b", "\n", "\u00e9", "\U0001F600", "\uFFFD"});
          stops.push_back(stop);
        }
        const std::string whole = tokenizer().decode(ids);
        const std::vector<std::string> all = pieces(ids, {.stops = StopTexts(stops)});
        EXPECT_EQ(joined(all), cut(whole, stops));
        for (const std::string& piece : all) EXPECT_EQ(valid_utf8_prefix(piece), piece.size()) << "a character was split";
      },
      2000);
}

}  // namespace
}  // namespace weft
