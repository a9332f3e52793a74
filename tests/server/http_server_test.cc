// The server over real sockets, with a backend that needs no model.

#include "server/http_server.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/http_client.h"
#include "server/running_server.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Answer;
using test::Client;
using test::Connection;
using test::FakeBackend;
using test::http_request;
using test::Running;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string completion(const std::string& more) { return R"({"prompt":"a")" + (more.empty() ? "" : "," + more) + "}"; }

TEST(HttpServer, OneConnectionTakesRequestsOfAllKinds) {
  Running run;
  Client client(run.port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.get("/health").status, 200);
    EXPECT_EQ(client.post("/v1/completions", completion(R"("max_tokens":4)")).json()["choices"][0]["text"], "bcde");
    const Answer stream = client.post("/v1/completions", completion(R"("max_tokens":4,"stream":true)"));
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_EQ(stream.headers.at("transfer-encoding"), "chunked");
    EXPECT_EQ(stream.events().back(), "[DONE]");
    EXPECT_EQ(client.post("/v1/completions", "{").status, 400);
    EXPECT_EQ(client.post("/v1/completions", "").status, 400);
    const Answer head = client.request("HEAD", "/health", "", "");
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.body, "");
    EXPECT_EQ(client.get("/nothing").status, 404);
    EXPECT_EQ(client.post("/v1/responses", R"({"input":""})").status, 501);
    EXPECT_EQ(client.request("DELETE", "/v1/completions", "", "").status, 405);
    const Answer preflight = client.request(
        "OPTIONS", "/v1/completions",
        "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n",
        "");
    EXPECT_EQ(preflight.status, 204);
    EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
    EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization");
  }
  run.expect_quiet(1);
}

TEST(HttpServer, RequestsThatComeAtOnceAreAnsweredInOrder) {
  Running run;
  Client client(run.port());
  std::string all;
  for (int i = 1; i <= 5; ++i)
    all += http_request("POST", "/v1/completions", "X-Request-Id: id" + std::to_string(i) + "\r\n",
                        completion("\"max_tokens\":" + std::to_string(i)));
  all += http_request("GET", "/version?x=1", "", "");
  client.send(all);
  for (int i = 1; i <= 5; ++i) {
    const Answer answer = client.read_answer();
    EXPECT_EQ(answer.json()["usage"]["completion_tokens"], i);
    EXPECT_EQ(answer.headers.at("x-request-id"), "id" + std::to_string(i));
  }
  EXPECT_EQ(client.read_answer().json()["version"], "1");
}

TEST(HttpServer, AnOldClientGetsAStreamThatEndsWithTheConnection) {
  Running run;
  Connection connection(run.port());
  const std::string body = completion(R"("max_tokens":3,"stream":true)");
  connection.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string all = connection.receive_all();
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_THAT(all, HasSubstr("\r\n\r\ndata: {"));
  EXPECT_THAT(all, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST(HttpServer, BodiesMayComeInChunksAndAfterPermission) {
  Running run;
  Client client(run.port());
  const std::string body = completion(R"("max_tokens":2)");
  client.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  client.read_until("100 Continue\r\n\r\n");
  EXPECT_EQ(client.read_answer(true).status, 100);
  for (const char c : body) client.send("1\r\n" + std::string(1, c) + "\r\n");
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.read_answer().json()["choices"][0]["text"], "bc");
}

TEST(HttpServer, WhatIsNotHttpIsRefusedAndOthersAreServed) {
  Running run({.max_body_bytes = 10000, .max_header_bytes = 4096});
  struct Case {
    std::string text;
    int status;  ///< 0: the connection is closed without an answer
  };
  const std::vector<Case> cases = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"\x16\x03\x01\x02", 400},
      {"GET /health HTTP/1.1\r\nA : b\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nX: \x01\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 10001\r\n\r\n", 413},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4000\r\n" + std::string(0x4000, 'a'), 413},
      {"GET /health HTTP/1.1\r\nX: " + std::string(5000, 'a'), 431},
      {"GET /" + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n", 431},
      {"", 0},
      {"GET /hea", 0},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{", 0},
  };
  for (const Case& c : cases) {
    Connection connection(run.port());
    connection.try_send(c.text);
    connection.shutdown_send();
    const std::string answer = connection.receive_all();
    if (c.status == 0) {
      EXPECT_EQ(answer, "") << c.text.substr(0, 100);
    } else {
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(c.status))) << c.text.substr(0, 100);
      EXPECT_THAT(answer, HasSubstr("{\"error\":{\"message\":")) << c.text.substr(0, 100);
    }
    EXPECT_EQ(Client(run.port()).get("/health").status, 200);
  }
  run.expect_quiet();
}

