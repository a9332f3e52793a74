#include "bench_client/load_run.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench_client/scripted_server.h"
#include "support/user_error.h"

namespace weft::bench {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Reply;
using test::ScriptedServer;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using State = Record::State;

/// `count` requests of one turn, whose prompts are the numbers 0, 1, 2, ... and whose answers shall have 3 tokens.
Workload singles(int count) {
  Workload out;
  for (int i = 0; i < count; ++i) {
    Conversation one;
    one.turns.push_back({.ids = {i}, .input_tokens = 1, .output_tokens = 3});
    out.conversations.push_back(one);
  }
  return out;
}
LoadSettings settings(const ScriptedServer& server) {
  LoadSettings out;
  out.server.port = server.port();
  out.form.model = "m";
  return out;
}
LoadResult run(const LoadSettings& load, const Workload& workload, std::vector<double> starts = {}) {
  starts.resize(workload.conversations.size());
  return run_load(load, workload, starts);
}
int prompt_of(const std::string& body) { return json::parse(body)["prompt"][0]; }
std::vector<State> states(const LoadResult& result) {
  std::vector<State> out;
  for (const Record& record : result.records) out.push_back(record.state);
  return out;
}

TEST(LoadRun, EveryRequestIsAnsweredAndRecordedInItsPlace) {
  ScriptedServer server(
      [](const std::string&, const std::string& body) -> Reply { return {test::whole_stream(1, 1 + prompt_of(body) % 5)}; });
  const LoadResult out = run(settings(server), singles(200));
  ASSERT_THAT(out.records, SizeIs(200));
  for (int i = 0; i < 200; ++i) {
    const Record& record = out.records[static_cast<size_t>(i)];
    EXPECT_EQ(record.state, State::answered) << record.error;
    EXPECT_EQ(record.output_tokens, 1 + i % 5);
    EXPECT_THAT(record.chunk_tokens, SizeIs(1 + i % 5));
    EXPECT_THAT(record.itls_s, SizeIs(i % 5));
    EXPECT_LE(record.due_s, record.start_s);
    EXPECT_LE(record.ttft_s, record.latency_s);
    EXPECT_LE(record.start_s + record.latency_s, out.duration_s);
  }
  EXPECT_FALSE(out.interrupted);
}

TEST(LoadRun, SendsWhatItWasTold) {
  std::string head, body;
  ScriptedServer server([&](const std::string& h, const std::string& b) -> Reply {
    head = h;
    body = b;
    return {test::whole_stream(1, 3)};
  });
  LoadSettings load = settings(server);
  load.server.prefix = "/api";
  load.endpoint = "/v1/completions";
  load.headers = {{"Authorization", "Bearer key"}, {"x-more", "1"}};
  load.request_id_prefix = "run-";
  run(load, singles(1));
  EXPECT_THAT(head, AllOf(HasSubstr("POST /api/v1/completions HTTP/1.1\r\n"),
                          HasSubstr("Host: 127.0.0.1:" + server.port() + "\r\n"), HasSubstr("Authorization: Bearer key\r\n"),
                          HasSubstr("x-more: 1\r\n"), HasSubstr("x-request-id: run-0\r\n")));
  EXPECT_EQ(json::parse(body)["prompt"], json({0}));
  EXPECT_EQ(json::parse(body)["max_tokens"], 3);
}

TEST(LoadRun, NoMoreThanTheBoundAreOnTheirWayAndConnectionsAreKept) {
  ScriptedServer server([](const std::string&, const std::string&) -> Reply { return {test::whole_stream(1, 3), false, 2ms}; });
  LoadSettings load = settings(server);
  load.max_concurrency = 4;
  const LoadResult out = run(load, singles(60));
  EXPECT_THAT(states(out), ::testing::Each(State::answered));
  EXPECT_EQ(server.most_at_once(), 4);
  EXPECT_EQ(server.connections(), 4);
  for (size_t i = 1; i < 60; ++i) EXPECT_LE(out.records[i - 1].start_s, out.records[i].start_s) << "first come, first served";
  EXPECT_GT(out.records[59].queue_s(), 0);
}

TEST(LoadRun, RequestsBeginAtTheirTimes) {
  ScriptedServer server([](const std::string&, const std::string&) -> Reply { return {test::whole_stream(1, 3)}; });
  const LoadResult out = run(settings(server), singles(3), {0.1, 0.0, 0.05});
  EXPECT_GE(out.records[0].start_s, 0.1);
  EXPECT_GE(out.records[2].start_s, 0.05);
  EXPECT_LT(out.records[1].start_s, out.records[2].start_s);
  EXPECT_LT(out.records[2].start_s, out.records[0].start_s);
}

TEST(LoadRun, WhatGoesWrongIsCountedWithItsReason) {
  const std::string stream = test::whole_stream(1, 3);
  ScriptedServer server([&](const std::string&, const std::string& body) -> Reply {
    switch (prompt_of(body)) {
      case 0:
        return {test::plain_answer(400, R"({"error": {"message": "too long by 7"}})")};
      case 1:
        return {stream.substr(0, stream.find("finish_reason") + 30), true};
      case 2:
        return {test::stream_answer({test::text_event("x"), R"({"error": {"message": "the engine failed"}})"})};
      case 3:
        return {test::stream_answer({test::text_event("x")})};
      case 4:
        return {"", true};
      case 5:
        return {"NOT HTTP\r\n\r\n", true};
      case 6:
        return {test::plain_answer(200, "data: what\n\n")};
      case 7:
        return {test::plain_answer(503, "busy")};
      default:
        return {stream};
    }
  });
  const LoadResult out = run(settings(server), singles(10));
  const auto error = [&](size_t i) { return out.records[i].error; };
  EXPECT_EQ(error(0), "HTTP 400: too long by 7");
  EXPECT_THAT(error(1), HasSubstr("closed the connection in the middle of the answer"));
  EXPECT_THAT(error(2), HasSubstr("the engine failed"));
  EXPECT_THAT(error(3), HasSubstr("in the middle of the answer"));
  EXPECT_THAT(error(4), HasSubstr("closed the connection without an answer"));
  EXPECT_NE(error(5), "");
  EXPECT_THAT(error(6), HasSubstr("no JSON object: what"));
  EXPECT_EQ(error(7), "HTTP 503: busy");
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(out.records[i].state, State::failed) << i;
  for (size_t i = 8; i < 10; ++i) EXPECT_EQ(out.records[i].state, State::answered) << error(i);
}

TEST(LoadRun, AConnectionThatTheServerClosedMeanwhileIsNoFailure) {
  ScriptedServer* running = nullptr;
  ScriptedServer server([&](const std::string&, const std::string&) -> Reply { return {test::whole_stream(1, 3)}; });
  running = &server;
  std::thread dropper([&] {
    while (running->requests() < 1) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);
    running->drop_connections();
  });
  const LoadResult out = run(settings(server), singles(2), {0.0, 0.3});
  dropper.join();
  EXPECT_THAT(states(out), ElementsAre(State::answered, State::answered)) << out.records[1].error;
  EXPECT_EQ(server.connections(), 2);
}

