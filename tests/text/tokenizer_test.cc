#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/prop.h"
#include "support/small_stack.h"
#include "support/user_error.h"
#include "text/small_tokenizer.h"

namespace weft {
namespace {

using nlohmann::json;
using test::added_token;
using test::for_each_case;
using test::Gen;
using test::small_tokenizer_json;
using test::split;
using test::tokenizer_of;
using test::tokens_of;
using test::user_error;
using test::with_stack_of;
using test::with_stages;
using test::words_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Tokenizer, MergesByRankWithinWords) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json({{"l", "o"}, {"lo", "w"}, {" ", "low"}, {"w", "e"}, {"e", "r"}}));
  EXPECT_THAT(tokens_of(*tokenizer, "low"), ElementsAre("low"));
  EXPECT_THAT(tokens_of(*tokenizer, "low lower"), ElementsAre("low", " low", "er"));
  EXPECT_THAT(tokens_of(*tokenizer, "we wer"), ElementsAre("we", " ", "we", "r"));
  EXPECT_THAT(tokenizer->encode("low"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
  EXPECT_EQ(tokenizer->vocab_size(), 256 + 5);
}

TEST(Tokenizer, EveryByteOfACharacterIsAToken) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json());
  EXPECT_THAT(tokenizer->encode("\u00e9\n"), ElementsAre(0xC3, 0xA9, '\n'));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0xC3, 0xA9, 0xC3}), "\u00e9\uFFFD");
}

TEST(Tokenizer, MergesMayBeTextsToo) {
  json file = small_tokenizer_json({{"a", "b"}});
  file["model"]["merges"] = {"a b"};
  EXPECT_THAT(tokens_of(*tokenizer_of(file), "abc"), ElementsAre("ab", "c"));
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const auto tokenizer =
      tokenizer_of(small_tokenizer_json({{" ", "t"}, {"t", "h"}, {"th", "e"}, {"\xC3", "\xA9"}, {"\xF0", "\x9F"}}));
  for_each_case([&](Gen& gen) {
    std::string text;
    for (int64_t i = gen.in(0, 60); i > 0; --i) {
      text += gen.pick<std::string>(
          {"the", " ", "\n", "\u00e9", "\U0001F600", "1", "'s", "\u0301", "A", "--", "\u3000", "\U0001F469\u200d\U0001F467"});
    }
    const std::vector<int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_LE(static_cast<int64_t>(ids.size()), tokenizer->most_tokens(static_cast<int64_t>(text.size())));
    EXPECT_GE(static_cast<int64_t>(ids.size()), tokenizer->least_tokens(static_cast<int64_t>(text.size())));
  });
}