TEST(HttpServer, ALargeBodyIsRefusedBeforeItIsSent) {
  Running run({.max_body_bytes = 1000});
  Client client(run.port());
  client.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_EQ(client.read_answer().error_code(), "body_too_large");
  Connection sender(run.port());
  sender.try_send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + std::string(1000000, 'a'));
  EXPECT_THAT(sender.receive_all(), StartsWith("HTTP/1.1 413"));
  run.expect_quiet(1);
}

TEST(HttpServer, SlowSendersAreCutOffAndIdleOnesLetGo) {
  Running run({.idle_timeout = 300ms, .body_timeout = 300ms});
  Connection idle(run.port()), slow_head(run.port()), slow_body(run.port()), endless(run.port());
  slow_head.send("GET /health HTTP/1.1\r\n");
  slow_body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  endless.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::thread trickle([&] {
    for (int i = 0; i < 20; ++i) {
      if (endless.try_send("1\r\na\r\n") == 0) break;
      std::this_thread::sleep_for(50ms);
    }
  });
  EXPECT_EQ(idle.receive_all(), "");
  EXPECT_THAT(slow_head.receive_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(slow_body.receive_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(endless.receive(), StartsWith("HTTP/1.1 408"));
  trickle.join();
}

TEST(HttpServer, AClientThatLeavesGivesUpItsAnswer) {
  Running run({}, 1000us);
  for (const bool stream : {false, true}) {
    {
      Client client(run.port());
      client.send(http_request("POST", "/v1/completions", "",
                               completion(std::string(R"("max_tokens":900,"stream":)") + (stream ? "true" : "false"))));
      if (stream) client.read_until("data: ");
      for (int i = 0; i < 500 && run.backend.running() == 0; ++i) std::this_thread::sleep_for(10ms);
      EXPECT_EQ(run.backend.running(), 1u);
    }
    run.expect_quiet();
  }
  EXPECT_EQ(run.backend.cancelled(), 2);
  EXPECT_EQ(run.service.http().disconnects.value(), 2);
}

TEST(HttpServer, AClientThatDoesNotReadIsCutOffAndOthersAreServed) {
  Running run({.write_timeout = 300ms});
  Connection deaf(run.port(), 4096);
  // Echo of a long prompt with log probabilities, many times over: more than the socket's buffers hold.
  std::string prompt = "[1";
  for (int i = 0; i < 900; ++i) prompt += ",1";
  const std::string body = "{\"echo\":true,\"logprobs\":1,\"max_tokens\":1,\"n\":64,\"prompt\":[" + prompt + "]," + prompt +
                           "]," + prompt + "]," + prompt + "]]}";
  deaf.send(http_request("POST", "/v1/completions", "", body));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Client(run.port()).post("/v1/completions", completion("\"max_tokens\":2")).status, 200);
  for (int i = 0; i < 6000 && run.service.http().disconnects.value() == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(run.service.http().disconnects.value(), 1);
  run.expect_quiet();
}

TEST(HttpServer, ManyStreamsAtOnceEachGetTheirOwn) {
  Running run({}, 100us);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<Client>(run.port()));
    const std::string prompt = std::string(1, static_cast<char>('A' + i % 26));
    clients.back()->send(
        http_request("POST", "/v1/completions", "", R"({"prompt":")" + prompt + R"(","max_tokens":30,"stream":true})"));
  }
  for (int i = 0; i < 64; ++i) {
    std::string text;
    for (const std::string& event : clients[static_cast<size_t>(i)]->read_answer().events())
      if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
    std::string expected;
    for (int k = 1; k <= 30; ++k) expected += static_cast<char>('A' + i % 26 + k);
    EXPECT_EQ(text, expected) << i;
  }
  run.expect_quiet(64);
}

TEST(HttpServer, HealthIsAnsweredWhileALongPromptIsRead) {
  Running run;
  Client big(run.port()), small(run.port());
  std::string prompt = "[1";
  const int ids = std::getenv("WEFT_FULL") != nullptr ? 15'000'000 : 3'000'000;  // 30 MB, 6 MB
  for (int i = 0; i < ids; ++i) prompt += ",1";
  big.send(http_request("POST", "/v1/completions", "", "{\"prompt\":" + prompt + "]}"));
  int polls = 0;
  Answer answer;
  std::atomic<bool> answered{false};
  std::thread reader([&] {
    answer = big.read_answer();
    answered = true;
  });
  auto longest = 0ms;
  for (; !answered && polls < 1000; ++polls) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(small.get("/health").status, 200);
    EXPECT_EQ(small.post("/v1/completions", completion("\"max_tokens\":1")).status, 200);
    longest =
        std::max(longest, std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began));
  }
  reader.join();
  EXPECT_EQ(answer.error_code(), "context_length_exceeded");
  RecordProperty("longest_ms", static_cast<int>(longest.count()));
}

