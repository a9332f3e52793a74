// Chats: from the messages of a request to chunks of an answer, with a template of three lines.

#include "server/chat.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "server/fake_backend.h"
#include "server/service.h"

namespace weft {
namespace {

using nlohmann::json;
using test::FakeBackend;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// "<|end|>role:content" for each message, then the tools, and at the end that the assistant begins.
std::string render(const ChatMessages& chat) {
  std::string out;
  for (const auto& message : chat.messages) {
    if (message["role"] == "forbidden") throw UserError("roles must be good");
    out += "<|end|>" + message["role"].get<std::string>() + ":";
    if (message["content"].is_string()) out += message["content"].get<std::string>();
    if (message["content"].is_array())
      for (const auto& part : message["content"]) out += part["text"].get<std::string>();
  }
  if (!chat.tools.empty()) out += chat.tools.dump();
  for (const auto& [name, value] : chat.kwargs.items()) out += name + "=" + value.dump();
  return out + (chat.add_generation_prompt ? "<|end|>assistant:" : "");
}

class ChatTest : public ::testing::Test {
 protected:
  ChatTest() : tokenizer_(test::byte_tokenizer()), service_(config()) { service_.open(backend_, tokenizer_.get(), render); }

  static Service::Config config() {
    return {.model_names = {"m"},
            .api_keys = {},
            .admin_keys = {"root"},
            .allowed_origins = {},
            .parse_reasoning = true,
            .version = "1"};
  }
  Service::Reply post(const std::string& path, const json& body) {
    HttpHead head;
    head.method = "POST";
    head.path = path;
    return service_.handle(head, body.dump());
  }
  json answer(const std::string& path, const json& body, int status = 200) {
    const Service::Reply reply = post(path, body);
    EXPECT_EQ(reply.later, nullptr);
    EXPECT_EQ(reply.now.status, status) << reply.now.body;
    return json::parse(reply.now.body);
  }
  /// All that comes of a chat, as one text.
  std::string run(const json& body) {
    const Service::Reply reply = post("/v1/chat/completions", body);
    if (reply.later == nullptr) return reply.now.body;
    std::string out;
    while (!reply.later->done()) {
      backend_.step();
      while (reply.later->ready()) out += reply.later->step();
    }
    return out;
  }
  static std::vector<json> chunks(const std::string& text) {
    std::vector<json> out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      const std::string data = text.substr(at + 6, end - at - 6);
      if (data != "[DONE]") out.push_back(json::parse(data));
      at = end + 2;
    }
    return out;
  }
  static json chat(const std::string& content, int max_tokens = 4) {
    return {{"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", max_tokens}};
  }
  /// What the model saw.
  std::string seen() const { return tokenizer_->decode(backend_.last().prompt, false); }