TEST(Tokenizer, StagesCutOneAfterTheOther) {
  const json file = small_tokenizer_json();
  EXPECT_THAT(words_of(file, "it's 12 x"), ElementsAre("it", "'s", " 12", " x"));
  EXPECT_THAT(words_of(with_stages(file, {split("[0-9]"), split("b")}), "ab12b"), ElementsAre("a", "b", "1", "2", "b"));
  const json digits = {{"type", "Digits"}, {"individual_digits", true}},
             numbers = {{"type", "Digits"}, {"individual_digits", false}};
  EXPECT_THAT(words_of(with_stages(file, {digits}), "a12\u0663"), ElementsAre("a", "1", "2", "\u0663"));
  EXPECT_THAT(words_of(with_stages(file, {numbers}), "a12b"), ElementsAre("a", "12", "b"));
  const json punctuation = {{"type", "Punctuation"}};
  EXPECT_THAT(words_of(with_stages(file, {punctuation}), "a,$b\u3002"), ElementsAre("a", ",", "$", "b", "\u3002"));
  const json literal = {{"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(words_of(with_stages(file, {literal}), "a.bc"), ElementsAre("a", ".", "bc"));
}

TEST(Tokenizer, EachBehaviorTreatsMatchesInItsWay) {
  const auto cut = [](const std::string& behavior, bool invert) {
    return words_of(with_stages(small_tokenizer_json(), {split("-", behavior, invert)}), "a-b--c");
  };
  EXPECT_THAT(cut("Isolated", false), ElementsAre("a", "-", "b", "-", "-", "c"));
  EXPECT_THAT(cut("Removed", false), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cut("Removed", true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(cut("MergedWithPrevious", false), ElementsAre("a-", "b-", "-", "c"));
  EXPECT_THAT(cut("MergedWithNext", false), ElementsAre("a", "-b", "-", "-c"));
  EXPECT_THAT(cut("Contiguous", false), ElementsAre("a", "-", "b", "--", "c"));
}

TEST(Tokenizer, APrefixSpaceGoesBeforeWhatHasNone) {
  json file = small_tokenizer_json();
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(words_of(file, "a b"), ElementsAre(" a", " b"));
  EXPECT_THAT(words_of(file, " a"), ElementsAre(" a"));
}

TEST(Tokenizer, AddedTokensAreFoundInTheText) {
  json file = small_tokenizer_json();
  file["added_tokens"] =
      json::array({added_token(256, "<s>", {{"special", true}}), added_token(257, "<think>"), added_token(258, "<s>>")});
  const auto tokenizer = tokenizer_of(file);
  EXPECT_THAT(tokenizer->encode("<s>a<think><s>>"), ElementsAre(256, 'a', 257, 258)) << "the longest one";
  EXPECT_THAT(tokenizer->encode("<s<"), ElementsAre('<', 's', '<'));
  EXPECT_THAT(tokenizer->encode("<s>", {.parse_added_tokens = false}), ElementsAre('<', 's', '>')) << "as plain text";
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_FALSE(tokenizer->is_special(257));
  EXPECT_FALSE(tokenizer->is_special('a'));
  const std::vector<int32_t> ids = {256, 'a', 257};
  EXPECT_EQ(tokenizer->decode(ids), "a<think>");
  EXPECT_EQ(tokenizer->decode(ids, false), "<s>a<think>");
  EXPECT_EQ(tokenizer->find("<think>"), 257);
  EXPECT_EQ(tokenizer->find("nothing"), std::nullopt);
}

TEST(Tokenizer, AddedTokensHeedWhatIsAroundThem) {
  json file = small_tokenizer_json();
  file["added_tokens"] = json::array({added_token(256, "<l>", {{"lstrip", true}}), added_token(257, "<r>", {{"rstrip", true}}),
                                      added_token(258, "word", {{"single_word", true}})});
  const auto tokenizer = tokenizer_of(file);
  EXPECT_THAT(tokenizer->encode("a \t<l> b"), ElementsAre('a', 256, ' ', 'b'));
  EXPECT_THAT(tokenizer->encode("a <r>\u3000 b"), ElementsAre('a', ' ', 257, 'b'));
  EXPECT_THAT(tokenizer->encode("word-word"), ElementsAre(258, '-', 258));
  EXPECT_THAT(tokenizer->encode("wordy"), ElementsAre('w', 'o', 'r', 'd', 'y'));
}

TEST(Tokenizer, NormalizedAddedTokensAreFoundAfterNormalization) {
  json file = small_tokenizer_json();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({json{{"type", "NFC"}}})}};
  file["added_tokens"] = json::array({added_token(256, "<e\u0301>", {{"normalized", true}}), added_token(257, "<a\u0301>")});
  const auto tokenizer = tokenizer_of(file);
  EXPECT_THAT(tokenizer->encode("<\u00e9><e\u0301>"), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer->encode("<a\u0301>"), ElementsAre(257));
  EXPECT_THAT(tokens_of(*tokenizer, "<\u00e1>"), ElementsAre("<", "\xC3", "\xA1", ">"));
}

TEST(Tokenizer, TheTemplateSaysWhatIsAroundEveryText) {
  json file = small_tokenizer_json();
  file["added_tokens"] =
      json::array({added_token(256, "<s>", {{"special", true}}), added_token(257, "</s>", {{"special", true}})});
  const json processor = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "</s>"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", json::array({256})}}}, {"</s>", {{"ids", json::array({257})}}}}}};
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, processor}}};
  const auto tokenizer = tokenizer_of(file);
  EXPECT_THAT(tokenizer->encode("a"), ElementsAre(256, 'a', 257));
  EXPECT_THAT(tokenizer->encode("a", {.add_special_tokens = false}), ElementsAre('a'));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre(256, 257));
}

