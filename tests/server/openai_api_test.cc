#include "server/openai_api.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ApiLimits limits() { return {.vocab = 1000}; }

CompletionRequest parse(const std::string& body) { return parse_completion(body, limits()); }
/// A body whose prompt is fine, and `field` as written.
std::string with(const std::string& field, const std::string& value) {
  return R"({"prompt":[1,2],")" + field + "\":" + value + "}";
}

/// The error of a body; status 0 if it was accepted.
ApiError refusal(const std::string& body) {
  try {
    parse(body);
  } catch (const ApiError& error) {
    return error;
  }
  return ApiError(0, "accepted: " + body.substr(0, 200));
}

TEST(OpenAiRequest, APromptAloneMeansTheDefaults) {
  const CompletionRequest request = parse(R"({"prompt":"hi"})");
  ASSERT_THAT(request.prompts, SizeIs(1));
  EXPECT_TRUE(request.prompts[0].is_text);
  EXPECT_EQ(request.prompts[0].text, "hi");
  EXPECT_EQ(request.base.max_tokens, 16);
  EXPECT_FALSE(request.max_tokens_given);
  EXPECT_EQ(request.base.sampling.temperature, 1);
  EXPECT_EQ(request.base.choices, 1);
  EXPECT_EQ(request.base.log_probs, -1);
  EXPECT_FALSE(request.stream);
}

TEST(OpenAiRequest, PromptsAreTextOrIdsOneOrMany) {
  EXPECT_THAT(parse(R"({"prompt":[5,6,999]})").prompts.at(0).ids, ElementsAre(5, 6, 999));
  const auto texts = parse(R"({"prompt":["a","b"]})").prompts;
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[1].text, "b");
  const auto lists = parse(R"({"prompt":[[1],[2,3]]})").prompts;
  ASSERT_THAT(lists, SizeIs(2));
  EXPECT_THAT(lists[1].ids, ElementsAre(2, 3));
  EXPECT_THAT(parse(R"({"prompt":[1,2],"prompt":[[3]]})").prompts.at(0).ids, ElementsAre(3)) << "the last of two counts";
}

TEST(OpenAiRequest, AWrongPromptIsRefusedWithItsPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"[-1]", "prompt[0]"},
                                                                  {"[1,1000]", "prompt[1]"},
                                                                  {"[4294967294]", "prompt[0]"},
                                                                  {"[[1,2],[-1]]", "prompt[1][0]"},
                                                                  {"[1.5]", "prompt[0]"},
                                                                  {"[true]", "prompt[0]"},
                                                                  {"[1,[2]]", "prompt[1]"},
                                                                  {"[1,\"a\"]", "prompt[1]"},
                                                                  {"[[1],2]", "prompt[1]"},
                                                                  {"[[[1]]]", "prompt[0][0]"},
                                                                  {"{}", "prompt"},
                                                                  {"7", "prompt"},
                                                                  {"true", "prompt"},
                                                                  {"[null]", "prompt[0]"},
                                                                  {"[[null]]", "prompt[0][0]"},
                                                                  {"[[\"a\"]]", "prompt[0][0]"},
                                                                  {"[{}]", "prompt[0]"},
                                                                  {"[99999999999999999999]", "prompt[0]"},
                                                                  {"[]", "prompt is missing"},
                                                                  {"null", "prompt is missing"}};
  for (const auto& [prompt, place] : cases) {
    const ApiError error = refusal("{\"prompt\":" + prompt + "}");
    EXPECT_EQ(error.status, 400) << prompt << error.what();
    EXPECT_THAT(error.what(), HasSubstr(place)) << prompt;
    EXPECT_EQ(error.param, "prompt") << prompt;
  }
  EXPECT_EQ(refusal("{}").status, 400);
  std::string many = "{\"prompt\":[\"a\"";
  for (int i = 0; i < 1024; ++i) many += ",\"a\"";
  EXPECT_THAT(refusal(many + "]}").what(), HasSubstr("more than 1024 prompts"));
}