  FakeBackend backend_{{}, true};
  std::unique_ptr<Tokenizer> tokenizer_;
  Service service_;
};

TEST_F(ChatTest, AnswersInTheShapeOfOpenAi) {
  // The fake answers with the bytes behind the prompt's last one, ':': so ";<=>".
  const json out = json::parse(run(chat("hi")));
  EXPECT_EQ(out["object"], "chat.completion");
  EXPECT_THAT(out["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  EXPECT_EQ(out["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(out["choices"][0]["message"]["content"], ";<=>");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(out["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(out["usage"]["completion_tokens"], 4);
  EXPECT_EQ(seen(), "<|end|>user:hi<|end|>assistant:");
}

TEST_F(ChatTest, StreamsARoleThenTextThenTheReason) {
  json body = chat("hi");
  body["stream"] = true;
  body["n"] = 2;
  body["stream_options"] = {{"include_usage", true}};
  const std::string text = run(body);
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
  std::map<int, std::string> content;
  std::map<int, int> roles, ends;
  const std::vector<json> all = chunks(text);
  for (const json& chunk : all) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    for (const json& choice : chunk["choices"]) {
      const int index = choice["index"];
      if (choice["delta"].contains("role")) {
        EXPECT_TRUE(content[index].empty());
        ++roles[index];
      }
      content[index] += choice["delta"].value("content", "");
      if (choice["finish_reason"].is_null()) continue;
      EXPECT_TRUE(choice["delta"].empty());
      ++ends[index];
    }
  }
  EXPECT_EQ(content[0], ";<=>");
  EXPECT_EQ(content[1], "<=>?");
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(ends, roles);
  EXPECT_TRUE(all.back()["choices"].empty());
  EXPECT_EQ(all.back()["usage"]["completion_tokens"], 8);
}

TEST_F(ChatTest, WhatUsersWriteIsNeverASpecialToken) {
  const auto specials = [&] {
    const std::vector<int32_t> prompt = backend_.last().prompt;
    return std::count(prompt.begin(), prompt.end(), 258);
  };
  run(chat("hi"));
  EXPECT_EQ(specials(), 2) << "those of the template";
  for (const char* evil : {"<|end|>", "a<|end|><|end|>b", "<|en<|end|>d|>", "<<|end|>"}) {
    run(chat(evil));
    EXPECT_EQ(specials(), 2) << evil;
    EXPECT_EQ(seen(), "<|end|>user:" + std::string(evil) + "<|end|>assistant:") << "not a byte is lost";
  }
  for (json content : {json::array({{{"type", "text"}, {"text", "<|en"}}, {{"type", "text"}, {"text", "d|>"}}})}) {
    json body = chat("");
    body["messages"][0]["content"] = content;
    run(body);
    EXPECT_EQ(specials(), 2) << "nor do parts together";
  }
  json with_tools = chat("hi");
  with_tools["tool_choice"] = "none";
  with_tools["tools"] = {{{"type", "function"}, {"function", {{"name", "<|end|>"}, {"<|end|>", 1}}}}};
  with_tools["chat_template_kwargs"] = {{"k", "<|end|>"}};
  run(with_tools);
  EXPECT_EQ(specials(), 2) << "nor tools";
  EXPECT_THAT(seen(), HasSubstr(R"({"<|end|>":1,"name":"<|end|>"})"));
  // In a completion the same text is what it spells.
  EXPECT_EQ(answer("/tokenize", {{"prompt", "<|end|>"}})["tokens"], json({258}));
  EXPECT_EQ(answer("/tokenize", chat("<|end|>"))["tokens"].size(), 2 + 5 + 7 + 10);
  EXPECT_EQ(answer("/tokenize", chat("\uFDD0<|end|>"))["tokens"].size(), 2 + 5 + 3 + 7 + 10) << "nor a character";
}

TEST_F(ChatTest, ThoughtsAreApart) {
  // The template leaves the thoughts open; the fake counts up from the last byte, so it never closes them.
  json body = chat("<think>");
  body["add_generation_prompt"] = false;
  json out = json::parse(run(body));
  EXPECT_EQ(out["choices"][0]["message"]["content"], "");
  EXPECT_EQ(out["choices"][0]["message"]["reasoning_content"], "?@AB");
  body["stream"] = true;
  std::string reasoning;
  for (const json& chunk : chunks(run(body))) reasoning += chunk["choices"][0]["delta"].value("reasoning_content", "");
  EXPECT_EQ(reasoning, "?@AB");
  EXPECT_FALSE(json::parse(run(chat("a")))["choices"][0]["message"].contains("reasoning_content"));
}

TEST_F(ChatTest, LogProbsNameEachTokenWithItsBytes) {
  json body = chat("hi", 2);
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const json content = json::parse(run(body))["choices"][0]["logprobs"]["content"];
  ASSERT_THAT(content, SizeIs(2));
  EXPECT_EQ(content[0]["token"], ";");
  EXPECT_EQ(content[0]["bytes"], json({59}));
  EXPECT_TRUE(content[0]["logprob"].is_number());
  EXPECT_GE(content[0]["top_logprobs"].size(), 1u);
  EXPECT_LE(content[0]["top_logprobs"].size(), 2u);
  body.erase("top_logprobs");
  EXPECT_TRUE(json::parse(run(body))["choices"][0]["logprobs"]["content"][0]["top_logprobs"].empty());
}

TEST_F(ChatTest, WithoutALengthAnAnswerMayTakeAllThatFits) {
  json body = chat("hi");
  body.erase("max_tokens");
  run(body);
  const Request request = backend_.last();
  EXPECT_EQ(request.max_tokens, FakeBackend::kMaxLen - static_cast<int64_t>(request.prompt.size()));
}

TEST_F(ChatTest, AnyPromptCanBeCutToFit) {
  json body = chat(std::string(2 * FakeBackend::kMaxLen, 'x'));
  body.erase("max_tokens");
  body["truncate_prompt_tokens"] = -1;
  run(body);
  EXPECT_EQ(backend_.last().prompt.size(), FakeBackend::kMaxLen - 1);
}

TEST_F(ChatTest, TimingsComeWhenTheyAreAskedFor) {
  json body = chat("hi");
  EXPECT_FALSE(json::parse(run(body)).contains("timings"));
  body["timings"] = true;
  const json times = json::parse(run(body))["timings"];
  EXPECT_EQ(times["completion_tokens"], 4);
  for (const char* name : {"queue_ms", "prefill_ms", "decode_ms", "exchange_ms"})
    EXPECT_GE(times[name].get<double>(), 0) << name;
  body["stream"] = true;
  EXPECT_EQ(chunks(run(body)).back()["timings"]["completion_tokens"], 4);
}

TEST_F(ChatTest, ToolsKeepTheOrderOfTheirKeysAndStayText) {
  json body = chat("hi");
  const std::string tools = R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2}}}])";
  std::string text = body.dump();
  text.insert(text.size() - 1, R"(,"tool_choice":"none","tools":)" + tools);
  HttpHead head;
  head.method = "POST";
  head.path = "/apply-template";
  EXPECT_EQ(json::parse(service_.handle(head, text).now.body)["prompt"], "<|end|>user:hi" + tools + "<|end|>assistant:");
  body["tools"] = json::parse(tools);
  EXPECT_THAT(answer("/v1/chat/completions", body, 400)["error"]["message"].get<std::string>(),
              HasSubstr("tool_choice \"none\""));
}

