// The same server by TLS.

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/http_server.h"
#include "server/running_server.h"
#include "server/tls_client.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using test::Certificate;
using test::Client;
using test::Connection;
using test::http_request;
using test::Running;
using test::TlsConnection;
using ::testing::HasSubstr;
using Clients = TlsConfig::Clients;

class HttpTls : public ::testing::Test {
 protected:
  HttpTls() { std::filesystem::create_directories(folder_); }
  ~HttpTls() override { std::filesystem::remove_all(folder_); }
  HttpConfig config(Clients clients = Clients::any) const {
    HttpConfig out;
    out.tls = {.certificate_file = server_.file,
               .key_file = server_.key_file,
               .ca_file = clients == Clients::any ? "" : authority_.file,
               .clients = clients};
    return out;
  }
  std::unique_ptr<TlsConnection> connect(const Running& run, const Certificate* own = nullptr) const {
    return std::make_unique<TlsConnection>(run.port(), authority_.file, own);
  }
  static std::string refusal(const TlsConfig& tls) {
    try {
      make_tls(tls);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  const std::filesystem::path folder_ = ::testing::TempDir() + "weft_tls_" + std::to_string(::getpid());
  const bool made_ = std::filesystem::create_directories(folder_);
  const Certificate authority_ = test::write_certificate(folder_, "authority"),
                    server_ = test::write_certificate(folder_, "server", &authority_),
                    client_ = test::write_certificate(folder_, "client", &authority_),
                    stranger_ = test::write_certificate(folder_, "stranger");
};

TEST_F(HttpTls, OneConnectionTakesRequestsOfAllKinds) {
  Running run(config());
  EXPECT_THAT(run.server.address(), ::testing::StartsWith("https://127.0.0.1:"));
  auto connection = connect(run);
  EXPECT_EQ(connection->protocol(), "http/1.1") << "of what the client offers";
  Client client(std::move(connection));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.get("/health").status, 200);
    EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a","max_tokens":4})").json()["choices"][0]["text"], "bcde");
    EXPECT_EQ(client.post("/v1/completions", R"({"prompt":"a","max_tokens":40,"stream":true})").events().back(), "[DONE]");
    EXPECT_EQ(client.post("/v1/completions", "{").status, 400);
    client.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(client.read_answer(true).status, 100);
    client.send("18\r\n{\"prompt\":[1],\"n\":2}    \r\n0\r\n\r\n");
    EXPECT_EQ(client.read_answer().json()["choices"].size(), 2u);
  }
  run.expect_quiet(1);
}

TEST_F(HttpTls, LongBodiesAndAnswersAreWhole) {
  Running run(config());
  Client client(connect(run));
  const std::string text(300'000, 'x');
  const auto answer = client.post("/tokenize", "{\"prompt\":\"" + text + "\"}");
  EXPECT_EQ(answer.json()["count"], text.size());
}

TEST_F(HttpTls, RequestsThatComeAtOnceAreAnsweredInOrder) {
  Running run(config());
  Client client(connect(run));
  std::string all;
  for (int i = 1; i <= 5; ++i)
    all += http_request("POST", "/v1/completions", "", R"({"prompt":"a","max_tokens":)" + std::to_string(i) + "}");
  client.send(all);
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(client.read_answer().json()["usage"]["completion_tokens"], i);
}

TEST_F(HttpTls, AnAnswerThatEndsTheConnectionEndsItByTls) {
  Running run(config());
  auto connection = connect(run);
  TlsConnection& tls = *connection;
  const std::string body = R"({"prompt":"a","max_tokens":3,"stream":true})";
  tls.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_THAT(tls.receive_all(), ::testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_TRUE(tls.ended_well());
  auto refused = connect(run);
  refused->send("nonsense\r\n\r\n");
  EXPECT_THAT(refused->receive_all(), HasSubstr("400 Bad Request"));
  EXPECT_TRUE(refused->ended_well());
  run.expect_quiet();
}

TEST_F(HttpTls, AClientThatLeavesGivesUpItsAnswer) {
  Running run(config(), 2000us);
  {
    Client client(connect(run));
    client.send(http_request("POST", "/v1/completions", "", R"({"prompt":"a","max_tokens":900,"stream":true})"));
    client.read_until("data: ");
  }
  run.expect_quiet();
  EXPECT_EQ(run.backend.cancelled(), 1);
}

TEST_F(HttpTls, WhatIsNotTlsIsDroppedAndOthersAreServed) {
  HttpConfig impatient = config();
  impatient.idle_timeout = 300ms;
  Running run(impatient);
  Connection silent(run.port()), plain(run.port()), half(run.port());
  plain.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_THAT(plain.receive_all(), ::testing::Not(HasSubstr("HTTP")));
  half.send("\x16\x03\x01\x02");
  EXPECT_EQ(Client(connect(run)).get("/health").status, 200);
  EXPECT_EQ(silent.receive_all(), "") << "after a while";
  half.receive_all();
  EXPECT_THROW(TlsConnection(run.port(), authority_.file, nullptr, TLS1_1_VERSION), std::runtime_error);
  EXPECT_THROW(TlsConnection(run.port(), stranger_.file), std::runtime_error) << "the client does not trust it";
  run.expect_quiet();
}

TEST_F(HttpTls, CertificatesOfClientsAreAskedForAsTheConfigSays) {
  // With TLS 1.3 a client learns that it is refused when it reads.
  const auto status = [&](const Running& run, const Certificate* own) {
    try {
      return Client(connect(run, own)).get("/health").status;
    } catch (const std::runtime_error&) {
      return 0;
    }
  };
  Running needed(config(Clients::must_show));
  EXPECT_EQ(status(needed, &client_), 200);
  EXPECT_EQ(status(needed, &stranger_), 0);
  EXPECT_EQ(status(needed, nullptr), 0);
  Running welcome(config(Clients::may_show));
  EXPECT_EQ(status(welcome, &client_), 200);
  EXPECT_EQ(status(welcome, &stranger_), 0);
  EXPECT_EQ(status(welcome, nullptr), 200);
}

TEST_F(HttpTls, FilesThatDoNotServeAreRefusedByTheFlagsName) {
  EXPECT_EQ(make_tls({}), nullptr);
  EXPECT_NE(make_tls({.certificate_file = server_.file, .key_file = server_.key_file}), nullptr);
  const std::string both = folder_ / "both.pem", empty = folder_ / "empty";
  std::ofstream(both) << std::ifstream(server_.file).rdbuf() << std::ifstream(server_.key_file).rdbuf();
  std::ofstream{empty};
  EXPECT_NE(make_tls({.certificate_file = both}), nullptr) << "the key may be in it";
  EXPECT_THAT(refusal({.certificate_file = "/nowhere"}), HasSubstr("--ssl-certfile must name a file"));
  EXPECT_THAT(refusal({.certificate_file = empty}), HasSubstr("--ssl-certfile must name a file"));
  EXPECT_THAT(refusal({.certificate_file = server_.file}), HasSubstr("--ssl-keyfile must name a file"));
  EXPECT_THAT(refusal({.certificate_file = server_.file, .key_file = client_.key_file}), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(refusal({.certificate_file = both, .ca_file = empty}), HasSubstr("--ssl-ca-certs must name a file"));
  EXPECT_THAT(refusal({.certificate_file = both, .clients = Clients::must_show}), HasSubstr("needs --ssl-ca-certs"));
  EXPECT_THAT(refusal({.key_file = server_.key_file}), HasSubstr("need --ssl-certfile"));
}

}  // namespace
}  // namespace weft