TEST(HttpServer, IdsOfClientsAreBoundedAndCannotBreakAHeader) {
  Running run;
  Client client(run.port());
  EXPECT_EQ(client.get("/health", "X-Request-Id: a b\tc\r\n").headers.at("x-request-id"), "a_b_c");
  EXPECT_EQ(client.get("/health", "X-Request-Id: " + std::string(10000, 'x') + "\r\n").headers.at("x-request-id"),
            std::string(128, 'x'));
  // Two at once under one name do not get in each other's way.
  Client other(run.port());
  const std::string request =
      http_request("POST", "/v1/completions", "X-Request-Id: a\r\n", completion("\"max_tokens\":100,\"stream\":true"));
  client.send(request);
  other.send(request);
  const auto id = [](const Answer& answer) { return json::parse(answer.events().front())["id"]; };
  EXPECT_NE(id(client.read_answer()), id(other.read_answer()));
}

TEST(HttpServer, EveryAnswerHasAnIdAndPassesTheTraceOn) {
  Running run;
  Client client(run.port());
  const std::string first = client.get("/health").headers.at("x-request-id"),
                    second = client.get("/nothing").headers.at("x-request-id");
  EXPECT_FALSE(first.empty());
  EXPECT_NE(first, second);
  const Answer completion = client.post("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  EXPECT_EQ(completion.headers.at("x-request-id"), completion.json()["id"]);
  EXPECT_FALSE(completion.headers.contains("traceparent"));
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", parent = "00f067aa0ba902b7";
  const std::string header = "traceparent: 00-" + trace + "-" + parent + "-01\r\n";
  for (const std::string path : {"/health", "/v1/models", "/nothing"}) {
    const std::string passed = client.get(path, header).headers.at("traceparent");
    EXPECT_EQ(passed.substr(0, 36), "00-" + trace + "-");
    EXPECT_NE(passed.substr(36, 16), parent) << "a span of our own";
    EXPECT_EQ(passed.substr(52), "-01");
  }
  EXPECT_FALSE(client.get("/health", "traceparent: 00-" + trace + "-" + parent + "-0\r\n").headers.contains("traceparent"));
  EXPECT_FALSE(client.get("/health", header + header).headers.contains("traceparent")) << "there may be one";
}

TEST(HttpServer, AnAbortFromElsewhereEndsAStreamInOrder) {
  Running run({}, 20'000us);
  Client stream(run.port()), other(run.port());
  stream.send(
      http_request("POST", "/v1/completions", "X-Request-Id: long\r\n", completion(R"("max_tokens":900,"stream":true)")));
  stream.read_until("data: ");
  EXPECT_EQ(other.post("/abort_request", R"({"rid":"long"})").json()["aborted"], 1);
  const Answer answer = stream.read_answer();
  EXPECT_EQ(answer.events().back(), "[DONE]");
  EXPECT_EQ(json::parse(answer.events().at(answer.events().size() - 2))["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(stream.get("/health").status, 200) << "the connection goes on";
  EXPECT_EQ(other.post("/abort_request", R"({"rid":"long"})").json()["aborted"], 0);
  run.expect_quiet(2);
}

TEST(HttpServer, HealthGenerateMakesAToken) {
  Running run;
  Client client(run.port());
  EXPECT_EQ(client.get("/health_generate").status, 200);
  EXPECT_EQ(run.backend.last().max_tokens, 1);
  const Answer head = client.request("HEAD", "/health_generate", "", "");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(client.post("/health_generate", "").status, 405);
  run.backend.fail("broken");
  EXPECT_EQ(Client(run.port()).get("/health_generate").status, 503);
}

TEST(HttpServer, EveryRouteTellsItsMethods) {
  Running run;
  Client client(run.port());
  for (const std::string path : {"/health", "/ready", "/v1/models", "/metrics", "/version", "/v1/load", "/server_info"}) {
    const Answer whole = client.get(path), head = client.request("HEAD", path, "", ""),
                 options = client.request("OPTIONS", path, "", "");
    EXPECT_EQ(head.status, whole.status) << path;
    EXPECT_EQ(head.headers.at("content-type"), whole.headers.at("content-type")) << path;
    EXPECT_EQ(options.status, 204);
    EXPECT_EQ(options.headers.at("allow"), "GET, HEAD, OPTIONS") << path;
  }
  for (const std::string path :
       {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template", "/abort_request"}) {
    EXPECT_EQ(client.request("OPTIONS", path, "", "").headers.at("allow"), "POST, OPTIONS") << path;
    const Answer head = client.request("HEAD", path, "", "");
    EXPECT_EQ(head.status, 405) << path;
    EXPECT_EQ(head.headers.at("allow"), "POST, OPTIONS") << path;
  }
}

TEST(HttpServer, ListensOnAUnixSocketAndLeavesNoneBehind) {
  const std::string path = ::testing::TempDir() + "weft_" + std::to_string(::getpid()) + ".sock";
  {
    Running run({.unix_socket = path});
    EXPECT_EQ(run.server.address(), "unix:" + path);
    Client client(std::make_unique<Connection>(path));
    EXPECT_EQ(client.get("/health").status, 200);
    EXPECT_EQ(client.post("/v1/completions", completion(R"("max_tokens":3,"stream":true)")).events().back(), "[DONE]");
    EXPECT_THROW(Running({.unix_socket = path}), SystemError) << "somebody listens there";
    EXPECT_EQ(client.get("/health").status, 200);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  // What a killed server leaves is no hindrance; a file that is no socket stays.
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(left);
  {
    Running run({.unix_socket = path});
    EXPECT_EQ(Client(std::make_unique<Connection>(path)).get("/health").status, 200);
  }
  std::ofstream(path) << "mine";
  EXPECT_THROW(Running({.unix_socket = path}), SystemError);
  EXPECT_EQ(std::filesystem::file_size(path), 4u);
  std::filesystem::remove(path);
  EXPECT_THROW(Running({.unix_socket = std::string(200, 'x')}), UserError);
}

TEST(HttpServer, ConnectionsBeyondTheBoundAreToldSo) {
  Running run({.max_connections = 2});
  Client a(run.port()), b(run.port());
  EXPECT_EQ(a.get("/health").status, 200);
  EXPECT_EQ(b.get("/health").status, 200);
  Client c(run.port());
  EXPECT_EQ(c.read_answer().error_code(), "too_many_connections");
  EXPECT_EQ(a.get("/health").status, 200);
}

TEST(HttpServer, DrainingFinishesWhatRunsAndTakesNoMore) {
  Running run({.shutdown_timeout = 60'000ms}, 1000us);
  Client stream(run.port()), other(run.port());
  stream.send(http_request("POST", "/v1/completions", "", completion(R"("max_tokens":150,"stream":true)")));
  stream.read_until("data: ");
  EXPECT_EQ(other.get("/ready").status, 200);
  run.server.drain();
  for (int i = 0; i < 100 && other.get("/ready").status == 200; ++i) std::this_thread::sleep_for(5ms);
  Client late(run.port());
  const Answer refused = late.post("/v1/completions", completion(""));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(Client(run.port()).get("/health").status, 200);
  const Answer answer = stream.read_answer();
  EXPECT_EQ(answer.events().back(), "[DONE]");
  run.join();
}

TEST(HttpServer, WhatDoesNotFinishInTimeEndsWithAnErrorEvent) {
  Running run({.shutdown_timeout = 100ms}, 5000us);
  Client stream(run.port()), plain(run.port());
  stream.send(http_request("POST", "/v1/completions", "", completion(R"("max_tokens":900,"stream":true)")));
  plain.send(http_request("POST", "/v1/completions", "", completion(R"("max_tokens":900)")));
  stream.read_until("data: ");
  for (int i = 0; i < 500 && run.backend.running() < 2; ++i) std::this_thread::sleep_for(10ms);
  run.server.drain();
  EXPECT_EQ(json::parse(stream.read_answer().events().back())["error"]["code"], "shutting_down");
  EXPECT_EQ(plain.read_answer().status, 503);
  run.join();
}

TEST(HttpServer, AFailedEngineEndsStreamsAndTheServer) {
  Running run({}, 1000us);
  Client stream(run.port());
  stream.send(http_request("POST", "/v1/completions", "", completion(R"("max_tokens":900,"stream":true)")));
  stream.read_until("data: ");
  run.backend.fail("rank 1: out of memory");
  EXPECT_THAT(stream.read_answer().events().back(), HasSubstr("rank 1: out of memory"));
  run.join();
  EXPECT_EQ(run.service.failure(), "rank 1: out of memory");
}

TEST(HttpServer, BeforeTheModelIsLoadedItIsAliveButNotReady) {
  Running run({}, 0us, false);
  Client client(run.port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/ready").status, 503);
  EXPECT_EQ(client.post("/v1/completions", completion("")).status, 503);
  run.service.open(run.backend, nullptr);
  EXPECT_EQ(client.get("/ready").status, 200);
}

TEST(HttpServer, AnAddressThatCannotBeHadIsAnError) {
  Wake wake;
  Service service({.model_names = {"m"}, .api_keys = {}, .allowed_origins = {}, .version = "1"});
  EXPECT_THROW(HttpServer({.host = "example.com"}, service, wake), UserError);
  const HttpServer first({.port = 0}, service, wake);
  EXPECT_THROW(HttpServer({.port = first.port()}, service, wake), SystemError);
}

}  // namespace
}  // namespace weft