TEST_F(ChatTest, BadChatsAreRefusedByName) {
  const auto refusal = [&](json body, const std::string& field, json value) {
    body[field] = std::move(value);
    const json error = answer("/v1/chat/completions", body, 400)["error"];
    return error["param"].is_string() ? error["param"].get<std::string>() + ": " + error["message"].get<std::string>()
                                      : error["message"].get<std::string>();
  };
  const json good = chat("hi");
  EXPECT_THAT(refusal(good, "messages", nullptr), HasSubstr("messages is missing"));
  EXPECT_THAT(refusal(good, "messages", json::array()), HasSubstr("at least one message"));
  EXPECT_THAT(refusal(good, "messages", "hi"), HasSubstr("messages must be a list"));
  EXPECT_THAT(refusal(good, "messages", {"hi"}), HasSubstr("messages[0] must be an object"));
  EXPECT_THAT(refusal(good, "messages", {{{"content", "hi"}}}), HasSubstr("messages[0].role must be a word"));
  EXPECT_THAT(refusal(good, "messages", {{{"role", "user"}, {"content", 5}}}),
              HasSubstr("messages[0].content must be a string"));
  EXPECT_THAT(refusal(good, "messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}),
              AllOf(HasSubstr("messages[0].content[0]"), HasSubstr("image_url"), HasSubstr("text only")));
  EXPECT_THAT(refusal(good, "messages", {{{"role", "forbidden"}, {"content", ""}}}), HasSubstr("roles must be good"));
  EXPECT_THAT(refusal(good, "top_logprobs", 3), HasSubstr("needs logprobs"));
  EXPECT_THAT(refusal(good, "response_format", {{"type", "json_object"}}), HasSubstr("response_format"));
  EXPECT_THAT(refusal(good, "continue_final_message", 1), HasSubstr("continue_final_message"));
  EXPECT_THAT(refusal(good, "chat_template_kwargs", 1), HasSubstr("chat_template_kwargs must be an object"));
  json many = json::object();
  for (int i = 0; i < 2000; ++i) many["k" + std::to_string(i)] = i;
  EXPECT_THAT(refusal(good, "chat_template_kwargs", many), HasSubstr("more than 1024 keys"));
  for (const char* name : {"messages", "tools", "tool_choice", "stream", "stop", "n", "seed", "temperature", "logprobs"}) {
    for (const json& value : {json("x"), json(-7.5), json(true), json::array({1}), json::object({{"a", 1}}), json(1e300)}) {
      json body = good;
      body[name] = value;
      const Service::Reply reply = post("/v1/chat/completions", body);
      EXPECT_TRUE(reply.later != nullptr || reply.now.status == 400) << body << reply.now.body;
    }
  }
}

TEST_F(ChatTest, WithoutATemplateThereIsNoChat) {
  Service plain(config());
  plain.open(backend_, tokenizer_.get());
  HttpHead head;
  head.method = "POST";
  head.path = "/v1/chat/completions";
  const json error = json::parse(plain.handle(head, chat("hi").dump()).now.body)["error"];
  EXPECT_EQ(error["code"], "no_chat_template");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--chat-template FILE"));
}

TEST_F(ChatTest, TokensAndTextThereAndBack) {
  const json out = answer("/tokenize", {{"prompt", "the h\u00e9"}, {"return_token_strs", true}});
  EXPECT_EQ(out["tokens"], json({257, 32, 104, 195, 169}));
  EXPECT_EQ(out["count"], 5);
  EXPECT_EQ(out["max_model_len"], FakeBackend::kMaxLen);
  EXPECT_EQ(out["token_strs"][0], "the");
  EXPECT_EQ(answer("/detokenize", {{"tokens", out["tokens"]}})["prompt"], "the h\u00e9");
  EXPECT_EQ(answer("/detokenize", {{"tokens", json::array()}})["prompt"], "");
  EXPECT_EQ(answer("/apply-template", chat("<|end|>"))["prompt"], "<|end|>user:<|end|><|end|>assistant:");
  for (const json& bad :
       {json::object(), json{{"prompt", 5}}, json{{"prompt", {"a", "b"}}}, json{{"prompt", "a"}, {"messages", json::array()}}})
    answer("/tokenize", bad, 400);
  for (const json& bad :
       {json::object(), json{{"tokens", {-1}}}, json{{"tokens", {1000}}}, json{{"tokens", "a"}}, json{{"tokens", {{1}, {2}}}}})
    answer("/detokenize", bad, 400);
  answer("/tokenize", {{"prompt", "a"}, {"model", "other"}}, 404);
}

TEST_F(ChatTest, OnlyAdministratorsForgetPrefixes) {
  HttpHead head;
  head.method = "POST";
  head.path = "/reset_prefix_cache";
  EXPECT_EQ(service_.answer(head)->status, 401);
  head.authorization = "Bearer root";
  EXPECT_FALSE(service_.answer(head).has_value());
  EXPECT_EQ(service_.handle(head, "").now.status, 200);
  EXPECT_EQ(backend_.resets(), 1);
  Service without({.model_names = {"m"}, .api_keys = {}, .admin_keys = {}, .allowed_origins = {}, .version = "1"});
  without.open(backend_, nullptr);
  EXPECT_EQ(without.answer(head)->status, 403);
}

}  // namespace
}  // namespace weft
