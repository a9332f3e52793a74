// The server as its users run it: a process, a checkpoint, sockets.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <thread>

#include "e2e/served_model.h"
#include "server/certificate.h"
#include "support/checkpoint_writer.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Answer;
using test::Client;
using test::http_request;
using test::ServedModel;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kModel = WEFT_SOURCE_DIR "/tests/goldens/deepseek_v2_lite";
// Two ranks that share every sequence; room for 40 blocks of 32 tokens.
const std::vector<std::string> kFlags = {"-tp", "2",         "-dcp", "2", "--dtype", "float32", "--num-gpu-blocks-override",
                                         "20",  "--threads", "2"};

std::vector<std::string> with(std::vector<std::string> flags) {
  flags.insert(flags.begin(), kFlags.begin(), kFlags.end());
  return flags;
}

/// A prompt that depends on `seed`, of token ids that the model has.
std::vector<int> prompt(int seed, int length) {
  std::vector<int> out;
  for (int i = 0; i < length; ++i) out.push_back(2 + (seed * 131 + i * 37 + i * i % 11) % 200);
  return out;
}
json request(const std::vector<int>& ids, int max_tokens, bool stream = false) {
  return {{"prompt", ids}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}, {"stream", stream}};
}
/// The tokens of an answer, streamed or not.
std::vector<int> tokens(const Answer& answer) {
  if (answer.headers.at("content-type") == "application/json")
    return answer.json()["choices"][0]["token_ids"].get<std::vector<int>>();
  std::vector<int> out;
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    if (!choice.contains("token_ids")) continue;
    for (const json& id : choice["token_ids"]) out.push_back(id.get<int>());
  }
  return out;
}