TEST(Tokenizer, TheConfigNamesAndAddsTokens) {
  json file = small_tokenizer_json();
  file["added_tokens"] = json::array({added_token(256, "<s>", {{"special", true}})});
  const json config = {{"bos_token", {{"content", "<s>"}}},
                       {"eos_token", "</s>"},
                       {"add_bos_token", true},
                       {"add_eos_token", false},
                       {"added_tokens_decoder", {{"257", {{"content", "</s>"}, {"special", true}}}}}};
  const auto tokenizer = tokenizer_of(file, config);
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_THAT(tokenizer->encode("a</s>"), ElementsAre(256, 'a', 257));
  EXPECT_EQ(tokenizer_of(file)->bos_id(), std::nullopt);
}

TEST(Tokenizer, FilesThatContradictEachOtherAreRefused) {
  json file = small_tokenizer_json();
  file["added_tokens"] = json::array({added_token(256, "<s>")});
  const auto refusal = [&](const json& config) { return user_error([&] { tokenizer_of(file, config); }); };
  EXPECT_THAT(refusal({{"added_tokens_decoder", {{"256", {{"content", "<x>"}}}}}}), HasSubstr("two tokens have the id 256"));
  EXPECT_THAT(refusal({{"added_tokens_decoder", {{"300", {{"content", "<s>"}}}}}}),
              HasSubstr("two ids: \"<s>\" is 256 and 300"));
  EXPECT_THAT(refusal({{"eos_token", "<eos>"}}), HasSubstr("names a eos_token that is no token: \"<eos>\""));
  EXPECT_THAT(refusal({{"add_bos_token", true}}), HasSubstr("asks to add a bos_token and names none"));
}

TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
  const auto refusal = [](const std::string& pointer, const json& value) {
    json file = small_tokenizer_json({{"a", "b"}});
    file[json::json_pointer(pointer)] = value;
    const std::string message = user_error([&] { tokenizer_of(file); });
    EXPECT_THAT(message, HasSubstr("path tokenizer.json"));
    return message;
  };
  EXPECT_THAT(refusal("/model/type", "Unigram"),
              AllOf(HasSubstr("model"), HasSubstr("\"Unigram\""), HasSubstr("supported: BPE")));
  EXPECT_THAT(refusal("/model/byte_fallback", true), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(refusal("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(refusal("/model/continuing_subword_prefix", "##"), HasSubstr("model.continuing_subword_prefix"));
  EXPECT_THAT(refusal("/normalizer", {{"type", "NFKC"}}), AllOf(HasSubstr("normalizer"), HasSubstr("\"NFKC\"")));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Metaspace"}}),
              AllOf(HasSubstr("pre_tokenizer"), HasSubstr("\"Metaspace\"")));
  EXPECT_THAT(refusal("/pre_tokenizer", nullptr), HasSubstr("without ByteLevel"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, split("a")}}}),
              HasSubstr("\"Split after ByteLevel\""));
  EXPECT_THAT(refusal("/post_processor", {{"type", "BertProcessing"}}),
              AllOf(HasSubstr("post_processor"), HasSubstr("BertProcessing")));
  EXPECT_THAT(refusal("/decoder", {{"type", "WordPiece"}}), AllOf(HasSubstr("decoder"), HasSubstr("WordPiece")));
  EXPECT_THAT(refusal("/decoder", nullptr), HasSubstr("\"none\""));
  EXPECT_THAT(refusal("/model/merges", json::array({json::array({"a", "x y"})})), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(refusal("/model/merges", json::array({"a"})), HasSubstr("merge 0 is not two tokens"));
  EXPECT_THAT(refusal("/model/vocab", {{"a", -1}}), HasSubstr("whole number"));
  EXPECT_THAT(refusal("/model/vocab", {{"a", 1}, {"b", 1}}), HasSubstr("two tokens the id 1"));
  EXPECT_THAT(refusal("/added_tokens", json::array({added_token('a', "<s>")})), HasSubstr("two tokens have the id 97"));
}

TEST(Tokenizer, BadJsonIsRefused) {
  const auto refusal = [](const std::string& text) { return user_error([&] { Tokenizer::parse(text); }); };
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no object \"model\""));
  EXPECT_THAT(refusal("{\"model\": \xFF}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string(1'000'000, '[')), HasSubstr("not valid JSON"));
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json());
  EXPECT_THAT(user_error([&] { tokenizer->encode("abc\xFFz"); }), HasSubstr("the text is not UTF-8: byte 3 of 5"));
}

