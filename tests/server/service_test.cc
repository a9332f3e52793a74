#include "server/service.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "server/fake_backend.h"

namespace weft {
namespace {

using nlohmann::json;
using test::FakeBackend;
using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  static Service::Config config() {
    return {.model_names = {"m", "alias"}, .api_keys = {}, .allowed_origins = {}, .version = "1.2.3"};
  }
  static HttpHead head(const std::string& method, const std::string& path, const std::string& key = "") {
    HttpHead out;
    out.method = method;
    out.path = path;
    out.authorization = key;
    return out;
  }
  FakeBackend backend_{{}, true};
};

TEST_F(ServiceTest, SaysWhatStateItIsIn) {
  Service service(config());
  const auto status = [&](const char* path) { return service.answer(head("GET", path))->status; };
  EXPECT_EQ(status("/health"), 200);
  EXPECT_EQ(status("/ready"), 503);
  EXPECT_EQ(status("/v1/models"), 503);
  EXPECT_EQ(service.answer(head("POST", "/v1/completions"))->status, 503);
  service.open(backend_, nullptr);
  EXPECT_EQ(status("/ready"), 200);
  EXPECT_FALSE(service.answer(head("POST", "/v1/completions")));
  service.begin_drain();
  EXPECT_EQ(status("/health"), 200);
  EXPECT_EQ(status("/ready"), 503);
  EXPECT_EQ(service.answer(head("POST", "/v1/completions"))->status, 503);
  backend_.fail("broken");
  EXPECT_EQ(status("/health"), 503);
  EXPECT_EQ(service.failure(), "broken");
}

TEST_F(ServiceTest, EverythingButHealthNeedsTheKey) {
  Service::Config with_keys = config();
  with_keys.api_keys = {"first", "second"};
  Service service(with_keys);
  service.open(backend_, nullptr);
  for (const char* path : {"/v1/models", "//v1/models", "/V1/models", "/v1/models/", "/v1/completions", "/metrics", "/version",
                           "/v1/load", "/server_info", "/nothing", "/v1/chat/completions", "/health/", "/HEALTH", ""}) {
    for (const char* key : {"", "first", "Bearer", "Bearer ", "Bearer firs", "Bearer firstx", "Bearer First", "Basic first"}) {
      for (const char* method : {"GET", "POST", "HEAD", "OPTIONS", "PUT"}) {
        const auto answer = service.answer(head(method, path, key));
        ASSERT_TRUE(answer) << method << path << key;
        EXPECT_EQ(answer->status, 401) << method << path << key;
        EXPECT_EQ(json::parse(answer->body)["error"]["code"], "invalid_api_key");
      }
    }
  }
  EXPECT_EQ(service.answer(head("GET", "/health"))->status, 200);
  EXPECT_EQ(service.answer(head("GET", "/ready"))->status, 200);
  EXPECT_EQ(service.answer(head("GET", "/v1/models", "Bearer second"))->status, 200);
  EXPECT_EQ(service.answer(head("GET", "/v1/models", "bEARER second"))->status, 200) << "schemes are of any case";
  EXPECT_EQ(service.answer(head("GET", "//v1/models", "Bearer second"))->status, 404);
  with_keys.open_metrics = true;
  Service open(with_keys);
  EXPECT_EQ(open.answer(head("GET", "/metrics"))->status, 200);
}

TEST_F(ServiceTest, EveryRouteIsCountedByItsName) {
  for (const char* path : {"/health", "/ready", "/v1/models", "/v1/models/x", "/v1/completions", "/v1/chat/completions",
                           "/tokenize", "/detokenize", "/apply-template", "/reset_prefix_cache", "/metrics", "/version",
                           "/v1/load", "/load", "/server_info", "/get_server_info", "/health_generate", "/abort_request"}) {
    const auto& routes = HttpMetrics::kRoutes;
    EXPECT_NE(std::find(routes.begin(), routes.end(), Service::route(path)), routes.end()) << path;
    EXPECT_NE(Service::route(path), "other") << path;
  }
}

TEST_F(ServiceTest, WrongMethodsAndPathsAreToldInOpenAisShape) {
  Service service(config());
  service.open(backend_, nullptr);
  const auto wrong = service.answer(head("GET", "/v1/completions"));
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->headers.at(0).second, "POST, OPTIONS");
  EXPECT_EQ(service.answer(head("POST", "/health"))->status, 405);
  EXPECT_EQ(service.answer(head("DELETE", "/v1/completions"))->status, 405);
  EXPECT_EQ(service.answer(head("OPTIONS", "/health"))->status, 204);
  EXPECT_EQ(service.answer(head("GET", "/nothing"))->status, 404);
  for (const char* path : {"/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/load_lora_adapter",
                           "/v1/audio/transcriptions", "/rerank", "/infill", "/sleep", "/generate", "/invocations",
                           "/v1/responses/resp_1/cancel", "/v1/messages/count_tokens"}) {
    for (const char* method : {"GET", "POST", "DELETE"}) {
      const auto missing = service.answer(head(method, path));
      EXPECT_EQ(missing->status, 501) << path;
      EXPECT_THAT(path, ::testing::StartsWith(json::parse(missing->body)["error"]["message"].get<std::string>().substr(
                            0, json::parse(missing->body)["error"]["message"].get<std::string>().find(' '))));
      EXPECT_EQ(json::parse(missing->body)["error"]["code"], "not_supported");
    }
  }
}