/// Every field that is read, and values of every JSON type that it takes.
const std::map<std::string, std::vector<std::string>> kFields = {
    {"model", {"\"m\""}},
    {"max_tokens", {"5"}},
    {"max_completion_tokens", {"5"}},
    {"temperature", {"0", "0.5", "2"}},
    {"top_p", {"0", "0.5", "1"}},
    {"top_k", {"-1", "0", "5", "9999999", "2147483648"}},
    {"min_p", {"0", "0.1", "1"}},
    {"presence_penalty", {"-2", "0.5"}},
    {"frequency_penalty", {"-2", "0.5"}},
    {"repetition_penalty", {"1", "1.5"}},
    {"logit_bias", {"{}", "{\"5\":-100}"}},
    {"stop", {"\"x\"", "[\"x\",\"y\"]", "[]"}},
    {"stop_token_ids", {"[1]", "[]"}},
    {"include_stop_str_in_output", {"true", "false"}},
    {"seed", {"0", "-5", "9223372036854775807"}},
    {"n", {"1", "128"}},
    {"logprobs", {"0", "20"}},
    {"prompt_logprobs", {"0", "20"}},
    {"echo", {"true", "false"}},
    {"stream", {"true", "false"}},
    {"ignore_eos", {"true", "false"}},
    {"min_tokens", {"0", "16"}},
    {"allowed_token_ids", {"[1,2]"}},
    {"cache_salt", {"\"s\""}},
    {"return_token_ids", {"true"}},
    {"return_tokens_as_token_ids", {"true"}},
    {"skip_special_tokens", {"true"}},
    {"add_special_tokens", {"true"}},
    {"truncate_prompt_tokens", {"-1", "5"}},
    {"timings", {"true", "false"}},
    {"timeout", {"0.001", "5", "86400"}},
    {"request_timeout", {"0.5", "86400"}},
    {"request_id", {"\"mine\""}},
    {"rid", {"\"mine\""}},
};

TEST(OpenAiRequest, EveryFieldTakesItsOwnTypesAndNullAndNothingElse) {
  const std::vector<std::string> values = {"\"text\"",
                                           "-7",
                                           "0.5",
                                           "true",
                                           "[]",
                                           "[1.5]",
                                           "[\"\"]",
                                           "{}",
                                           "{\"a\":1}",
                                           "NaN",
                                           "1e999",
                                           "-1e999",
                                           "123456789012345678901234567890",
                                           "\"1\"",
                                           "Infinity",
                                           "[-1]",
                                           "[99999]"};
  for (const auto& [field, good] : kFields) {
    for (const std::string& value : good) EXPECT_NO_THROW(parse(with(field, value))) << field << value;
    EXPECT_NO_THROW(parse(with(field, "null"))) << field;
    int refused = 0;
    for (const std::string& value : values) {
      const ApiError error = refusal(with(field, value));
      if (error.status == 0) continue;  // One of the values that the field does take.
      ++refused;
      EXPECT_EQ(error.status, 400) << field << value;
      EXPECT_EQ(error.param, field) << value << error.what();
      EXPECT_THAT(error.what(), HasSubstr(field)) << value;
    }
    EXPECT_GE(refused, 9) << field;
  }
}

