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
                           "/v1/load", "/load", "/server_info", "/get_server_info"}) {
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
  for (const char* path :
       {"/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/load_lora_adapter", "/v1/audio/transcriptions"}) {
    const auto missing = service.answer(head("POST", path));
    EXPECT_EQ(missing->status, 501) << path;
    EXPECT_THAT(json::parse(missing->body)["error"]["message"].get<std::string>(), HasSubstr(path));
    EXPECT_EQ(json::parse(missing->body)["error"]["code"], "not_supported");
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

}  // namespace
}  // namespace weft