TEST_F(ServiceTest, BrowsersMayAskFromTheOriginsThatAreAllowed) {
  Service::Config some = config();
  some.allowed_origins = {"https://a.example"};
  Service service(some);
  HttpHead ask = head("OPTIONS", "/v1/completions");
  ask.origin = "https://a.example";
  ask.preflight_method = "POST";
  ask.preflight_headers = "authorization, x-stainless-os";
  const auto answer = service.answer(ask);
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(answer->headers.back().second, "authorization, x-stainless-os");
  EXPECT_EQ(service.cors(ask).at(0).second, "https://a.example");
  ask.origin = "https://b.example";
  EXPECT_TRUE(service.cors(ask).empty());
  some.allowed_origins = {"*"};
  EXPECT_EQ(Service(some).cors(ask).at(0).second, "*");
  ask.preflight_headers = "x\r\nSet-Cookie: a";
  const auto forged = service.answer(ask);
  for (const auto& [name, value] : forged->headers) EXPECT_EQ(value.find('\n'), std::string::npos);
}

TEST_F(ServiceTest, ModelsTellTheCapacityAndOnlyTheirNamesAreTaken) {
  Service service(config());
  service.open(backend_, nullptr);
  const json models = json::parse(service.answer(head("GET", "/v1/models"))->body);
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][1]["id"], "alias");
  EXPECT_EQ(models["data"][0]["max_model_len"], FakeBackend::kMaxLen);
  EXPECT_EQ(models["data"][0]["kv_capacity_tokens"], 2048);
  EXPECT_EQ(json::parse(service.answer(head("GET", "/v1/models/alias"))->body)["id"], "alias");
  EXPECT_EQ(service.answer(head("GET", "/v1/models/other"))->status, 404);
  const auto refused = service.handle(head("POST", "/v1/completions"), R"({"model":"other","prompt":[1]})");
  EXPECT_EQ(refused.now.status, 404);
  EXPECT_EQ(json::parse(refused.now.body)["error"]["code"], "model_not_found");
  EXPECT_NE(service.handle(head("POST", "/v1/completions"), R"({"model":"alias","prompt":[1]})").later, nullptr);
  EXPECT_EQ(service.handle(head("POST", "/v1/completions"), "{").now.status, 400);
}

TEST_F(ServiceTest, AFullQueueSaysWhenToTryAgain) {
  Service service(config());
  service.open(backend_, nullptr);
  backend_.set_queue_bound(0);
  const auto refused = service.handle(head("POST", "/v1/completions"), R"({"prompt":[1]})");
  EXPECT_EQ(refused.now.status, 429);
  ASSERT_EQ(refused.now.headers.size(), 1u);
  EXPECT_EQ(refused.now.headers[0].first, "Retry-After");
  EXPECT_GE(std::stoi(refused.now.headers[0].second), 1);
}