TEST(OpenAiRequest, ValuesOutOfRangeAreRefusedWithTheRange) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"temperature", "-1"},
                                                                  {"timeout", "0"},
                                                                  {"timeout", "-1"},
                                                                  {"request_timeout", "86401"},
                                                                  {"temperature", "101"},
                                                                  {"top_p", "1.01"},
                                                                  {"top_p", "-0.1"},
                                                                  {"min_p", "2"},
                                                                  {"presence_penalty", "2.1"},
                                                                  {"frequency_penalty", "-3"},
                                                                  {"repetition_penalty", "0"},
                                                                  {"n", "0"},
                                                                  {"n", "129"},
                                                                  {"logprobs", "21"},
                                                                  {"logprobs", "-1"},
                                                                  {"prompt_logprobs", "21"},
                                                                  {"max_tokens", "-1"},
                                                                  {"max_tokens", "0"},
                                                                  {"max_completion_tokens", "0"},
                                                                  {"max_tokens", "4294967296"},
                                                                  {"min_tokens", "17"},
                                                                  {"top_k", "-2"},
                                                                  {"stop", "[\"\"]"},
                                                                  {"stop", "\"\""},
                                                                  {"stop_token_ids", "[1000]"},
                                                                  {"allowed_token_ids", "[]"},
                                                                  {"allowed_token_ids", "[-1]"},
                                                                  {"logit_bias", "{\"-1\":5}"},
                                                                  {"logit_bias", "{\"999999\":5}"},
                                                                  {"logit_bias", "{\"abc\":5}"},
                                                                  {"logit_bias", "{\"5\":101}"},
                                                                  {"logit_bias", "{\"5\":\"x\"}"}};
  for (const auto& [field, value] : cases) {
    const ApiError error = refusal(with(field, value));
    EXPECT_EQ(error.status, 400) << field << value;
    EXPECT_EQ(error.param, field) << value << error.what();
  }
  EXPECT_EQ(refusal(with(
                        "stop", "[" + std::string("\"a\"") +
                                    [] {
                                      std::string more;
                                      for (int i = 0; i < 64; ++i) more += ",\"a\"";
                                      return more;
                                    }() +
                                    "]"))
                .status,
            400);
}

TEST(OpenAiRequest, WhatIsNotJsonIsRefusedAndSaysWhere) {
  for (const std::string body :
       {"", "x", "[1]", "7", "null", "{\"prompt\":[1]", "{\"prompt\":[1]}x", "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\\ud800\"}", "{'prompt':1}", "{\"prompt\":[1],}", "{\"a\":{},\"prompt\":[1]}}"}) {
    EXPECT_EQ(refusal(body).status, 400) << body;
  }
  EXPECT_THAT(refusal(R"({"prompt":[1],"temperature":NaN})").what(), HasSubstr("temperature"));
  EXPECT_THAT(refusal(R"({"prompt":[1],"logit_bias":{"5":1e400}})").what(),
              AllOf(HasSubstr("logit_bias"), HasSubstr("out of range")));
  EXPECT_THAT(refusal("{\"a\":" + std::string(100, '[')).what(), HasSubstr("nested too deep"));
  EXPECT_THAT(refusal("{\"prompt\":" + std::string(100000, '[')).what(), HasSubstr("prompt"));
  std::string wide = "{\"a\":[0";
  for (int i = 0; i < 1 << 17; ++i) wide += ",0";
  EXPECT_THAT(refusal(wide + "]}").what(), HasSubstr("more than"));
}

TEST(OpenAiRequest, WhatThisVersionDoesNotHaveIsRefusedWithAnAlternative) {
  for (const auto& [field, value] : std::map<std::string, std::string>{{"best_of", "3"},
                                                                       {"use_beam_search", "true"},
                                                                       {"suffix", "\"x\""},
                                                                       {"lora_request", "{\"a\":1}"},
                                                                       {"prompt_embeds", "\"AAAA\""},
                                                                       {"bad_words", "[\"x\"]"},
                                                                       {"guided_json", "{\"type\":\"object\"}"},
                                                                       {"structured_outputs", "{\"regex\":\"a\"}"},
                                                                       {"response_format", "{\"type\":\"json_object\"}"},
                                                                       {"priority", "5"},
                                                                       {"kv_transfer_params", "{\"a\":1}"}}) {
    const ApiError error = refusal(with(field, value));
    EXPECT_EQ(error.status, 400) << field;
    EXPECT_EQ(error.param, field);
    EXPECT_EQ(error.code, "unsupported_parameter") << field;
    EXPECT_THAT(error.what(), HasSubstr("not supported by this version")) << field;
    EXPECT_NO_THROW(parse(with(field, "null"))) << field;
  }
  EXPECT_NO_THROW(parse(R"({"prompt":[1],"best_of":1,"use_beam_search":false,"suffix":"","bad_words":[],"priority":0})"));
  EXPECT_NO_THROW(parse(R"({"prompt":[1],"response_format":{"type":"text"}})"));
}

