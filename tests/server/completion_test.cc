#include "server/completion.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "server/fake_backend.h"

namespace weft {
namespace {

using nlohmann::json;
using test::FakeBackend;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CompletionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Completion> start(const std::string& body, bool with_tokenizer = true) {
    const ApiLimits limits{.vocab = with_tokenizer ? tokenizer_->vocab_size() : FakeBackend::kVocab};
    return std::make_unique<Completion>(parse_completion(body, limits), backend_, with_tokenizer ? tokenizer_.get() : nullptr,
                                        CompletionHead{.id = "id", .model = "m", .created = 1});
  }
  /// The whole answer; all steps of the engine happen first.
  json whole(const std::string& body, bool with_tokenizer = true) {
    const auto completion = start(body, with_tokenizer);
    std::string text;
    while (!completion->done()) {
      backend_.step();
      while (completion->ready()) text += completion->step();
    }
    return json::parse(text);
  }
  /// The data of the events of a stream, read after every `steps` steps of the engine.
  std::vector<std::string> events(const std::string& body, int steps = 1, bool with_tokenizer = true) {
    const auto completion = start(body, with_tokenizer);
    std::string text;
    while (!completion->done()) {
      for (int i = 0; i < steps; ++i) backend_.step();
      while (completion->ready()) text += completion->step();
    }
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      EXPECT_EQ(text.substr(at, 6), "data: ");
      out.push_back(text.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
  ApiError refusal(const std::string& body, bool with_tokenizer = true) {
    try {
      start(body, with_tokenizer);
    } catch (const ApiError& error) {
      return error;
    }
    return ApiError(0, "accepted");
  }

  FakeBackend backend_{{}, true};
  std::unique_ptr<Tokenizer> tokenizer_ = test::byte_tokenizer();
};

// The backend answers with the ids that follow the prompt's last one: after "a" come "bcd..."

TEST_F(CompletionTest, AnswersTextWithUsageAndWhereTheKvLay) {
  const json out = whole(R"({"prompt":"xya","max_tokens":4})");
  EXPECT_EQ(out["object"], "text_completion");
  ASSERT_THAT(out["choices"], SizeIs(1));
  EXPECT_EQ(out["choices"][0]["text"], "bcde");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(out["choices"][0]["index"], 0);
  EXPECT_TRUE(out["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(out["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(out["usage"]["completion_tokens"], 4);
  EXPECT_EQ(out["usage"]["total_tokens"], 7);
  EXPECT_EQ(out["usage"]["kv_tokens_per_rank"], json({2, 1}));
}

TEST_F(CompletionTest, WithoutATokenizerIdsGoInAndOut) {
  const json out = whole(R"({"prompt":[5,6],"max_tokens":3,"logprobs":1})", false);
  EXPECT_EQ(out["choices"][0]["token_ids"], json({7, 8, 9}));
  EXPECT_EQ(out["choices"][0]["prompt_token_ids"], json({5, 6}));
  EXPECT_EQ(out["choices"][0]["text"], "");
  EXPECT_EQ(out["choices"][0]["logprobs"]["tokens"], json({"token_id:7", "token_id:8", "token_id:9"}));
  EXPECT_EQ(refusal(R"({"prompt":"text"})", false).param, "prompt");
  EXPECT_EQ(refusal(R"({"prompt":[1],"stop":"x"})", false).param, "stop");
}

TEST_F(CompletionTest, StreamedPiecesAreTheWholeAnswer) {
  for (const int steps : {1, 2, 5, 100}) {
    const auto all = events(R"({"prompt":"a","max_tokens":9,"stream":true,"stream_options":{"include_usage":true}})", steps);
    ASSERT_GE(all.size(), 4u);
    EXPECT_EQ(all.back(), "[DONE]");
    const json usage = json::parse(all[all.size() - 2]);
    EXPECT_THAT(usage["choices"], SizeIs(0));
    EXPECT_EQ(usage["usage"]["completion_tokens"], 9);
    std::string text;
    for (size_t i = 0; i + 2 < all.size(); ++i) {
      const json chunk = json::parse(all[i]);
      EXPECT_FALSE(chunk.contains("usage"));
      text += chunk["choices"][0]["text"].get<std::string>();
      const bool last = i + 3 == all.size();
      EXPECT_EQ(chunk["choices"][0]["finish_reason"], last ? json("length") : json());
      if (last) {
        EXPECT_EQ(chunk["choices"][0]["text"], "");
      }
    }
    EXPECT_EQ(text, "bcdefghij");
  }
}

TEST_F(CompletionTest, AStopStringEndsTheAnswerAndTheEngine) {
  const json out = whole(R"({"prompt":"a","max_tokens":20,"stop":["zzz","efg"]})");
  EXPECT_EQ(out["choices"][0]["text"], "bcd");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(out["choices"][0]["stop_reason"], "efg");
  EXPECT_EQ(out["usage"]["completion_tokens"], 6) << "the tokens of the stop string were generated";
  EXPECT_EQ(backend_.running(), 0u) << "the engine goes on";
  const auto all = events(R"({"prompt":"a","max_tokens":20,"stop":"efg","stream":true})");
  std::string text;
  for (size_t i = 0; i + 1 < all.size(); ++i) text += json::parse(all[i])["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, "bcd");
  EXPECT_EQ(whole(R"({"prompt":"a","max_tokens":20,"stop":"efg","include_stop_str_in_output":true})")["choices"][0]["text"],
            "bcdefg");
  EXPECT_EQ(whole(R"({"prompt":"a","max_tokens":5,"stop":"efgx"})")["choices"][0]["text"], "bcdef") << "held back, then given";
}

TEST_F(CompletionTest, StopTokensEndTheAnswerWithoutTheirText) {
  const json out = whole(R"({"prompt":"a","max_tokens":20,"stop_token_ids":[101],"logprobs":0})");  // e
  EXPECT_EQ(out["choices"][0]["text"], "bcd");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(out["choices"][0]["stop_reason"], 101);
  EXPECT_THAT(out["choices"][0]["logprobs"]["tokens"], SizeIs(4)) << "every generated token has an entry";
}

TEST_F(CompletionTest, ChoicesAndPromptsAreNumberedThrough) {
  const json out = whole(R"({"prompt":["a","m"],"n":2,"max_tokens":2})");
  ASSERT_THAT(out["choices"], SizeIs(4));
  const std::vector<std::string> texts = {"bc", "cd", "no", "op"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(out["choices"][i]["index"], i);
    EXPECT_EQ(out["choices"][i]["text"], texts[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(out["usage"]["prompt_tokens"], 2) << "once for all choices";
  EXPECT_EQ(out["usage"]["completion_tokens"], 8);
}

// What lm_eval's local-completions asks for, and the arrays that it cuts.
TEST_F(CompletionTest, EchoWithLogProbsHasOneEntryForEveryTokenWhateverEndsIt) {
  for (const bool ends : {false, true}) {
    const std::string stop = ends ? R"(,"stop_token_ids":[101])" : "";  // after "d" comes e = 101
    const json out = whole(
        R"({"prompt":[[97,98,97,100],[100]],"temperature":0,"max_tokens":1,"logprobs":1,"echo":true,"seed":1)" + stop + "}");
    ASSERT_THAT(out["choices"], SizeIs(2));
    for (const auto& [choice, prompt] : {std::pair{0, 4}, std::pair{1, 1}}) {
      const json& lp = out["choices"][choice]["logprobs"];
      for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
        ASSERT_THAT(lp[list], SizeIs(prompt + 1)) << list;
      EXPECT_TRUE(lp["token_logprobs"][0].is_null());
      for (int i = 1; i <= prompt; ++i) {
        const double value = lp["token_logprobs"][i].get<double>();
        EXPECT_FALSE(lp["top_logprobs"][i].empty());
        EXPECT_EQ(lp["top_logprobs"][i].at(lp["tokens"][i].get<std::string>()).get<double>(), value);
      }
    }
    EXPECT_EQ(out["choices"][0]["logprobs"]["text_offset"], json({0, 1, 2, 3, 4}));
    EXPECT_EQ(out["choices"][0]["text"], ends ? "abad" : "abade");
    EXPECT_EQ(out["choices"][0]["logprobs"]["tokens"], json({"a", "b", "a", "d", "e"}));
  }
}

TEST_F(CompletionTest, EchoAloneWithoutAnyTokenScoresAPrompt) {
  const json out = whole(R"({"prompt":"abc","max_tokens":0,"echo":true,"logprobs":0})");
  EXPECT_EQ(out["choices"][0]["text"], "abc");
  EXPECT_EQ(out["choices"][0]["logprobs"]["tokens"], json({"a", "b", "c"}));
  EXPECT_EQ(out["usage"]["completion_tokens"], 0);
  EXPECT_EQ(out["choices"][0]["finish_reason"], "length");
}

TEST_F(CompletionTest, PromptLogProbsByIdHaveRanks) {
  const json out = whole(R"({"prompt":"abc","max_tokens":1,"prompt_logprobs":2})");
  const json& list = out["choices"][0]["prompt_logprobs"];
  ASSERT_THAT(list, SizeIs(3));
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["98"]["rank"], 2);
  EXPECT_EQ(list[1]["98"]["decoded_token"], "b");
  EXPECT_EQ(list[1]["99"]["rank"], 1);
}

TEST_F(CompletionTest, CharactersOfSeveralTokensComeWhole) {
  // Bytes 0xc3 and 0xc4 do not make a character together: U+FFFD, as in the text that is not streamed.
  const std::string body = R"({"prompt":[194],"max_tokens":2)";
  const std::string text = whole(body + "}")["choices"][0]["text"];
  EXPECT_EQ(text, "\xEF\xBF\xBD\xEF\xBF\xBD");
  std::string streamed;
  const auto all = events(body + R"(,"stream":true})");
  for (size_t i = 0; i + 1 < all.size(); ++i) streamed += json::parse(all[i])["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, text);
  const json lp = whole(body + R"(,"logprobs":0})")["choices"][0]["logprobs"];
  EXPECT_EQ(lp["tokens"], json({"bytes:\\xc3", "bytes:\\xc4"}));
}

TEST_F(CompletionTest, LengthsAreCheckedBeforeAnythingRuns) {
  const auto ids = [](int n) {
    std::string out = "[1";
    for (int i = 1; i < n; ++i) out += ",1";
    return out + "]";
  };
  EXPECT_EQ(refusal("{\"max_tokens\":10,\"prompt\":" + ids(990) + "}").status, 0) << "exactly the limit";
  const ApiError over = refusal("{\"max_tokens\":11,\"prompt\":" + ids(990) + "}");
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(over.code, "context_length_exceeded");
  EXPECT_THAT(over.what(), HasSubstr("990 prompt tokens"));
  EXPECT_THAT(over.what(), HasSubstr("1000"));
  EXPECT_EQ(refusal("{\"prompt\":" + ids(1000) + "}").code, "context_length_exceeded") << "no room for an answer";
  backend_.step();
  EXPECT_EQ(whole("{\"prompt\":" + ids(995) + "}")["usage"]["completion_tokens"], 5) << "nobody asked for 16";
  EXPECT_EQ(refusal("{\"prompt\":\"" + std::string(100000, 'a') + "\"}").code, "context_length_exceeded");
  EXPECT_EQ(whole("{\"truncate_prompt_tokens\":3,\"prompt\":\"" + std::string(5000, 'a') + "\"}")["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(refusal(R"({"prompt":""})").status, 400);
}

TEST_F(CompletionTest, AFullQueueRefusesAllPromptsOfARequest) {
  backend_.set_queue_bound(2);
  const ApiError full = refusal(R"({"prompt":[[1],[2],[3]]})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.code, "queue_full");
  EXPECT_EQ(backend_.running(), 0u);
  EXPECT_EQ(backend_.cancelled(), 2);
}

TEST_F(CompletionTest, OneThatIsDroppedIsCancelled) {
  auto completion = start(R"({"prompt":"a","max_tokens":50})");
  backend_.step();
  EXPECT_EQ(backend_.running(), 1u);
  completion.reset();
  EXPECT_EQ(backend_.running(), 0u);
}

TEST_F(CompletionTest, AnEngineThatFailsEndsStreamsWithAnErrorEvent) {
  auto stream = start(R"({"prompt":"a","max_tokens":50,"stream":true})");
  auto plain = start(R"({"prompt":"a","max_tokens":50})");
  backend_.step();
  backend_.fail("rank 1 died");
  const std::string text = stream->step();
  EXPECT_THAT(text, HasSubstr("\"text\":\"b\""));
  EXPECT_THAT(text, HasSubstr("rank 1 died"));
  EXPECT_TRUE(stream->done());
  EXPECT_TRUE(plain->ready());
  EXPECT_THROW(plain->step(), ApiError);
  EXPECT_EQ(refusal(R"({"prompt":"a"})").status, 503);
}

TEST_F(CompletionTest, ItsTimeIsPassedOnAndItsEndIsAnErrorThatSaysHowFarItCame) {
  for (const bool stream : {false, true}) {
    const auto completion =
        start(std::string(R"({"prompt":"a","max_tokens":50,"timeout":1.5,"stream":)") + (stream ? "true}" : "false}"));
    EXPECT_EQ(backend_.last().timeout_us, 1'500'000);
    backend_.step();
    backend_.step();
    backend_.time_out();
    ASSERT_TRUE(completion->ready());
    if (stream) {
      const std::string text = completion->step();
      EXPECT_THAT(text, HasSubstr("\"text\":\"bc\""));
      EXPECT_THAT(text, HasSubstr("\"code\":\"deadline_exceeded\""));
    } else {
      try {
        completion->step();
        ADD_FAILURE() << "no error";
      } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 504);
        EXPECT_EQ(error.code, "deadline_exceeded");
        EXPECT_THAT(error.what(), HasSubstr("1.5 s"));
        EXPECT_THAT(error.what(), HasSubstr("2 of at most 50"));
      }
    }
    EXPECT_TRUE(completion->done());
  }
}

TEST_F(CompletionTest, AnAbortEndsItWithWhatThereIs) {
  OpenRequests open;
  for (const bool stream : {false, true}) {
    const auto completion =
        start(std::string(R"({"prompt":"a","max_tokens":50,"n":2,"stream":)") + (stream ? "true}" : "false}"));
    completion->set_open(open.enter({"id"}, "", completion->engine_ids()));
    backend_.step();
    backend_.step();
    for (const uint64_t id : open.abort("id", "", false)) backend_.cancel(id);
    ASSERT_TRUE(completion->ready());
    const std::string text = completion->step();
    EXPECT_TRUE(completion->done());
    if (stream) {
      EXPECT_THAT(text, HasSubstr("\"finish_reason\":\"abort\""));
      EXPECT_THAT(text, ::testing::EndsWith("data: [DONE]\n\n"));
    } else {
      const json answer = json::parse(text);
      for (const size_t choice : {0u, 1u}) {
        EXPECT_EQ(answer["choices"][choice]["text"], choice == 0 ? "bc" : "cd");
        EXPECT_EQ(answer["choices"][choice]["finish_reason"], "abort");
      }
      EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
    }
  }
  EXPECT_EQ(open.size(), 0u);
}

}  // namespace
}  // namespace weft