struct Ran {
  int status = -1;
  std::string output;
};
/// Runs weft and waits; standard output and error together.
Ran run(const std::string& arguments) {
  Ran out;
  FILE* pipe = ::popen((std::string(WEFT_BINARY) + " " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.output.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

TEST(Serve, AnswersAreThoseOfGenerateStreamedOrNotAloneOrTogether) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  std::vector<std::vector<int>> alone;
  for (int seed = 0; seed < 4; ++seed) {
    const json body = request(prompt(seed, 5 + 40 * seed), 12);
    Client client = server.client();
    alone.push_back(tokens(client.post("/v1/completions", body.dump())));
    EXPECT_EQ(alone.back().size(), 12u);
    EXPECT_EQ(tokens(client.post("/v1/completions", request(prompt(seed, 5 + 40 * seed), 12, true).dump())), alone.back())
        << "streamed, and from the cache";
  }
  std::string ids, expected;
  for (const int id : prompt(1, 45)) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  for (const int id : alone[1]) expected += (expected.empty() ? "generated " : ",") + std::to_string(id);
  const Ran generated = run("generate " + kModel + " --dtype float32 --max-tokens 12 --prompt-ids " + ids);
  EXPECT_THAT(generated.output, HasSubstr(expected)) << "one rank says the same as two";

  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&, i] {
      const int seed = i % 4;
      Client client = server.client();
      for (int turn = 0; turn < 3; ++turn) {
        const json body = request(prompt(seed, 5 + 40 * seed), 12, (i + turn) % 2 == 0);
        EXPECT_EQ(tokens(client.post("/v1/completions", body.dump())), alone[static_cast<size_t>(seed)]) << i;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(server.becomes_quiet());
  EXPECT_GT(server.metric("vllm:prefix_cache_hits_total"), 0);
}

TEST(Serve, TellsTheSameCapacityEverywhereAndKeepsToIt) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  std::string flags;
  for (const std::string& flag : kFlags) flags += " " + flag;
  const json inspected = json::parse(run("inspect " + kModel + flags + " --json").output);
  const int64_t capacity = inspected["capacity_tokens"], limit = inspected["max_model_len"];
  EXPECT_EQ(capacity, 20 * 32);
  Client client = server.client();
  const json model = client.get("/v1/models").json()["data"][0];
  EXPECT_EQ(model["max_model_len"], limit);
  EXPECT_EQ(model["kv_capacity_tokens"], capacity);
  EXPECT_EQ(server.metric("weft_kv_capacity_tokens"), static_cast<double>(capacity));
  EXPECT_THAT(client.get("/metrics").body, AllOf(HasSubstr("block_size=\"32\""), HasSubstr("num_gpu_blocks=\"20\"")));
  EXPECT_THAT(server.log(), AllOf(HasSubstr("room for " + std::to_string(capacity) + " tokens in 20 blocks of 32"),
                                  HasSubstr("W = 2"), HasSubstr("S = 1"), HasSubstr("B = 16"), HasSubstr("float32")));

  const auto length = static_cast<int>(limit);
  const Answer fits = client.post("/v1/completions", request(prompt(1, length - 4), 4).dump());
  EXPECT_EQ(fits.status, 200) << fits.body;
  EXPECT_EQ(tokens(fits).size(), 4u);
  EXPECT_EQ(fits.json()["usage"]["kv_tokens_per_rank"], json({(length - 4) / 2, (length - 4) / 2}));
  for (const auto& [size, max_tokens] :
       {std::pair{length - 3, 4}, std::pair{length - 4, 5}, std::pair{length + 1, 1}, std::pair{100 * length, 1}}) {
    const Answer refused = client.post("/v1/completions", request(prompt(1, size), max_tokens).dump());
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.error_code(), "context_length_exceeded");
    EXPECT_THAT(refused.body, AllOf(HasSubstr(std::to_string(size)), HasSubstr(std::to_string(limit))));
  }
}

TEST(Serve, PromptsAreScoredAlikeColdAndCachedAndInChunks) {
  const ServedModel whole(WEFT_BINARY, kModel, kFlags);
  const ServedModel chunked(WEFT_BINARY, kModel, with({"--max-num-batched-tokens", "32"}));
  json body = request(prompt(7, 100), 1);
  body["echo"] = true;
  body["logprobs"] = 2;
  const auto scores = [&](const ServedModel& server) {
    const Answer answer = server.client().post("/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json lp = answer.json()["choices"][0]["logprobs"];
    EXPECT_EQ(lp["token_logprobs"].size(), 101u);
    EXPECT_EQ(lp["top_logprobs"].size(), 101u);
    std::vector<double> out;
    for (size_t i = 1; i < lp["token_logprobs"].size(); ++i) {
      out.push_back(lp["token_logprobs"][i]);
      EXPECT_EQ(lp["top_logprobs"][i].at(lp["tokens"][i].get<std::string>()), lp["token_logprobs"][i]);
      EXPECT_LE(out.back(), 0);
    }
    return out;
  };
  const std::vector<double> cold = scores(whole), again = scores(whole), in_chunks = scores(chunked);
  // Float32: sums of some hundred products in another order.
  for (size_t i = 0; i < cold.size(); ++i) {
    EXPECT_NEAR(cold[i], again[i], 1e-3) << i;
    EXPECT_NEAR(cold[i], in_chunks[i], 1e-3) << i;
  }
}

TEST(Serve, AClientThatLeavesGivesItsBlocksBack) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  for (const bool stream : {true, false}) {
    {
      Client client = server.client();
      client.send(http_request("POST", "/v1/completions", "", request(prompt(1, 300), 300, stream).dump()));
      if (stream) {
        client.read_until("data: ");
      } else {
        while (server.metric("weft_kv_blocks_held") == 0) std::this_thread::sleep_for(1ms);
      }
    }
    EXPECT_TRUE(server.becomes_quiet());
  }
  EXPECT_EQ(server.metric("weft_http_disconnects_total"), 2);
}

TEST(Serve, AFullQueueSaysNoAndWhatWasTakenIsAnswered) {
  const ServedModel server(WEFT_BINARY, kModel, with({"--max-num-seqs", "1", "--max-queued-requests", "1"}));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(http_request("POST", "/v1/completions", "", request(prompt(i, 20), 200).dump()));
  }
  int answered = 0, refused = 0;
  for (const auto& client : clients) {
    const Answer answer = client->read_answer();
    answered += answer.status == 200;
    if (answer.status == 200) continue;
    ++refused;
    EXPECT_EQ(answer.status, 429);
    EXPECT_EQ(answer.error_code(), "queue_full");
    EXPECT_GE(std::stoi(answer.headers.at("retry-after")), 1);
  }
  EXPECT_GE(answered, 1);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(server.metric("weft_requests_refused_total"), refused);
}

