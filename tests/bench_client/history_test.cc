#include "bench_client/history.h"

#include <gmock/gmock.h>

namespace weft::bench {
namespace {

using nlohmann::json;
using ::testing::SizeIs;

json body(const History& history, int64_t output_tokens, bool goes_on = false) {
  return json::parse(history.body(output_tokens, goes_on));
}

TEST(History, ACompletionOfTokenIds) {
  const RequestForm form{.model = "m", .ignore_eos = true, .log_probs = 2, .extra = {{"temperature", 0}}};
  History history(form);
  history.ask({.ids = {5, 6}, .input_tokens = 2});
  EXPECT_EQ(body(history, 7), json::parse(R"({"model": "m", "prompt": [5, 6], "max_tokens": 7, "logprobs": 2, "stream": true,
      "stream_options": {"include_usage": true}, "ignore_eos": true, "temperature": 0})"));
}

TEST(History, TheNextPromptHasTheAnswerInIt) {
  const RequestForm form{.model = "m"};
  History history(form);
  history.ask({.ids = {5, 6}, .input_tokens = 2});
  EXPECT_EQ(body(history, 7, true)["return_token_ids"], true);
  history.answer({.output_tokens = 3, .ids = {1, 2, 3}}, 0);
  history.ask({.ids = {8}, .input_tokens = 1});
  EXPECT_EQ(body(history, 7)["prompt"], json({5, 6, 1, 2, 3, 8}));
  EXPECT_FALSE(body(history, 7).contains("return_token_ids"));
  EXPECT_EQ(history.tokens(), 6);
}

TEST(History, WhereTheServerKeepsItsIdsOthersStandIn) {
  const RequestForm form;
  History history(form);
  history.ask({.ids = {5, 6}, .input_tokens = 2});
  history.answer({.output_tokens = 30, .text = "words"}, 0);
  EXPECT_THAT(body(history, 1)["prompt"], SizeIs(32));
}

TEST(History, TextGrowsAsText) {
  const RequestForm form;
  History history(form);
  history.ask({.text = "Hello."});
  history.answer({.text = " Yes?", .ids = {1, 2}}, 0);
  history.ask({.text = " No."});
  EXPECT_EQ(body(history, 1)["prompt"], "Hello. Yes? No.");
}

TEST(History, AChatHasMessages) {
  const RequestForm form{.chat = true, .model = "m", .log_probs = 2};
  History history(form);
  history.ask({.text = "Hello."});
  history.answer({.text = "Yes?"}, 0);
  history.ask({.text = "No."});
  EXPECT_EQ(body(history, 9), json::parse(R"({"model": "m", "messages": [{"role": "user", "content": "Hello."},
      {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "No."}], "max_completion_tokens": 9, "logprobs": true,
      "top_logprobs": 2, "stream": true, "stream_options": {"include_usage": true}})"));
}

TEST(History, ExtraFieldsTakeThePlaceOfOthers) {
  const RequestForm form{.extra = {{"max_tokens", 1}, {"x", {{"y", 2}}}}};
  History history(form);
  history.ask({.ids = {5}});
  EXPECT_EQ(body(history, 9)["max_tokens"], 1);
  EXPECT_EQ(body(history, 9)["x"]["y"], 2);
}

}  // namespace
}  // namespace weft::bench