TEST(LoadRun, TheNextTurnHasEverythingThatWasSaid) {
  std::vector<json> prompts;
  ScriptedServer server([&](const std::string&, const std::string& body) -> Reply {
    prompts.push_back(json::parse(body)["prompt"]);
    std::vector<std::string> events = {R"({"choices": [{"text": "", "token_ids": [7, 8], "finish_reason": null}]})"};
    const auto ending = test::ending_events(static_cast<int>(prompts.back().size()), 2);
    events.insert(events.end(), ending.begin(), ending.end());
    return {test::stream_answer(events)};
  });
  Workload workload;
  Conversation talk;
  talk.turns.push_back({.ids = {1, 2}, .input_tokens = 2, .output_tokens = 2});
  talk.turns.push_back({.ids = {3}, .input_tokens = 1, .output_tokens = 2, .delay_s = 0.05});
  talk.turns.push_back({.ids = {4}, .input_tokens = 1, .output_tokens = 2});
  workload.conversations.push_back(talk);
  const LoadResult out = run(settings(server), workload);
  EXPECT_THAT(prompts, ElementsAre(json({1, 2}), json({1, 2, 7, 8, 3}), json({1, 2, 7, 8, 3, 7, 8, 4})));
  ASSERT_THAT(out.records, SizeIs(3));
  EXPECT_EQ(out.records[2].input_tokens, 8);
  EXPECT_GE(out.records[1].start_s, out.records[0].start_s + out.records[0].latency_s + 0.05);
}

