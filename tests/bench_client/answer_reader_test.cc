#include "bench_client/answer_reader.h"

#include <gmock/gmock.h>

namespace weft::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = Record::State;

/// The record of a stream of these events, which come at 1, 2, 3, ... seconds.
Record read(const std::vector<std::string>& events, bool ends = true) {
  Record out{.input_tokens = 5};
  AnswerReader reader(out);
  double seconds = 0;
  for (const std::string& event : events) reader.event(event, ++seconds);
  if (ends) reader.end();
  return out;
}

TEST(AnswerReader, ReadsACompletion) {
  const Record out = read({R"({"choices": [{"index": 0, "text": "a", "finish_reason": null}]})",
                           R"({"choices": [{"index": 0, "text": "bc", "finish_reason": null}], "usage": null})",
                           R"({"choices": [{"index": 0, "text": "d", "finish_reason": "length"}]})",
                           R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})", "[DONE]"});
  EXPECT_EQ(out.state, State::answered);
  EXPECT_EQ(out.text, "abcd");
  EXPECT_EQ(out.ttft_s, 1);
  EXPECT_EQ(out.latency_s, 3);
  EXPECT_THAT(out.itls_s, ElementsAre(1, 1));
  EXPECT_THAT(out.chunk_tokens, ElementsAre(1, 1, 1));
  EXPECT_EQ(out.input_tokens, 7);
  EXPECT_EQ(out.output_tokens, 3);
  EXPECT_FALSE(out.cached_tokens);
}

TEST(AnswerReader, ReadsAChatWhoseFirstChunkOnlyNamesTheRole) {
  const Record out = read({R"({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]})",
                           R"({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": null}]})",
                           R"({"choices": [{"delta": {"content": "yes"}, "finish_reason": null}]})",
                           R"({"choices": [{"delta": {}, "finish_reason": "stop"}]})", "[DONE]"});
  EXPECT_EQ(out.state, State::answered);
  EXPECT_EQ(out.text, "hmyes");
  EXPECT_EQ(out.ttft_s, 2) << "the role is no token";
  EXPECT_THAT(out.itls_s, ElementsAre(1)) << "nor is the end";
  EXPECT_EQ(out.latency_s, 4);
  EXPECT_EQ(out.output_tokens, 2) << "counted, where no usage comes";
  EXPECT_EQ(out.input_tokens, 5) << "as the client knows it";
}

TEST(AnswerReader, ARoleMayComeWithTheFirstToken) {
  EXPECT_EQ(read({R"({"choices": [{"delta": {"role": "assistant", "content": "x"}}]})"}, false).ttft_s, 1);
}

TEST(AnswerReader, CountsTokenIdsAndTextThatIsNotCompleteYet) {
  const Record out = read({R"({"choices": [{"text": "", "token_ids": [4, 5], "finish_reason": null}]})",
                           R"({"choices": [{"text": "", "finish_reason": null}]})",
                           R"({"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]})"});
  EXPECT_THAT(out.chunk_tokens, ElementsAre(2, 1));
  EXPECT_THAT(out.ids, ElementsAre(4, 5));
  EXPECT_EQ(out.output_tokens, 3);
}

TEST(AnswerReader, TellsCachedTokens) {
  const Record out = read({R"({"choices": [{"text": "a", "finish_reason": "stop"}]})",
                           R"({"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 6}}})"});
  EXPECT_EQ(out.cached_tokens, 6);
}

TEST(AnswerReader, AnAnswerMayHaveNoToken) {
  const Record out = read({R"({"choices": [{"text": "", "finish_reason": "stop"}]})", "[DONE]"});
  EXPECT_EQ(out.state, State::answered);
  EXPECT_EQ(out.ttft_s, 1);
  EXPECT_EQ(out.output_tokens, 0);
  EXPECT_THAT(out.chunk_tokens, IsEmpty());
}

TEST(AnswerReader, AStreamThatStopsEarlyIsAFailure) {
  EXPECT_THAT(read({R"({"choices": [{"text": "a", "finish_reason": null}]})"}).error, HasSubstr("in the middle of the answer"));
  EXPECT_THAT(read({R"({"choices": [{"text": "a", "finish_reason": null}]})", "[DONE]"}).state, State::failed);
  EXPECT_THAT(read({}).error, HasSubstr("before the first token"));
}

TEST(AnswerReader, AnErrorInTheStreamIsAFailureWithItsWords) {
  const char* chunk = R"({"choices": [{"text": "a", "finish_reason": "stop"}]})";
  EXPECT_THAT(read({chunk, R"({"error": {"message": "the engine failed", "code": 500}})", "[DONE]"}).error,
              HasSubstr("the engine failed"));
  EXPECT_THAT(read({R"({"error": "plain"})"}).error, HasSubstr("plain"));
  EXPECT_THAT(read({R"({"error": [1]})"}).error, HasSubstr("[1]"));
  EXPECT_EQ(read({R"({"error": null, "choices": [{"text": "a", "finish_reason": "stop"}]})"}).state, State::answered);
}

TEST(AnswerReader, GarbageIsAFailure) {
  for (const char* event : {"{", "7", "[]", "null", "hello"}) EXPECT_EQ(read({event}).state, State::failed) << event;
  for (const char* event : {"{}", R"({"choices": 7})", R"({"choices": [7]})",
                            R"({"choices": [{"text": 7, "finish_reason": null, "token_ids": 3}]})",
                            R"({"choices": [{"delta": 3, "finish_reason": []}], "usage": [], "error": null})"})
    EXPECT_NO_THROW(read({event})) << event;
}

}  // namespace
}  // namespace weft::bench
