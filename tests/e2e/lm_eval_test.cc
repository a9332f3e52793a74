// What lm_eval's `local-completions` sends and reads, request by request: exactly these fields, read the way it reads them, and
// the sums against the logits that transformers computed.

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "e2e/chat_model.h"
#include "e2e/served_model.h"
#include "support/checkpoint_writer.h"
#include "support/golden_files.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Answer;
using test::Client;
using test::ServedModel;

namespace fs = std::filesystem;

const fs::path kGolden = WEFT_SOURCE_DIR "/tests/goldens/qwen3_f32";
constexpr double kTolerance = 1e-2;

/// A context and what follows it: how probable is that?
struct Question {
  std::vector<int> context, continuation;
};
struct Verdict {
  double log_likelihood = 0;
  bool is_greedy = true;
};

/// The request of a batch.
json loglikelihood_request(const std::string& model, const std::vector<Question>& questions) {
  json prompts = json::array();
  for (const Question& question : questions) {
    std::vector<int> whole = question.context;
    whole.insert(whole.end(), question.continuation.begin(), question.continuation.end());
    prompts.push_back(whole);
  }
  return {{"model", model}, {"prompt", prompts}, {"temperature", 0}, {"max_tokens", 1},
          {"logprobs", 1},  {"seed", 1234},      {"echo", true}};
}

/// What it makes of the answer.
std::vector<Verdict> read_verdicts(const json& answer, const std::vector<Question>& questions) {
  std::vector<json> choices = answer.at("choices");
  std::sort(choices.begin(), choices.end(), [](const json& a, const json& b) { return a.at("index") < b.at("index"); });
  EXPECT_EQ(choices.size(), questions.size());
  std::vector<Verdict> out;
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    const json &values = choices[i].at("logprobs").at("token_logprobs"), &tops = choices[i].at("logprobs").at("top_logprobs");
    const size_t context = questions[i].context.size(), all = context + questions[i].continuation.size();
    // One entry for each prompt token and one for the one that was generated, whatever that is.
    EXPECT_EQ(values.size(), all + 1) << i;
    EXPECT_EQ(tops.size(), all + 1) << i;
    EXPECT_TRUE(values[0].is_null());
    Verdict& verdict = out.emplace_back();
    for (size_t at = 1; at < values.size(); ++at) {
      EXPECT_TRUE(values[at].is_number() && std::isfinite(values[at].get<double>())) << at;
      EXPECT_TRUE(tops[at].is_object() && !tops[at].empty()) << at;
    }
    for (size_t at = context; at + 1 < values.size(); ++at) {  // [ctxlen:-1]
      verdict.log_likelihood += values[at].get<double>();
      double best = -INFINITY;
      for (const auto& [token, value] : tops[at].items()) best = std::max(best, value.get<double>());
      if (values[at].get<double>() != best) verdict.is_greedy = false;  // With != on the numbers as they came.
    }
  }
  return out;
}

/// The same from logits [L, V] of the whole text.
Verdict reference(const test::GoldenPrompt& prompt, int64_t vocab, const Question& question) {
  Verdict out;
  for (size_t i = 0; i < question.continuation.size(); ++i) {
    const double* row = prompt.logits.data() + static_cast<int64_t>(question.context.size() + i - 1) * vocab;
    const double most = *std::max_element(row, row + vocab);
    const double sum = std::accumulate(row, row + vocab, 0.0, [&](double s, double x) { return s + std::exp(x - most); });
    const double value = row[question.continuation[i]];
    out.log_likelihood += value - most - std::log(sum);
    out.is_greedy = out.is_greedy && value == most;
  }
  return out;
}

class LmEval : public ::testing::Test {
 protected:
  LmEval() : golden_(test::load_golden(kGolden)) {
    for (const test::GoldenPrompt& prompt : golden_.prompts)
      if (!prompt.logits.empty()) prompt_ = &prompt;
  }
  /// The first `length` tokens of the prompt, the last `of_answer` of which are the continuation.
  Question cut(size_t length, size_t of_answer) const {
    const auto& ids = prompt_->input_ids;
    return {.context = {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length - of_answer)},
            .continuation = {ids.begin() + static_cast<std::ptrdiff_t>(length - of_answer),
                             ids.begin() + static_cast<std::ptrdiff_t>(length)}};
  }
  /// The token that the reference thinks most probable behind the first `length`.
  int greedy_after(size_t length) const {
    const double* row = prompt_->logits.data() + static_cast<int64_t>(length - 1) * golden_.vocab;
    return static_cast<int>(std::max_element(row, row + golden_.vocab) - row);
  }

  test::Golden golden_;
  const test::GoldenPrompt* prompt_ = nullptr;
};