TEST(LoadRun, AfterATurnThatFailedTheRestIsNotSent) {
  ScriptedServer server([](const std::string&, const std::string& body) -> Reply {
    return {json::parse(body)["prompt"].size() > 1 ? test::plain_answer(400, "{}") : test::whole_stream(1, 1)};
  });
  Workload workload = singles(2);
  for (int i = 0; i < 3; ++i) workload.conversations[0].turns.push_back({.ids = {5}, .output_tokens = 1});
  const LoadResult out = run(settings(server), workload);
  EXPECT_THAT(states(out), ElementsAre(State::answered, State::failed, State::failed, State::failed, State::answered));
  EXPECT_THAT(out.records[3].error, HasSubstr("not sent"));
  EXPECT_EQ(server.requests(), 3);
}

TEST(LoadRun, ASignalEndsItAndWhatWasAnsweredStays) {
  // The second answer stops after its first chunk, whose token has come all the same.
  const std::string stream = test::whole_stream(1, 3), begun = stream.substr(0, stream.find("}\n\n\r\n") + 5);
  ScriptedServer server([&](const std::string&, const std::string& body) -> Reply {
    return prompt_of(body) == 1 ? Reply{.bytes = begun, .after = 60'000ms} : Reply{.bytes = stream};
  });
  std::thread killer([&] {
    while (server.requests() < 2) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(1s);
    ::kill(::getpid(), SIGINT);
  });
  const auto began = std::chrono::steady_clock::now();
  const LoadResult out = run(settings(server), singles(3), {0, 0, 1e6});
  killer.join();
  EXPECT_TRUE(out.interrupted);
  EXPECT_THAT(states(out), ElementsAre(State::answered, State::interrupted, State::unsent));
  EXPECT_THAT(out.records[1].chunk_tokens, ElementsAre(1));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST(LoadRun, WithoutAServerEveryRequestFailsAndSaysWhy) {
  std::string port;
  {
    const ScriptedServer gone([](const std::string&, const std::string&) -> Reply { return {}; });
    port = gone.port();
  }
  LoadSettings load;
  load.server.port = port;
  const LoadResult out = run(load, singles(2));
  EXPECT_THAT(states(out), ElementsAre(State::failed, State::failed));
  EXPECT_THAT(out.records[0].error, AllOf(HasSubstr("cannot connect"), HasSubstr("refused")));
  EXPECT_THROW(ask(load.server, {.method = "GET", .path = "/"}, 5), SystemError);
}

TEST(ServerAddress, IsReadFromItsUrl) {
  const auto read = [](const std::string& url) { return ServerAddress::parse(url).url(); };
  EXPECT_EQ(read("http://host"), "http://host:80");
  EXPECT_EQ(read("http://host:8000/"), "http://host:8000");
  EXPECT_EQ(read("http://10.0.0.1:1/api/x/"), "http://10.0.0.1:1/api/x");
  EXPECT_EQ(read("http://[::1]:8000/v"), "http://[::1]:8000/v");
  EXPECT_EQ(ServerAddress::parse("http://[::1]").host, "::1");
  for (const char* url : {"", "host:8000", "https://host", "http://", "http://host:", "http://host:0", "http://host:99999",
                          "http://host:8x", "http://a b", "http://[::1"})
    EXPECT_THAT(weft::test::user_error([&] { ServerAddress::parse(url); }), HasSubstr("http://HOST")) << url;
}

}  // namespace
}  // namespace weft::bench
