// tokenizer.json of models whose vocabulary came from SentencePiece: BPE over characters with spaces as marks, bytes for what
// is no character of the vocabulary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/prop.h"
#include "support/small_stack.h"
#include "support/user_error.h"
#include "text/detokenizer.h"
#include "text/small_tokenizer.h"
#include "text/tokenizer.h"

namespace weft {
namespace {

using nlohmann::json;
using test::for_each_case;
using test::Gen;
using test::kMark;
using test::marked_tokenizer_json;
using test::replace_stage;
using test::tokenizer_of;
using test::tokens_of;
using test::user_error;
using test::with_stack_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json small() {
  return marked_tokenizer_json({"a", "b", "c", "\u00e9"}, {{"a", "b"}, {kMark, "ab"}, {kMark, kMark}, {"c", "\u00e9"}});
}

json with_metaspace(json file, const std::string& scheme, bool split) {
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", scheme}, {"split", split}};
  return file;
}

TEST(SpaceMarks, CharactersMergeAndSpacesAreMarks) {
  const auto tokenizer = tokenizer_of(small());
  EXPECT_THAT(tokens_of(*tokenizer, "ab c\u00e9"), ElementsAre(" ab", " ", "c\u00e9"));
  EXPECT_THAT(tokens_of(*tokenizer, "ba  ab   b"), ElementsAre(" ", "b", "a", " ", " ab", "  ", " ", "b")) << "by rank";
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
}

TEST(SpaceMarks, WhatIsNoCharacterOfTheVocabularyIsItsBytes) {
  const auto tokenizer = tokenizer_of(small());
  EXPECT_THAT(tokenizer->encode("\n", {}), ElementsAre(259, 3 + '\n'));
  EXPECT_THAT(tokens_of(*tokenizer, "a\u00ef"), ElementsAre(" ", "a", "\xC3", "\xAF"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\u00ef\U0001F600 <0x41>")), "a\u00ef\U0001F600 <0x41>");
}

TEST(SpaceMarks, DecodingTakesAwayTheSpaceThatWasAdded) {
  const auto tokenizer = tokenizer_of(small());
  for (const char* const text : {"ab", " ab", "  ", "b ab"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(tokenizer->decode_further(tokenizer->encode(text)), std::string(" ") + text);
  }
  json gemma = small();
  gemma["normalizer"] = replace_stage(" ", kMark);
  gemma["decoder"]["decoders"].erase(3);
  EXPECT_THAT(tokens_of(*tokenizer_of(gemma), "ab ab"), ElementsAre("ab", " ab"));
  EXPECT_EQ(tokenizer_of(gemma)->decode(tokenizer_of(gemma)->encode(" ab")), " ab");
}

TEST(SpaceMarks, MetaspacePutsAMarkWhereNoneIs) {
  const auto cut = [](const std::string& scheme, const std::string& text, bool split = false) {
    return tokens_of(*tokenizer_of(with_metaspace(small(), scheme, split)), text);
  };
  EXPECT_THAT(cut("always", "ab<s>ab"), ElementsAre(" ab", "<s>", " ab"));
  EXPECT_THAT(cut("first", "ab<s>ab"), ElementsAre(" ab", "<s>", "ab"));
  EXPECT_THAT(cut("first", "<s>ab"), ElementsAre("<s>", "ab"));
  EXPECT_THAT(cut("never", "ab<s>ab"), ElementsAre("ab", "<s>", "ab"));
  EXPECT_THAT(cut("always", " ab"), ElementsAre(" ab")) << "there is one already";
  EXPECT_THAT(cut("always", "a  b", true), ElementsAre(" ", "a", " ", " ", "b")) << "cut before every mark";
  EXPECT_THAT(cut("always", "a  b", false), ElementsAre(" ", "a", "  ", "b"));
}

TEST(SpaceMarks, ATokenMayReachOverAMark) {
  const json file = marked_tokenizer_json({"a", "b", ">"}, {{">", kMark}, {">" + kMark, "a"}, {kMark, "a"}, {"b", "b"}});
  EXPECT_THAT(tokens_of(*tokenizer_of(file), "bb> a a"), ElementsAre(" ", "bb", "> a", " a"));
}

TEST(SpaceMarks, CuttingBeforeMarksChangesNothing) {
  std::vector<std::pair<std::string, std::string>> merges = {{"a", "a"},           {kMark, "a"}, {"b", "a"},
                                                             {kMark, kMark},       {"aa", "b"},  {kMark + "a", "a"},
                                                             {kMark + kMark, "b"}, {"aa", "aa"}};
  const std::vector<std::string> characters = {"a", "b", "Z"};
  const auto cut = tokenizer_of(marked_tokenizer_json(characters, merges));
  // The same merges, and tokens that reach from every character over a mark, so that nothing is cut. The texts have none of
  // them.
  merges.emplace_back(kMark, "Z");
  for (const char* const before : {"a", "b"}) merges.emplace_back(before, kMark + "Z");
  const auto whole = tokenizer_of(marked_tokenizer_json(characters, merges));
  for_each_case([&](Gen& gen) {
    std::string text;
    for (int64_t i = gen.in(0, 80); i > 0; --i) text += gen.pick<std::string>({"a", "b", " ", "aa", "  "});
    EXPECT_EQ(tokens_of(*cut, text), tokens_of(*whole, text)) << text;
  });
}

TEST(SpaceMarks, StreamsAreTheWholeText) {
  const auto tokenizer = tokenizer_of(small());
  for_each_case([&](Gen& gen) {
    std::vector<int32_t> ids;
    for (int64_t i = gen.in(0, 30); i > 0; --i) ids.push_back(static_cast<int32_t>(gen.in(0, tokenizer->vocab_size() - 1)));
    Detokenizer stream(*tokenizer);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = stream.append(id);
      EXPECT_EQ(valid_utf8_prefix(piece), piece.size());
      text += piece;
    }
    EXPECT_EQ(text + stream.finish(), tokenizer->decode_further(ids));
  });
}

TEST(SpaceMarks, WhatIsNotSupportedIsRefusedByName) {
  const auto refusal = [](const std::string& pointer, const json& value) {
    json file = small();
    file[json::json_pointer(pointer)] = value;
    return user_error([&] { tokenizer_of(file); });
  };
  EXPECT_THAT(refusal("/normalizer", {{"type", "Lowercase"}}), HasSubstr("\"Lowercase\""));
  EXPECT_THAT(refusal("/normalizer", replace_stage("a", "b")), HasSubstr("normalizer.Replace"));
  EXPECT_THAT(refusal("/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}), HasSubstr("normalizer.prepend"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "ByteLevel"}}), HasSubstr("true with ByteLevel"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}), HasSubstr("pre_tokenizer.replacement"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "last"}}),
              HasSubstr("\"last\""));
  EXPECT_THAT(refusal("/decoder", {{"type", "ByteFallback"}}), HasSubstr("without Replace or ByteFallback"));
  EXPECT_THAT(refusal("/decoder", {{"type", "CTC"}}), HasSubstr("\"CTC\""));
  EXPECT_THAT(refusal("/decoder/decoders/3/start", 2), HasSubstr("decoder.Strip"));
  EXPECT_THAT(refusal("/model/merges", json::array({json::array({"<0x41>", "a"})})), HasSubstr("not"));
  json file = small();
  file["model"]["vocab"].erase("<0x7F>");
  EXPECT_THAT(user_error([&] { tokenizer_of(file); }), HasSubstr("a byte has no token"));
}

TEST(SpaceMarks, AMegabyteOfAnythingNeedsLittleStackAndNoQuadraticTime) {
  const auto tokenizer = tokenizer_of(marked_tokenizer_json(
      {"a", "b", "\u6771"}, {{"a", "a"}, {"aa", "aa"}, {kMark, kMark}, {kMark + kMark, kMark + kMark}, {kMark, "a"}}));
  with_stack_of(512 * 1024, [&] {
    for (const std::string unit : {"a", " ", "\n", "\u6771", "\U0001F600", "\u0301", "a ", "ab"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  });
}

}  // namespace
}  // namespace weft