TEST_F(LmEval, SumsAreThoseOfTheReferenceForEveryKindOfPrompt) {
  ASSERT_NE(prompt_, nullptr);
  // A copy of the model for which the token that comes after 60 others ends answers.
  test::TemporaryFolder folder;
  for (const auto& file : fs::directory_iterator(kGolden))
    if (file.path().extension() == ".safetensors" && file.path().filename() != "golden.safetensors")
      fs::create_symlink(file.path(), folder.path() / file.path().filename());
  json config = json::parse(std::ifstream(kGolden / "config.json"));
  const int end = greedy_after(60);
  config["eos_token_id"] = end;
  std::ofstream(folder.path() / "config.json") << config.dump();

  const ServedModel server(WEFT_BINARY, folder.path(),
                           {"--dtype", "float32", "--num-gpu-blocks-override", "64", "--threads", "2"});
  Client client = server.client();
  const std::string model = client.get("/v1/models").json()["data"][0]["id"];
  Question greedy = cut(90, 0);  // A continuation that the model itself would give.
  greedy.continuation = {greedy_after(90)};
  const std::vector<Question> questions = {cut(60, 5), cut(200, 40), cut(2, 1), cut(33, 32), greedy, cut(60, 20)};
  for (int turn = 0; turn < 2; ++turn) {  // The second time prefixes are cached.
    const Answer answer = client.post("/v1/completions", loglikelihood_request(model, questions).dump());
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::vector<Verdict> verdicts = read_verdicts(answer.json(), questions);
    for (size_t i = 0; i < questions.size(); ++i) {
      if (i == 4) {
        EXPECT_TRUE(verdicts[i].is_greedy);
        continue;
      }
      const Verdict right = reference(*prompt_, golden_.vocab, questions[i]);
      EXPECT_NEAR(verdicts[i].log_likelihood, right.log_likelihood, kTolerance) << i;
      EXPECT_EQ(verdicts[i].is_greedy, right.is_greedy) << i;
    }
    const json ended = answer.json()["choices"][0];
    EXPECT_EQ(ended["finish_reason"], "stop") << "the generated token is the end token, and has its entry all the same";
    EXPECT_EQ(answer.json()["usage"]["prompt_tokens"], 60 + 200 + 2 + 33 + 91 + 60) << "nothing is put before token ids";
  }
}

TEST_F(LmEval, ATokenThatComesAgainAndAgainKeepsItsOwnEntries) {
  const ServedModel server(WEFT_BINARY, kGolden, {"--dtype", "float32", "--num-gpu-blocks-override", "64", "--threads", "2"});
  Client client = server.client();
  const std::vector<Question> questions = {{.context = {7, 7, 7}, .continuation = std::vector<int>(20, 7)},
                                           {.context = {9}, .continuation = {9, 8, 9, 8}}};
  const json answer = client.post("/v1/completions", loglikelihood_request("", questions).dump()).json();
  read_verdicts(answer, questions);
  const json& log_probs = answer["choices"][0]["logprobs"];
  for (size_t at = 1; at < 23; ++at)
    EXPECT_EQ(log_probs["top_logprobs"][at].at(log_probs["tokens"][at].get<std::string>()), log_probs["token_logprobs"][at]);
}

TEST(LmEvalGeneration, TakesUntilAsItComes) {
  test::TemporaryFolder folder;
  test::write_chat_model(folder.path());
  const ServedModel server(WEFT_BINARY, folder.path(),
                           {"--load-format", "dummy", "--num-gpu-blocks-override", "64", "--threads", "2"});
  Client client = server.client();
  const json common = {
      {"model", client.get("/v1/models").json()["data"][0]["id"]}, {"max_tokens", 40}, {"temperature", 0}, {"seed", 1234}};
  const auto ask = [&](const json& prompt, const json& stop, const json& more = json::object()) {
    json body = common;
    body["prompt"] = prompt;
    body["stop"] = stop;
    body.update(more);
    const Answer answer = client.post("/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    // By index into a list of as many, as it does.
    const json choices = answer.json()["choices"];
    std::vector<std::string> texts(choices.size());
    for (const json& choice : choices) texts.at(choice["index"]) = choice["text"];
    return texts;
  };
  const json prompts = {"Question: one\nAnswer:", "Question: another one\nAnswer:", "Q"};
  const auto whole = ask(prompts, nullptr, {{"ignore_eos", true}});
  EXPECT_EQ(whole.size(), 3u);
  EXPECT_EQ(ask({json::array({81, 117})}, json::array()).size(), 1u) << "token ids, an empty list";
  EXPECT_EQ(ask(prompts, {"\n\n", "Question:", "</s>", "<|end|>", "Q:", "A:", "###"}).size(), 3u) << "more than OpenAI's four";
  // What is cut by a stop is a beginning of the whole.
  size_t at = 1;
  while (at < whole[0].size() && (static_cast<unsigned char>(whole[0][at]) & 0x80) != 0) ++at;
  ASSERT_LT(at, whole[0].size());
  const std::string stop = whole[0].substr(at, 1);
  EXPECT_EQ(ask(prompts, {stop}, {{"ignore_eos", true}})[0], whole[0].substr(0, whole[0].find(stop)));
  // Arguments of generation at top level, as tasks set them.
  EXPECT_EQ(ask("Q", {"\n"}, {{"top_p", 0.95}, {"top_k", 20}, {"min_p", 0}, {"repetition_penalty", 1.0}, {"do_sample", false}})
                .size(),
            1u);
}

TEST(LmEvalGeneration, ChatsGoToTheirOwnUrlAndTheProbeForATokenizerGetsAnAnswer) {
  test::TemporaryFolder folder;
  test::write_chat_model(folder.path());
  const ServedModel server(WEFT_BINARY, folder.path(),
                           {"--load-format", "dummy", "--num-gpu-blocks-override", "64", "--threads", "2"});
  Client client = server.client();
  const json chat = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                     {"model", client.get("/v1/models").json()["data"][0]["id"]},
                     {"max_tokens", 5},
                     {"temperature", 0},
                     {"stop", {"\n"}},
                     {"seed", 1234}};
  const Answer answer = client.post("/v1/chat/completions", chat.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.json()["choices"][0]["message"]["content"].is_string());
  const Answer mixed = client.post("/v1/completions", chat.dump());
  EXPECT_EQ(mixed.status, 400);
  EXPECT_EQ(mixed.json()["error"]["param"], "prompt") << "it says what is missing";
  EXPECT_EQ(client.get("/tokenizer_info").status, 404);
  const json tokens = client.post("/tokenize", R"({"prompt":"hi","add_special_tokens":false})").json();
  EXPECT_EQ(tokens["tokens"], json({104, 105}));
}

}  // namespace
}  // namespace weft
