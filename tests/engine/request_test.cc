#include "engine/request.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "engine/engine.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(RequestStream, GivesEventsFromWhereTheReaderIs) {
  RequestStream stream(7, request_of({1, 2}, 3));
  EXPECT_EQ(stream.id(), 7u);
  EXPECT_TRUE(stream.events().empty());
  stream.append({.choice = 0, .token = 5, .log_prob = 0, .finish = FinishReason::none}, {}, {});
  stream.append({.choice = 0, .token = 6, .log_prob = 0, .finish = FinishReason::none}, {}, {});
  ASSERT_EQ(stream.events().size(), 2u);
  ASSERT_EQ(stream.events(1).size(), 1u);
  EXPECT_EQ(stream.events(1)[0].token, 6);
  EXPECT_TRUE(stream.events(2).empty());
  EXPECT_TRUE(stream.events(99).empty());
  EXPECT_FALSE(stream.done());
  stream.append({.choice = 0, .token = -1, .log_prob = 0, .finish = FinishReason::error}, {}, {});
  stream.finish("why");
  EXPECT_TRUE(stream.done());
  EXPECT_EQ(stream.error(), "why");
}

TEST(RequestStream, HasRoomForTheEndOfEveryChoice) {
  Request request = request_of({1}, 0);
  request.choices = 2;
  RequestStream stream(1, request);
  for (int choice = 0; choice < 2; ++choice)
    stream.append({.choice = choice, .token = -1, .log_prob = 0, .finish = FinishReason::length}, {}, {});
  EXPECT_EQ(stream.events().size(), 2u);
  EXPECT_DEATH(stream.append({.choice = 0, .token = 1, .log_prob = 0, .finish = FinishReason::none}, {}, {}), "more events");
}

TEST(RequestStream, KeepsTheMostProbableTokensOfEachEvent) {
  Request request = request_of({1, 2, 3}, 2);
  request.log_probs = 2;
  request.prompt_log_probs = 1;
  RequestStream stream(1, request);
  stream.set_prompt_log_prob(1, -2.5f, std::vector<int32_t>{8}, std::vector<float>{-0.5f});
  stream.set_prompt_log_prob(0, -1.5f, std::vector<int32_t>{9}, std::vector<float>{-0.25f});
  EXPECT_THAT(stream.prompt_log_probs(), ElementsAre(-1.5f, -2.5f));
  EXPECT_THAT(stream.prompt_top_ids(0), ElementsAre(9));
  EXPECT_THAT(stream.prompt_top_log_probs(1), ElementsAre(-0.5f));
  stream.append({.choice = 0, .token = 4, .log_prob = -1, .finish = FinishReason::none}, std::vector<int32_t>{4, 5},
                std::vector<float>{-1, -2});
  stream.append({.choice = 0, .token = -1, .log_prob = 0, .finish = FinishReason::abort}, {}, {});
  EXPECT_THAT(stream.top_ids(0), ElementsAre(4, 5));
  EXPECT_THAT(stream.top_log_probs(0), ElementsAre(-1, -2));
  EXPECT_THAT(stream.top_ids(1), ElementsAre(-1, -1));
}

/// A vocabulary of 100 and room for requests of 50 tokens.
std::string refusal(const Request& request) {
  ModelConfig model;
  model.vocab = 100;
  EngineSizes sizes;
  sizes.max_model_len = 50;
  sizes.capacity = {.blocks = 4, .tokens = 64};
  sizes.max_num_seqs = 16;
  try {
    check_request(request, model, sizes);
    return "accepted";
  } catch (const UserError& error) {
    return error.what();
  }
}
/// A good request with one thing changed.
template <typename Change>
std::string with(Change change) {
  Request request = request_of({5, 6, 7}, 16);
  change(request);
  return refusal(request);
}

TEST(CheckRequest, TakesWhatCanRun) {
  EXPECT_EQ(with([](Request&) {}), "accepted");
  EXPECT_EQ(with([](Request& r) {
              r.max_tokens = 0;
              r.prompt_log_probs = 20;
            }),
            "accepted");
  EXPECT_EQ(with([](Request& r) {
              r.sampling = {.temperature = 2,
                            .top_k = 1000,
                            .top_p = 0.5f,
                            .min_p = 1,
                            .repetition_penalty = 1.2f,
                            .frequency_penalty = -2,
                            .presence_penalty = 2,
                            .logit_bias = {{.token = 99, .bias = -100}, {.token = 0, .bias = 100}},
                            .allowed_tokens = {0, 99},
                            .seed = 1};
              r.choices = 16;
              r.min_tokens = 16;
              r.stop_tokens = {0, 99};
              r.log_probs = 0;
            }),
            "accepted");
}