TEST(Serve, SigtermFinishesWhatRunsAndEndsWell) {
  ServedModel server(WEFT_BINARY, kModel, with({"--shutdown-timeout", "60"}));
  Client stream = server.client(), other = server.client();
  stream.send(http_request("POST", "/v1/completions", "", request(prompt(1, 20), 200, true).dump()));
  stream.read_until("data: ");
  EXPECT_EQ(other.get("/ready").status, 200);
  server.signal(SIGTERM);
  const Answer answer = stream.read_answer();
  EXPECT_EQ(answer.events().back(), "[DONE]");
  EXPECT_EQ(tokens(answer).size(), 200u);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, TwoInterruptsEndItAtOnceAndOneWhenNothingRuns) {
  {
    ServedModel server(WEFT_BINARY, kModel, with({"--shutdown-timeout", "600"}));
    Client stream = server.client();
    stream.send(http_request("POST", "/v1/completions", "", request(prompt(1, 20), 500, true).dump()));
    stream.read_until("data: ");
    server.signal(SIGINT);
    std::this_thread::sleep_for(50ms);
    server.signal(SIGINT);
    EXPECT_EQ(server.wait(), 0);
  }
  ServedModel idle(WEFT_BINARY, kModel, kFlags);
  idle.signal(SIGINT);
  EXPECT_EQ(idle.wait(), 0);
}

TEST(Serve, Sigusr2WritesAFlightThatReplaysTheSame) {
  ServedModel server(WEFT_BINARY, kModel, kFlags);
  Client client = server.client();
  const std::vector<int> answer = tokens(client.post("/v1/completions", request(prompt(1, 90), 20).dump()));
  server.signal(SIGUSR2);
  std::smatch said;
  std::string log;
  for (int i = 0; i < 600 && !std::regex_search(log, said, std::regex("are in (\\S+): weft replay")); ++i) {
    std::this_thread::sleep_for(100ms);
    log = server.log();
  }
  ASSERT_EQ(said.size(), 2u) << log;
  EXPECT_EQ(tokens(client.post("/v1/completions", request(prompt(1, 90), 20).dump())), answer) << "it goes on";
  const std::string path = said[1];
  const Ran again = run("replay " + path);
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("steps gave the same"));
  std::filesystem::remove(path);
  EXPECT_EQ(run("replay " + path).status, 2);
  EXPECT_EQ(run("replay").status, 2);
}

TEST(Serve, KeysAndNamesAreThoseOfItsFlags) {
  const ServedModel server(WEFT_BINARY, kModel,
                           with({"--api-key", "secret,other", "--served-model-name", "tiny,small", "--open-metrics"}));
  Client client = server.client();
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.post("/v1/completions", request({5}, 1).dump()).status, 401);
  EXPECT_EQ(client.get("/metrics").status, 200);
  const std::string key = "Authorization: Bearer other\r\n";
  EXPECT_EQ(client.get("/v1/models", key).json()["data"][1]["id"], "small");
  json body = request({5}, 1);
  body["model"] = "small";
  EXPECT_EQ(client.post("/v1/completions", body.dump(), key).json()["model"], "small");
  body["model"] = kModel;
  EXPECT_EQ(client.post("/v1/completions", body.dump(), key).status, 404);
  EXPECT_EQ(server.log().find("secret"), std::string::npos);
}

/// Runs curl and returns what it wrote; its status must be 0.
std::string curl(const std::string& arguments) {
  FILE* pipe = ::popen(("curl -sS " + arguments + " 2>&1").c_str(), "r");
  std::string said;
  for (int c; (c = std::fgetc(pipe)) != EOF;) said += static_cast<char>(c);
  EXPECT_EQ(::pclose(pipe), 0) << arguments << "\n" << said;
  return said;
}
bool has_curl() { return std::system("command -v curl >/dev/null") == 0; }
size_t count(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(Serve, AnswersCurl) {
  if (!has_curl()) GTEST_SKIP() << "no curl here";
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port());
  const std::string json_header = " -H 'Content-Type: application/json' ";
  const std::string body = "-d '" + request(prompt(1, 20), 3, true).dump() + "' ", completions = url + "/v1/completions ";

  const std::string chunked = curl("-N " + completions + json_header + "-H 'Transfer-Encoding: chunked' " + body);
  EXPECT_THAT(chunked, HasSubstr("data: [DONE]"));

  // Four requests of all kinds on one connection.
  const std::string kept =
      curl("-v -N " + completions + json_header + body + " --next -sS -v " + url + "/health --next -sS -v -N " + completions +
           json_header + "-H 'Transfer-Encoding: chunked' " + body + " --next -sS -v -I " + url + "/v1/models");
  EXPECT_EQ(count(kept, "< HTTP/1.1 200 OK"), 4u) << kept;
  EXPECT_EQ(count(kept, "data: [DONE]"), 2u);
  EXPECT_EQ(count(kept, "Re-using existing connection"), 3u) << kept;

  // A body that is larger than what curl sends unasked: it waits for permission first.
  test::TemporaryFolder folder;
  const std::string file = folder.path() / "body.json";
  std::ofstream(file) << R"({"prompt":[5],"max_tokens":1,"metadata":")" + std::string(2 << 20, 'x') + "\"}";
  const std::string asked = curl("-v " + completions + json_header + "-d @" + file);
  EXPECT_THAT(asked, HasSubstr("100 Continue"));
  EXPECT_THAT(asked, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(curl("-0 -N " + completions + json_header + body), HasSubstr("data: [DONE]")) << "HTTP/1.0";
  EXPECT_TRUE(server.becomes_quiet());
}

