#include "tools/prompts.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/check.h"
#include "tools/commands.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string refusal(const std::string& text) {
  try {
    parse_prompts(text, "in.json");
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}
/// A file with one prompt, good but for the fields `more`.
std::string with(const std::string& more) { return R"({"prompts":[{"name":"p","input_ids":[1,2],)" + more + "}]}"; }

TEST(Prompts, AreReadWithAllFields) {
  const auto prompts = parse_prompts(R"({"prompts":[
      {"name":"prompt200","input_ids":[5,6],"generate":2,"forced_ids":[7,8],"all_logits":true,"record":["hidden","router"]},
      {"name":"b","input_ids":[0]}]})",
                                     "in.json");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].label, "prompt200");
  EXPECT_THAT(prompts[0].prompt, ElementsAre(5, 6));
  EXPECT_EQ(prompts[0].max_tokens, 2);
  EXPECT_EQ(prompts[0].sampling.temperature, 0);
  EXPECT_TRUE(prompts[0].ignore_eos);
  EXPECT_THAT(prompts[0].forced_ids, ElementsAre(7, 8));
  EXPECT_TRUE(prompts[0].capture.all_logits);
  EXPECT_TRUE(prompts[0].capture.want_logits);
  EXPECT_TRUE(prompts[0].capture.record.hidden);
  EXPECT_TRUE(prompts[0].capture.record.router);
  EXPECT_EQ(prompts[1].max_tokens, 0);
  EXPECT_THAT(prompts[1].forced_ids, IsEmpty());
  EXPECT_FALSE(prompts[1].capture.all_logits);
  EXPECT_TRUE(prompts[1].capture.want_logits);
  EXPECT_FALSE(prompts[1].capture.record.hidden);
}

TEST(Prompts, GenerateDefaultsToTheForcedIds) {
  EXPECT_EQ(parse_prompts(with(R"("forced_ids":[3,4,5])"), "").front().max_tokens, 3);
  EXPECT_EQ(parse_prompts(with(R"("forced_ids":[3,4,5],"generate":2)"), "").front().max_tokens, 2);
  EXPECT_THAT(parse_prompts(with(R"("forced_ids":[3,4,5],"generate":2)"), "").front().forced_ids, ElementsAre(3, 4));
  EXPECT_EQ(refusal(with(R"("forced_ids":[3],"generate":2)")),
            "prompts: prompts[0].forced_ids holds 1 ids for 2 generated tokens: it needs one each, path in.json");
}

TEST(Prompts, WhatIsNotComputedHereIsRefused) {
  EXPECT_THAT(refusal(with(R"("record":["dsa"])")), HasSubstr("asks for dsa, which this version does not compute"));
  EXPECT_THAT(refusal(with(R"("record":["hidden","mtp"])")), HasSubstr("asks for mtp, which this version does not compute"));
  EXPECT_THAT(refusal(with(R"("record":["everything"])")),
              HasSubstr("prompts[0].record holds \"everything\": it may hold hidden, router"));
}