TEST(OpenAiRequest, UnknownFieldsAreCollectedAndKnownIdleOnesForgotten) {
  EXPECT_THAT(parse(R"({"prompt":[1],"user":"u","metadata":{"a":[1]},"store":true})").ignored, IsEmpty());
  EXPECT_THAT(parse(R"({"prompt":[1],"what":{"a":[1,{"b":2}]}})").ignored, ElementsAre("what"));
}

TEST(OpenAiRequest, ValuesArriveWhereTheyBelong) {
  const CompletionRequest r = parse(
      R"({"prompt":[1],"model":"m","max_tokens":7,"min_tokens":2,"temperature":0.5,"top_k":3,"top_p":0.25,"min_p":0.125,
          "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":2,"logit_bias":{"7":-5},"allowed_token_ids":[4,5],
          "seed":-1,"n":2,"stop":["a","b"],"stop_token_ids":[9],"logprobs":3,"prompt_logprobs":2,"echo":true,"ignore_eos":true,
          "cache_salt":"s","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.base.max_tokens, 7);
  EXPECT_TRUE(r.max_tokens_given);
  EXPECT_EQ(r.base.min_tokens, 2);
  EXPECT_EQ(r.base.sampling.temperature, 0.5f);
  EXPECT_EQ(r.base.sampling.top_k, 3);
  EXPECT_EQ(r.base.sampling.top_p, 0.25f);
  EXPECT_EQ(r.base.sampling.min_p, 0.125f);
  EXPECT_EQ(r.base.sampling.presence_penalty, 1);
  EXPECT_EQ(r.base.sampling.frequency_penalty, -1);
  EXPECT_EQ(r.base.sampling.repetition_penalty, 2);
  EXPECT_EQ(r.base.sampling.logit_bias.at(0).token, 7);
  EXPECT_EQ(r.base.sampling.logit_bias.at(0).bias, -5);
  EXPECT_THAT(r.base.sampling.allowed_tokens, ElementsAre(4, 5));
  EXPECT_EQ(r.base.sampling.seed, UINT64_MAX);
  EXPECT_EQ(r.base.choices, 2);
  EXPECT_THAT(r.stops, ElementsAre("a", "b"));
  EXPECT_THAT(r.base.stop_tokens, ElementsAre(9));
  EXPECT_EQ(r.base.log_probs, 3);
  EXPECT_EQ(r.base.prompt_log_probs, 2);
  EXPECT_TRUE(r.echo && r.stream && r.include_usage && r.base.ignore_eos);
  EXPECT_EQ(r.base.cache_salt, "s");
  EXPECT_EQ(parse(with("timeout", "1.5")).base.timeout_us, 1'500'000);
  EXPECT_EQ(parse(with("request_timeout", "2, \"timeout\": 5")).base.timeout_us, 2'000'000);
  EXPECT_EQ(parse(with("timeout", "null")).base.timeout_us, 0);
  EXPECT_EQ(parse(with("rid", "\"mine\"")).client_id, "mine");
  EXPECT_EQ(parse(with("top_k", "9999999")).base.sampling.top_k, 0) << "as large as the vocabulary is off";
  EXPECT_EQ(parse(with("max_completion_tokens", "9, \"max_tokens\": 5")).base.max_tokens, 9);
  EXPECT_EQ(refusal(R"({"prompt":[1],"stream_options":{"include_usage":true}})").param, "stream_options");
  EXPECT_EQ(refusal(R"({"prompt":[1],"stream":true,"stream_options":{"include_usage":"yes"}})").param, "stream_options");
}

TEST(OpenAiAnswer, LogProbsAreTheSameNumberInBothPlacesAndFinite) {
  ChoiceOut choice;
  const float value = -0.1f / 3;
  choice.log_probs = {{.token = "a", .bytes = {}, .log_prob = std::nullopt, .top = {}, .offset = 0},
                      {.token = "b", .bytes = {}, .log_prob = value, .top = {{"c", "", -0.01f}, {"b", "", value}}, .offset = 1},
                      {.token = "d", .bytes = {}, .log_prob = -INFINITY, .top = {{"d", "", -INFINITY}}, .offset = 2}};
  const json out = json::parse(completion_json({.id = "i", .model = "m", .created = 1}, {&choice, 1}, nullptr));
  const json& lp = out["choices"][0]["logprobs"];
  EXPECT_TRUE(lp["token_logprobs"][0].is_null());
  EXPECT_TRUE(lp["top_logprobs"][0].is_null());
  EXPECT_EQ(lp["token_logprobs"][1].get<double>(), lp["top_logprobs"][1]["b"].get<double>());
  EXPECT_EQ(lp["token_logprobs"][1].get<double>(), static_cast<double>(value));
  EXPECT_EQ(lp["token_logprobs"][2].get<double>(), -9999);
  EXPECT_EQ(lp["text_offset"], json::parse("[0,1,2]"));
  EXPECT_TRUE(out["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(out.contains("usage"));
}

TEST(OpenAiAnswer, PlainChunksAreTheSameBytesQuicklyWritten) {
  const CompletionHead head{.id = "cmpl-\"1", .model = "m\n\xff", .created = 17};
  for (const std::string text :
       {"a", " \"quoted\\\" ", "\n\t\x01\x7f", "Gr\xc3\xbc\xc3\x9f\x65", "\xf0\x9f\x98\x80", "\xff\xc3"}) {
    ChoiceOut choice;
    choice.index = 3;
    choice.text = text;
    if (text == "a") choice.token_ids = {5, 300};
    ASSERT_TRUE(is_plain_chunk(choice));
    EXPECT_EQ(plain_chunk_json(chunk_beginning(head, false), choice, false), completion_json(head, {&choice, 1}, nullptr));
    EXPECT_EQ(plain_chunk_json(chunk_beginning(head, true), choice, true), chat_chunk_json(head, {&choice, 1}, nullptr));
  }
  ChoiceOut tokens;
  tokens.token_ids = {7};
  ASSERT_TRUE(is_plain_chunk(tokens));
  EXPECT_EQ(plain_chunk_json(chunk_beginning(head, false), tokens, false), completion_json(head, {&tokens, 1}, nullptr));
  EXPECT_EQ(plain_chunk_json(chunk_beginning(head, true), tokens, true), chat_chunk_json(head, {&tokens, 1}, nullptr));
  ChoiceOut other;
  EXPECT_FALSE(is_plain_chunk(other)) << "nothing";
  other.text = "a";
  for (const auto& change : std::vector<std::function<void(ChoiceOut&)>>{
           [](ChoiceOut& c) { c.begins = true; }, [](ChoiceOut& c) { c.reasoning = "x"; },
           [](ChoiceOut& c) { c.log_probs.emplace(); }, [](ChoiceOut& c) { c.finish_reason = "stop"; },
           [](ChoiceOut& c) { c.stop_reason = 5; }, [](ChoiceOut& c) { c.prompt_token_ids.emplace(); },
           [](ChoiceOut& c) { c.prompt_log_probs.emplace(); }}) {
    ChoiceOut changed = other;
    change(changed);
    EXPECT_FALSE(is_plain_chunk(changed));
  }
}

TEST(OpenAiAnswer, ErrorsHaveOpenAisShape) {
  const json out = json::parse(error_json(ApiError(429, "full", {}, "queue_full")));
  EXPECT_EQ(out["error"]["message"], "full");
  EXPECT_EQ(out["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(out["error"]["param"].is_null());
  EXPECT_EQ(out["error"]["code"], "queue_full");
  EXPECT_NO_THROW(json::parse(error_json(500, "bad \xff bytes")));
}

}  // namespace
}  // namespace weft