TEST(Serve, SpeaksTlsAndOnAUnixSocket) {
  if (!has_curl()) GTEST_SKIP() << "no curl here";
  test::TemporaryFolder folder;
  const test::Certificate authority = test::write_certificate(folder.path(), "authority"),
                          own = test::write_certificate(folder.path(), "server", &authority),
                          visitor = test::write_certificate(folder.path(), "visitor", &authority);
  const std::string body = " -H 'Content-Type: application/json' -d '" + request(prompt(1, 20), 3, true).dump() + "'";
  {
    const ServedModel server(WEFT_BINARY, kModel, with({"--ssl-certfile", own.file, "--ssl-keyfile", own.key_file}));
    const std::string url = "https://localhost:" + std::to_string(server.port());
    const std::string said =
        curl("-v -N --cacert " + authority.file + " " + url + "/v1/completions" + body + " " + url + "/health");
    EXPECT_THAT(said, HasSubstr("data: [DONE]"));
    EXPECT_THAT(said, HasSubstr("SSL connection using TLSv1.3"));
    EXPECT_THAT(said, HasSubstr("Re-using existing connection"));
    EXPECT_NE(std::system(("curl -s " + url + "/health >/dev/null").c_str()), 0) << "nobody vouches for it";
  }
  {
    const ServedModel server(WEFT_BINARY, kModel,
                             with({"--ssl-certfile", own.file, "--ssl-keyfile", own.key_file, "--ssl-ca-certs", authority.file,
                                   "--ssl-cert-reqs", "2"}));
    const std::string url = "https://localhost:" + std::to_string(server.port()) + "/health";
    EXPECT_THAT(curl("--cacert " + authority.file + " --cert " + visitor.file + " --key " + visitor.key_file + " " + url),
                HasSubstr("ok"));
    EXPECT_NE(std::system(("curl -s --cacert " + authority.file + " " + url + " >/dev/null 2>&1").c_str()), 0);
  }
  const std::string path = folder.path() / "weft.sock";
  ServedModel server(WEFT_BINARY, kModel, with({"--uds", path}));
  EXPECT_THAT(curl("-N --unix-socket " + path + " http://x/v1/completions" + body), HasSubstr("data: [DONE]"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Serve, ARequestWhoseTimeIsOverIsAnsweredSoAndGivesItsBlocksBack) {
  const ServedModel server(WEFT_BINARY, kModel, with({"--request-timeout", "60"}));
  for (const bool stream : {false, true}) {
    Client client = server.client();
    json body = request(prompt(1, 100), 500, stream);
    body["timeout"] = 0.05;
    const Answer answer = client.post("/v1/completions", body.dump());
    const json error = stream ? json::parse(answer.events().back())["error"] : answer.json()["error"];
    EXPECT_EQ(answer.status, stream ? 200 : 504);
    EXPECT_EQ(error["code"], "deadline_exceeded");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("0.05 s"));
    if (!stream) {
      EXPECT_EQ(answer.headers.at("x-should-retry"), "false");
    }
    EXPECT_EQ(client.get("/health").status, 200) << "the connection goes on";
  }
  EXPECT_TRUE(server.becomes_quiet());
  EXPECT_THAT(server.client().get("/metrics").body, HasSubstr("finished_reason=\"timeout\"} 2"));
}

TEST(Serve, LogsInJsonWithAnIdInEveryLineAboutARequest) {
  const ServedModel server(WEFT_BINARY, kModel, with({"--log-format", "json", "--log-level", "debug"}));
  Client client = server.client();
  json body = request(prompt(1, 20), 2);
  body["what_is_this"] = 1;
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const std::string id =
      client.post("/v1/completions", body.dump(), "X-Request-Id: mine\r\ntraceparent: 00-" + trace + "-00f067aa0ba902b7-01\r\n")
          .json()["id"];
  client.get("/health");
  client.get("/nothing%22%0a");
  client.post("/v1/completions", R"({"prompt":[-1],"user":"secret words"})");
  client.get("/v1/models");
  std::vector<json> answered;
  bool ignored = false;
  std::istringstream lines(server.log());
  for (std::string line; std::getline(lines, line);) {
    const json entry = json::parse(line);
    EXPECT_TRUE(entry["time"].is_string() && entry["level"].is_string() && entry["message"].is_string()) << line;
    if (entry["message"] == "answered") answered.push_back(entry);
    if (entry["message"].get<std::string>().find("what_is_this") == std::string::npos) continue;
    ignored = true;
    EXPECT_EQ(entry["request_id"], id);
  }
  EXPECT_TRUE(ignored);
  ASSERT_EQ(answered.size(), 4u) << "all but the one about health";
  EXPECT_EQ(answered[0]["request_id"], id);
  EXPECT_EQ(answered[0]["client_request_id"], "mine");
  EXPECT_EQ(answered[0]["trace_id"], trace);
  EXPECT_EQ(answered[0]["status"], 200);
  EXPECT_EQ(answered[0]["prompt_tokens"], 20);
  EXPECT_EQ(answered[0]["completion_tokens"], 2);
  EXPECT_EQ(answered[1]["status"], 404);
  EXPECT_EQ(answered[2]["status"], 400);
  EXPECT_EQ(answered[3]["path"], "/v1/models");
  std::set<std::string> ids;
  for (const json& entry : answered) EXPECT_TRUE(ids.insert(entry["request_id"]).second);
  EXPECT_EQ(server.log().find("secret words"), std::string::npos);
}

TEST(Serve, WhatCannotBeServedIsRefusedAtStartInOneLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--port 70000", "--port must be"},
      {"--port x", "--port must be"},
      {"--host example.com", "--host must be an address"},
      {"--api-key ''", "--api-key must not have an empty word"},
      {"--api-key-file /nowhere", "--api-key-file must name a file"},
      {"--shutdown-timeout soon", "--shutdown-timeout must be"},
      {"--allowed-origins '[1]'", "--allowed-origins must be"},
      {"--max-body-size 5", "--max-body-size must be"},
      {"--log-level loud", "--log-level must be"},
      {"--log-format xml", "--log-format must be text or json"},
      {"--ssl-certfile /nowhere", "--ssl-certfile must name a file"},
      {"--ssl-keyfile /nowhere", "need --ssl-certfile"},
      {"--ssl-cert-reqs 3", "--ssl-cert-reqs must be"},
      {"--request-timeout -1", "--request-timeout must be"},
      {"--timeout-keep-alive 0", "--timeout-keep-alive must be"},
      {"--max-json-depth 1000", "--max-json-depth must be"},
      {"--max-header-size 1", "--max-header-size must be"},
      {"--uds ''", "--uds must be a path"},
      {"--enable-lora", "merge the adapter"},
      {"--data-parallel-size 2", "start several servers"},
      {"-dp 2", "start several servers"},
      {"--enable-expert-parallel", "use --tensor-parallel-size"},
      {"--pipeline-parallel-size=2", "use --tensor-parallel-size"},
      {"--prefill-context-parallel-size 2", "use --decode-context-parallel-size"},
      {"--trust-remote-code", "never run"},
      {"--task embed", "generates text only"},
      {"--quantization awq", "AWQ"},
      {"--speculative-config '{}'", "no drafts"},
      {"--limit-mm-per-prompt image=1", "text and token ids only"},
      {"--gpu_memory_utilization 0.9", "use --memory-per-rank"},
      {"--pornt 8000", "did you mean --port?"},
  };
  for (const auto& [flags, reason] : cases) {
    const Ran refused = run("serve " + kModel + " " + flags);
    EXPECT_EQ(refused.status, 2) << flags << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(reason)) << flags;
    EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << flags << refused.output;
  }
}

}  // namespace
}  // namespace weft