TEST_F(ServiceTest, WhenToTryAgainIsWhatTheQueueTakesAtThePaceSoFar) {
  Service service(config());
  service.open(backend_, nullptr);
  backend_.set_queue_bound(0);
  EngineMetrics& metrics = backend_.edit_metrics();
  metrics.waiting.set(30);
  auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  const auto seconds = [&] {
    const auto refused = service.handle(head("POST", "/v1/completions"), R"({"prompt":[1]})");
    return refused.now.headers.at(0).second;
  };
  const auto pass = [&](int ticks, int ended_in_each) {
    for (int i = 0; i < ticks; ++i) {
      service.tick(now += std::chrono::milliseconds(100));
      metrics.finished_length.add(ended_in_each);
    }
  };
  pass(201, 1);  // Ten a second, so thirty in three seconds.
  EXPECT_EQ(seconds(), "3");
  metrics.waiting.set(101);
  EXPECT_EQ(seconds(), "11");
  pass(600, 0);  // None any more: one in the half minute of memory, as if it were just about to come.
  EXPECT_EQ(seconds(), "300") << "at most five minutes";
  metrics.waiting.set(2);
  EXPECT_NEAR(std::stoi(seconds()), 61, 2) << "as much as a minute for two";
}

TEST_F(ServiceTest, WhileItLoadsItSaysHowMuchLongerThatTakes) {
  Service service(config());
  const auto wait = [&] {
    const auto answer = service.answer(head("POST", "/v1/completions"));
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(json::parse(answer->body)["error"]["code"], "loading");
    return std::stoi(answer->headers.at(0).second);
  };
  EXPECT_EQ(wait(), 5) << "nothing is known yet";
  // A quarter in ten seconds; of those hardly any has passed on the clock that answers.
  service.loaded(0.25, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  EXPECT_NEAR(wait(), 40, 2);
  EXPECT_EQ(json::parse(service.answer(head("GET", "/ready"))->body)["status"], "loading");
}

TEST_F(ServiceTest, ARequestIsAbortedByItsIdOrTheClientsButOnlyByWhoMayDoSo) {
  Service::Config with_keys = config();
  with_keys.api_keys = {"one", "two"};
  with_keys.admin_keys = {"root"};
  Service service(with_keys);
  service.open(backend_, nullptr);
  const auto submit = [&](const char* more = "") {
    HttpHead ask = head("POST", "/v1/completions", "Bearer one");
    ask.request_id = "mine";
    auto reply = service.handle(ask, std::string(R"({"prompt":[1],"max_tokens":100)") + more + "}");
    EXPECT_NE(reply.later, nullptr) << reply.now.body;
    return std::move(reply.later);
  };
  const auto aborted = [&](const std::string& body, const std::string& key) {
    const auto reply = service.handle(head("POST", "/abort_request", key), body);
    return reply.now.status == 200 ? json::parse(reply.now.body)["aborted"].get<int>() : -reply.now.status;
  };
  auto first = submit(), second = submit(R"(,"rid":"third name")");
  EXPECT_EQ(aborted(R"({"rid":"mine"})", "Bearer two"), 0) << "another key's";
  EXPECT_EQ(aborted(R"({"rid":"unknown"})", "Bearer one"), 0);
  EXPECT_EQ(aborted(R"({"rid":"third name"})", "bearer one"), 1);
  EXPECT_EQ(json::parse(second->step())["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(aborted("{\"rid\":\"" + first->id() + "\"}", "Bearer root"), 1);
  EXPECT_EQ(json::parse(first->step())["choices"][0]["finish_reason"], "abort");
  first.reset();
  second.reset();
  EXPECT_EQ(aborted(R"({"rid":"mine"})", "Bearer one"), 0) << "over";
  auto third = submit(), fourth = submit();
  EXPECT_EQ(aborted(R"({"abort_all":true})", "Bearer one"), -401);
  EXPECT_EQ(aborted(R"({"abort_all":true})", "Bearer root"), 2);
  EXPECT_EQ(backend_.running(), 0u);
  for (const char* body : {"{}", R"({"rid":5})", R"({"rid":[1]})", R"({"abort_all":"yes"})", "", "[]"})
    EXPECT_EQ(aborted(body, "Bearer one"), -400) << body;
  Service open(config());
  open.open(backend_, nullptr);
  EXPECT_EQ(open.handle(head("POST", "/abort_request"), R"({"abort_all":true})").now.status, 403);
}

TEST_F(ServiceTest, ATokenIsMadeToSeeWhetherTokensCome) {
  Service service(config());
  service.open(backend_, nullptr);
  EXPECT_FALSE(service.answer(head("GET", "/health_generate"))) << "it takes a while";
  auto reply = service.handle(head("GET", "/health_generate"), "");
  ASSERT_NE(reply.later, nullptr);
  EXPECT_EQ(backend_.last().max_tokens, 1);
  EXPECT_EQ(backend_.last().timeout_us, 20'000'000);
  backend_.step();
  ASSERT_TRUE(reply.later->ready());
  EXPECT_EQ(json::parse(reply.later->step())["usage"]["completion_tokens"], 1);
  service.begin_drain();
  EXPECT_EQ(service.answer(head("GET", "/health_generate"))->status, 503);
}

TEST_F(ServiceTest, ARequestMayAskForLessTimeThanTheServerGivesButNotForMore) {
  Service::Config limited = config();
  limited.request_timeout = std::chrono::seconds(10);
  Service service(limited);
  service.open(backend_, nullptr);
  const auto given = [&](const std::string& field) {
    const auto reply = service.handle(head("POST", "/v1/completions"), R"({"prompt":[1])" + field + "}");
    EXPECT_NE(reply.later, nullptr);
    return backend_.last().timeout_us;
  };
  EXPECT_EQ(given(""), 10'000'000);
  EXPECT_EQ(given(R"(,"timeout":3)"), 3'000'000);
  EXPECT_EQ(given(R"(,"timeout":30)"), 10'000'000);
}

TEST_F(ServiceTest, UnknownFieldsAreRefusedWhereThatIsWanted) {
  const std::string body = R"({"prompt":[1],"temprature":0})";
  Service lenient(config());
  lenient.open(backend_, nullptr);
  EXPECT_NE(lenient.handle(head("POST", "/v1/completions"), body).later, nullptr);
  Service::Config strict = config();
  strict.strict_fields = true;
  Service service(strict);
  service.open(backend_, nullptr);
  const auto refused = service.handle(head("POST", "/v1/completions"), body);
  EXPECT_EQ(refused.now.status, 400);
  EXPECT_EQ(json::parse(refused.now.body)["error"]["param"], "temprature");
}

TEST_F(ServiceTest, BodiesAreNestedAsDeepAsTheConfigSays) {
  Service::Config shallow = config();
  shallow.max_json_depth = 4;
  Service service(shallow);
  service.open(backend_, nullptr);
  const auto status = [&](int depth) {
    const std::string body = R"({"prompt":[1],"metadata":)" + std::string(static_cast<size_t>(depth), '[') +
                             std::string(static_cast<size_t>(depth), ']') + "}";
    const auto reply = service.handle(head("POST", "/v1/completions"), body);
    return reply.later == nullptr ? reply.now.status : 200;
  };
  EXPECT_EQ(status(3), 200);
  EXPECT_EQ(status(4), 400);
}

TEST_F(ServiceTest, WhichRequestsGetALineInTheLog) {
  Service service(config());
  EXPECT_TRUE(service.logs("/v1/completions", 200));
  EXPECT_FALSE(service.logs("/health", 200));
  EXPECT_FALSE(service.logs("/metrics", 200));
  EXPECT_TRUE(service.logs("/health", 503)) << "what is not well is told";
  Service::Config quiet = config();
  quiet.quiet_routes = {"/v1/models"};
  EXPECT_TRUE(Service(quiet).logs("/health", 200));
  EXPECT_FALSE(Service(quiet).logs("/v1/models/x", 200));
  quiet.log_requests = false;
  EXPECT_FALSE(Service(quiet).logs("/v1/completions", 500));
}

}  // namespace
}  // namespace weft