TEST(CheckRequest, TheLengthIsPromptAndAnswerTogether) {
  EXPECT_EQ(with([](Request& r) { r.max_tokens = 47; }), "accepted");
  EXPECT_EQ(with([](Request& r) { r.max_tokens = 48; }),
            "the request is too long: 3 prompt tokens and max_tokens 48, the limit for both together is 50 (--max-model-len), "
            "with KV memory for 64 tokens");
  EXPECT_EQ(with([](Request& r) {
              r.prompt.assign(50, 1);
              r.max_tokens = 0;
            }),
            "accepted");
  EXPECT_THAT(with([](Request& r) {
                r.prompt.assign(51, 1);
                r.max_tokens = 0;
              }),
              HasSubstr("51 prompt tokens"));
  EXPECT_THAT(with([](Request& r) { r.max_tokens = INT64_MAX; }), HasSubstr("too long"));
}

TEST(CheckRequest, NamesTheFieldAndWhatItTakes) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(with([](Request& r) { r.prompt.clear(); }), "the prompt has no tokens: it needs at least one");
  EXPECT_EQ(with([](Request& r) { r.prompt[1] = 100; }), "the prompt holds token 100: the vocabulary has ids 0 to 99");
  EXPECT_EQ(with([](Request& r) { r.prompt[1] = -1; }), "the prompt holds token -1: the vocabulary has ids 0 to 99");
  EXPECT_EQ(with([](Request& r) {
              r.label = "prompt33";
              r.max_tokens = -1;
            }),
            "prompt33: max_tokens must be 0 or more: got -1");
  EXPECT_EQ(with([](Request& r) { r.timeout_us = -1; }), "timeout_us must be 0 (never) or more: got -1");
  EXPECT_EQ(with([](Request& r) { r.min_tokens = 17; }), "min_tokens must be 0 to max_tokens, which is 16: got 17");
  EXPECT_EQ(with([](Request& r) { r.choices = 0; }), "n must be 1 to 128: got 0");
  EXPECT_EQ(with([](Request& r) { r.choices = 129; }), "n must be 1 to 128: got 129");
  EXPECT_EQ(with([](Request& r) { r.choices = 17; }), "n must be at most 16 (--max-num-seqs): got 17");
  EXPECT_EQ(with([](Request& r) { r.log_probs = 21; }), "logprobs must be -1 to 20: got 21");
  EXPECT_EQ(with([](Request& r) { r.prompt_log_probs = -2; }), "prompt_logprobs must be -1 to 20: got -2");
  for (const float bad : {nan, inf, -inf, -0.5f}) {
    EXPECT_THAT(with([&](Request& r) { r.sampling.temperature = bad; }), HasSubstr("temperature must be 0 to 100: got "));
    EXPECT_THAT(with([&](Request& r) { r.sampling.top_p = bad; }), HasSubstr("top_p must be above 0 and at most 1: got "));
    EXPECT_THAT(with([&](Request& r) { r.sampling.min_p = bad; }), HasSubstr("min_p must be 0 to 1: got "));
    EXPECT_THAT(with([&](Request& r) { r.sampling.repetition_penalty = bad; }),
                HasSubstr("repetition_penalty must be above 0 and at most 100: got "));
  }
  EXPECT_EQ(with([](Request& r) { r.sampling.top_p = 0; }), "top_p must be above 0 and at most 1: got 0");
  EXPECT_EQ(with([](Request& r) { r.sampling.top_k = -1; }), "top_k must be 0 (off) or more: got -1");
  EXPECT_EQ(with([](Request& r) { r.sampling.frequency_penalty = 2.5f; }), "frequency_penalty must be -2 to 2: got 2.5");
  EXPECT_EQ(with([](Request& r) { r.sampling.presence_penalty = -3; }), "presence_penalty must be -2 to 2: got -3");
  EXPECT_EQ(with([](Request& r) { r.sampling.logit_bias = {{.token = 100, .bias = 0}}; }),
            "logit_bias holds token 100: the vocabulary has ids 0 to 99");
  EXPECT_EQ(with([](Request& r) { r.sampling.logit_bias = {{.token = 1, .bias = 101}}; }),
            "logit_bias must be -100 to 100: got 101");
  EXPECT_EQ(with([](Request& r) {
              r.sampling.logit_bias = {{.token = 1, .bias = 1}, {.token = 1, .bias = 2}};
            }),
            "logit_bias names token 1 twice");
  EXPECT_EQ(with([](Request& r) { r.sampling.allowed_tokens = {100}; }),
            "allowed_token_ids holds token 100: the vocabulary has ids 0 to 99");
  EXPECT_EQ(with([](Request& r) { r.stop_tokens = {-5}; }), "stop_token_ids holds token -5: the vocabulary has ids 0 to 99");
  EXPECT_EQ(with([](Request& r) { r.forced_ids = {1}; }), "forced_ids must have one id for each of the 16 tokens: got 1");
  EXPECT_EQ(with([](Request& r) {
              r.choices = 2;
              r.capture.want_logits = true;
            }),
            "forced_ids and captures are for one choice: n is 2");
  EXPECT_EQ(with([](Request& r) { r.cache_salt.assign(1025, 'x'); }), "cache_salt may have 1024 bytes at most: got 1025");
}

}  // namespace
}  // namespace weft