TEST(Tokenizer, IdsWithoutATokenAreNothing) {
  json file = small_tokenizer_json();
  file["added_tokens"] = json::array({added_token(300, "<s>", {{"special", true}})});
  const auto tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  for (const int32_t id : {-1, 256, 299, 301, 2'000'000'000}) {
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
  }
  EXPECT_EQ(tokenizer->token_bytes(300), "<s>");
}

TEST(Tokenizer, StopsReadingOnceALimitIsExceeded) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json());
  std::string text;
  for (int i = 0; i < 1000; ++i) text += " a";
  EXPECT_EQ(tokenizer->encode(text).size(), 2000u);
  const size_t cut = tokenizer->encode(text, {.max_tokens = 10}).size();
  EXPECT_GT(cut, 10u);
  EXPECT_LT(cut, 20u);
  EXPECT_EQ(tokenizer->encode(text, {.max_tokens = 2000}).size(), 2000u);
}

TEST(Tokenizer, LoadsAFolderOrAFile) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft_tokenizer_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(Tokenizer::is_in(folder));
  EXPECT_THAT(user_error([&] { Tokenizer::load(folder); }), HasSubstr("no tokenizer.json"));
  json file = small_tokenizer_json();
  file["added_tokens"] = json::array({added_token(256, "<s>", {{"special", true}})});
  std::ofstream(folder / "tokenizer.json") << file.dump();
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token": "<s>", "add_bos_token": true})";
  EXPECT_TRUE(Tokenizer::is_in(folder));
  EXPECT_THAT(Tokenizer::load(folder)->encode("a"), ElementsAre(256, 'a'));
  EXPECT_THAT(Tokenizer::load(folder / "tokenizer.json")->encode("a"), ElementsAre('a'));
  EXPECT_THROW(Tokenizer::load(folder / "nothing.json"), SystemError);
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, ManyThreadsMayUseOne) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json({{"a", "b"}, {"ab", "c"}}));
  const std::string text = "abc ab 123 \U0001F600 it's";
  const std::vector<int32_t> expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) EXPECT_EQ(tokenizer->encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// How the well-known families cut, and GPT-2.
const std::vector<std::vector<std::string>> kPatterns = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!"
     "\\S)|\\s+"},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

TEST(Tokenizer, AMegabyteOfAnythingNeedsLittleStackAndNoQuadraticTime) {
  const std::vector<std::string> units = {
      "a",  "A", " ",          "\n",           " \n",    "\t", "1",  "-",    "\u4e2d", "aA",          "A\u4e2d",
      "'s", "<", "\U0001F600", "\u0301\u0323", "\u0301", "a ", "\r", "\x01", "<s",     "\u0f73\u0323"};
  const std::vector<std::string> beginnings =
      std::getenv("WEFT_FULL") != nullptr ? std::vector<std::string>{"", "e", " "} : std::vector<std::string>{"e"};
  for (const auto& patterns : kPatterns) {
    std::vector<json> stages;
    for (const std::string& pattern : patterns) stages.push_back(split(pattern));
    json file =
        with_stages(small_tokenizer_json({{"a", "a"}, {"aa", "aa"}, {" ", " "}, {"\xF0", "\x9F"}, {"\xCC", "\x81"}}), stages);
    file["normalizer"] = {{"type", "NFC"}};
    file["added_tokens"] =
        json::array({added_token(300, "<s>", {{"lstrip", true}}), added_token(301, "aaaaaaaaaaaaaaaab", {{"rstrip", true}})});
    const auto tokenizer = tokenizer_of(file);
    with_stack_of(512 * 1024, [&] {
      for (const std::string& unit : units) {
        for (const std::string& beginning : beginnings) {
          std::string text = beginning;
          while (text.size() < 1'000'000) text += unit;
          const std::vector<int32_t> ids = tokenizer->encode(text + "x");
          EXPECT_FALSE(ids.empty());
          if (static_cast<unsigned char>(unit[0]) < 0x80) {
            EXPECT_EQ(tokenizer->decode(ids), text + "x");
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace weft