TEST(Prompts, EveryFieldRefusesEveryOtherType) {
  const std::vector<std::string> values = {"null",  "true", "1",     "-1",           "1.5",   "1e400",
                                           "\"x\"", "[]",   "[1]",   "[\"a\"]",      "{}",    "99999999999999999999",
                                           "[[1]]", "[-1]", "[1.5]", "[2147483648]", "[null]"};
  const auto allowed = [](const std::string& field, const std::string& value) {
    if (field == "name") return value == "\"x\"";
    if (field == "generate") return value == "1";
    if (field == "all_logits") return value == "true";
    if (field == "record") return value == "[]";
    return value == "[1]" || (field == "forced_ids" && value == "[]");
  };
  for (const std::string field : {"name", "input_ids", "generate", "forced_ids", "all_logits", "record"})
    for (const std::string& value : values) {
      std::string text = R"({"prompts":[{)";
      if (field != "name") text += R"("name":"p",)";
      if (field != "input_ids") text += R"("input_ids":[1],)";
      text += "\"" + field + "\":" + value + "}]}";
      const std::string message = refusal(text);
      EXPECT_EQ(message.empty(), allowed(field, value)) << text << ": " << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

TEST(Prompts, RefusalsSayWhere) {
  EXPECT_EQ(refusal(R"({"prompts":[{"name":"a","input_ids":[1]},{"name":"b","input_ids":[1,-1]}]})"),
            "prompts: prompts[1].input_ids.1 must be a whole number from 0 to 2147483647: got -1, path in.json");
  EXPECT_EQ(refusal(R"({"prompts":[{"name":"a","input_ids":[]}]})"),
            "prompts: prompts[0].input_ids must hold at least one token id, path in.json");
  EXPECT_EQ(refusal(R"({"prompts":[{"input_ids":[1]}]})"), "prompts: prompts[0] lacks name, path in.json");
  EXPECT_EQ(refusal(R"({"prompts":[{"name":"a"}]})"), "prompts: prompts[0] lacks input_ids, path in.json");
  EXPECT_EQ(refusal(R"({"prompts":[{"name":"a","input_ids":[1]},{"name":"a","input_ids":[1]}]})"),
            "prompts: prompts[1] has the name of an earlier prompt: a, path in.json");
  EXPECT_EQ(
      refusal(with(R"("generat":3)")),
      "prompts: prompts[0] has an unknown field \"generat\": it may have all_logits, forced_ids, generate, input_ids, name, "
      "record, path in.json");
}

TEST(Prompts, HostileFilesEndInOneLine) {
  const std::string deep(100'000, '[');
  for (const std::string& text : {std::string(),
                                  std::string("null"),
                                  std::string("[]"),
                                  std::string("{}"),
                                  std::string("{\"prompts\":{}}"),
                                  std::string("{\"prompts\":[]}"),
                                  std::string("{\"prompts\":[1]}"),
                                  std::string("{\"prompts\":[{}],\"more\":1}"),
                                  std::string("{\"prompts\":"),
                                  std::string("\xff\xfe"),
                                  std::string("{\"prompts\":[],\"prompts\":[]}"),
                                  deep,
                                  "{\"prompts\":" + deep,
                                  with(R"("record":)" + deep),
                                  with("\"name\":\"q\""),
                                  std::string(1, '\0'),
                                  std::string(R"({"prompts":[{"name":"a b","input_ids":[1]}]})"),
                                  std::string(R"({"prompts":[{"name":"","input_ids":[1]}]})"),
                                  std::string("{\"prompts\":[{\"name\":\"a\\u0000\",\"input_ids\":[1]}]}"),
                                  R"({"prompts":[{"name":")" + std::string(201, 'n') + R"(","input_ids":[1]}]})"}) {
    const std::string message = refusal(text);
    EXPECT_THAT(message, StartsWith("prompts")) << text.substr(0, 60);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400U) << message;
  }
}

TEST(Prompts, AFileThatIsNotThereIsNamed) {
  EXPECT_THROW(load_prompts("/nowhere/in.json"), UserError);
  EXPECT_THROW(load_prompts(::testing::TempDir()), UserError) << "a folder";
}

TEST(TokenIds, AreNumbersWithCommas) {
  EXPECT_THAT(parse_token_ids("5"), ElementsAre(5));
  EXPECT_THAT(parse_token_ids("5,6,7"), ElementsAre(5, 6, 7));
  EXPECT_THAT(parse_token_ids("2147483647"), ElementsAre(2147483647));
  for (const char* text : {"", ",", "5,", ",5", "5,,6", "5 6", "5, 6", "-1", "a", "2147483648", "1.5"})
    EXPECT_THROW(parse_token_ids(text), UserError) << text;
}

}  // namespace
}  // namespace weft
