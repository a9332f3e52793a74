#include "server/metrics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/fake_backend.h"
#include "server/prometheus_text.h"
#include "server/service.h"
#include "support/prop.h"

namespace weft {
namespace {

using nlohmann::json;
using test::FakeBackend;
using test::for_each_case;
using test::Gen;
using test::PrometheusText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

class MetricsTest : public ::testing::Test {
 protected:
  static Service::Config config() {
    return {.model_names = {"m\"1\\"}, .api_keys = {}, .allowed_origins = {}, .version = "1.2.3"};
  }
  static HttpHead head(const std::string& method, const std::string& path) {
    HttpHead out;
    out.method = method;
    out.path = path;
    return out;
  }
  PrometheusText metrics() { return PrometheusText(service_.answer(head("GET", "/metrics"))->body); }
  Service::Reply complete(const std::string& body) { return service_.handle(head("POST", "/v1/completions"), body); }

  FakeBackend backend_{{}, true};
  Service service_{config()};
};

TEST_F(MetricsTest, HaveTheNamesAndLabelsThatDashboardsOfVllmRead) {
  service_.open(backend_, nullptr);
  const PrometheusText text = metrics();
  std::vector<std::string> names = {
      "vllm:num_requests_running",      "vllm:num_requests_waiting",       "vllm:kv_cache_usage_perc",
      "vllm:gpu_cache_usage_perc",      "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
      "vllm:prompt_tokens_total",       "vllm:generation_tokens_total",    "vllm:request_success_total",
      "vllm:num_preemptions_total",     "vllm:cache_config_info",          "vllm:prompt_tokens_by_source_total",
      "vllm:prompt_tokens_cached_total"};
  for (const char* histogram :
       {"time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
        "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
        "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
        "request_prefill_kv_computed_tokens", "request_params_max_tokens", "request_params_n", "iteration_tokens_total"})
    for (const char* part : {"_bucket", "_sum", "_count"}) names.push_back(std::string("vllm:") + histogram + part);
  EXPECT_THAT(text.names(), IsSupersetOf(names));
  for (const auto& [name, family] : text.families()) {
    if (!name.starts_with("vllm:")) continue;
    for (const PrometheusText::Sample& sample : family.samples) {
      EXPECT_EQ(sample.labels.at("model_name"), "m\"1\\") << name;
      EXPECT_EQ(sample.labels.at("engine"), "0") << name;
    }
  }
  for (const char* reason : {"stop", "length", "abort", "error"})
    EXPECT_EQ(text.value("vllm:request_success_total", {{"finished_reason", reason}}), 0);
  for (const char* source : {"local_compute", "local_cache_hit"})
    EXPECT_EQ(text.value("vllm:prompt_tokens_by_source_total", {{"source", source}}), 0);
}

TEST_F(MetricsTest, HaveTheBoundsOfVllm) {
  service_.open(backend_, nullptr);
  const PrometheusText text = metrics();
  EXPECT_THAT(text.bounds("vllm:time_to_first_token_seconds"),
              ElementsAre("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1", "2.5",
                          "5", "7.5", "10", "20", "40", "80", "160", "640", "2560", "+Inf"));
  for (const char* name :
       {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"})
    EXPECT_THAT(text.bounds(name), ElementsAre("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5",
                                               "0.75", "1", "2.5", "5", "7.5", "10", "20", "40", "80", "+Inf"));
  for (const char* name :
       {"vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds"})
    EXPECT_THAT(text.bounds(name), ElementsAre("0.3", "0.5", "0.8", "1", "1.5", "2", "2.5", "5", "10", "15", "20", "30", "40",
                                               "50", "60", "120", "240", "480", "960", "1920", "7680", "+Inf"));
  ASSERT_EQ(FakeBackend::kMaxLen, 1000);
  for (const char* name : {"vllm:request_prompt_tokens", "vllm:request_params_max_tokens",
                           "vllm:request_max_num_generation_tokens", "vllm:request_prefill_kv_computed_tokens"})
    EXPECT_THAT(text.bounds(name), ElementsAre("1", "2", "5", "10", "20", "50", "100", "200", "500", "1000", "+Inf"));
  EXPECT_THAT(text.bounds("vllm:request_params_n"), ElementsAre("1", "2", "5", "10", "20", "+Inf"));
  EXPECT_THAT(text.bounds("vllm:iteration_tokens_total"),
              ElementsAre("1", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "+Inf"));
}

TEST_F(MetricsTest, TellTheCapacityInVirtualBlocks) {
  service_.open(backend_, nullptr);
  const PrometheusText text = metrics();
  const PrometheusText::Labels labels = text.families().at("vllm:cache_config_info").samples.at(0).labels;
  EXPECT_EQ(std::stoll(labels.at("block_size")) * std::stoll(labels.at("num_gpu_blocks")), 2048);
  EXPECT_EQ(text.value("weft_kv_capacity_tokens"), 2048);
  EXPECT_EQ(text.value("weft_kv_blocks"), 64);
}

TEST_F(MetricsTest, AreThereBeforeTheModelIs) {
  const PrometheusText before = metrics();
  EXPECT_EQ(before.value("weft_server_state", {{"state", "loading"}}), 1);
  EXPECT_EQ(before.value("weft_server_state"), 1);
  EXPECT_FALSE(before.names().contains("vllm:num_requests_running"));
  EXPECT_EQ(service_.answer(head("POST", "/v1/completions"))->status, 503);
  EXPECT_EQ(metrics().value("weft_requests_refused_total", {{"reason", "loading"}}), 1);
  service_.open(backend_, nullptr);
  EXPECT_EQ(metrics().value("weft_server_state", {{"state", "ready"}}), 1);
  EXPECT_THAT(metrics().decreased_since(before), IsEmpty());
  backend_.fail("broken");
  EXPECT_EQ(metrics().value("weft_server_state", {{"state", "failed"}}), 1);
  EXPECT_EQ(metrics().value("weft_server_state"), 1);
}

TEST_F(MetricsTest, EveryRefusalHasItsReason) {
  service_.open(backend_, nullptr);
  const auto refusals = [this] {
    std::map<std::string, double> out;
    const PrometheusText text = metrics();
    for (const PrometheusText::Sample& sample : text.families().at("weft_requests_refused_total").samples)
      out[sample.labels.at("reason")] = sample.value;
    return out;
  };
  std::map<std::string, double> expected = refusals();
  const auto expect = [&](const char* reason, const char* why) {
    ++expected.at(reason);
    EXPECT_EQ(refusals(), expected) << why;
  };
  complete(R"({"prompt":[1,2],"max_tokens":1000})");
  expect("too_long", "longer than the longest request, and the memory would hold it");
  complete(R"({"prompt":[1,2],"max_tokens":2048})");
  expect("never_fits", "two more than the memory holds");
  complete(R"({"prompt":[1,2],"max_tokens":2046})");
  expect("too_long", "just what the memory holds");
  complete("{");
  expect("invalid", "not JSON");
  complete(R"({"prompt":[1],"temperature":-1})");
  expect("invalid", "out of range");
  complete(R"({"prompt":[1],"best_of":4})");
  expect("not_supported", "best_of");
  complete(R"({"prompt":[1],"model":"other"})");
  expect("unknown_model", "a name");
  service_.answer(head("POST", "/v1/embeddings"));
  expect("not_supported", "a route");
  service_.answer(head("GET", "/nothing"));
  expect("unknown_route", "a path");
  service_.answer(head("GET", "/v1/completions"));
  expect("wrong_method", "a method");
  service_.refuse(ApiError(413, "large", {}, "body_too_large"));
  expect("too_large", "a body");
  service_.refuse(ApiError(408, "slow", {}, "request_timeout"));
  expect("too_slow", "a body");
  backend_.set_queue_bound(0);
  complete(R"({"prompt":[1]})");
  expect("queue_requests", "counted by the engine, once");
  service_.begin_drain();
  service_.answer(head("POST", "/v1/completions"));
  expect("draining", "a drain");
  backend_.fail("broken");
  service_.answer(head("POST", "/v1/completions"));
  expect("engine_failed", "a failure");

  Service::Config with_key = config();
  with_key.api_keys = {"secret"};
  with_key.open_metrics = true;
  Service locked(with_key);
  locked.answer(head("POST", "/v1/completions"));
  EXPECT_EQ(
      PrometheusText(locked.answer(head("GET", "/metrics"))->body).value("weft_requests_refused_total", {{"reason", "no_key"}}),
      1);
}

TEST_F(MetricsTest, HttpIsCountedByRouteAndStatus) {
  service_.open(backend_, nullptr);
  service_.http().answered("/v1/completions", 200);
  service_.http().answered("/v1/completions", 200);
  service_.http().answered("/unheard", 418);
  const PrometheusText text = metrics();
  EXPECT_EQ(text.value("weft_http_requests_total", {{"route", "/v1/completions"}, {"status", "200"}}), 2);
  EXPECT_EQ(text.value("weft_http_requests_total", {{"route", "other"}, {"status", "500"}}), 1);
}

TEST_F(MetricsTest, TellOfTheProcessUnderTheNamesOfAllClients) {
  const PrometheusText text = metrics();
  EXPECT_NEAR(text.value("process_start_time_seconds"), static_cast<double>(std::time(nullptr)), 86400 * 2);
  EXPECT_LE(text.value("process_start_time_seconds"), static_cast<double>(std::time(nullptr)) + 2);
  EXPECT_GT(text.value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(text.value("process_virtual_memory_bytes"), text.value("process_resident_memory_bytes"));
  EXPECT_GE(text.value("process_open_fds"), 3);
  EXPECT_GE(text.value("process_max_fds"), text.value("process_open_fds"));
  EXPECT_GE(text.value("process_threads"), 1);
  EXPECT_GE(text.value("process_cpu_seconds_total"), 0);
  for (const auto& [name, family] : text.families()) {
    if (!name.starts_with("process_")) continue;
    EXPECT_THAT(family.samples.at(0).labels, IsEmpty()) << name;
  }
  EXPECT_EQ(text.families().at("weft_build_info").samples.at(0).labels.at("version"), "1.2.3");
}

TEST_F(MetricsTest, CountersNeverDecreaseThroughRandomTraffic) {
  for_each_case(
      [](Gen& gen) {
        FakeBackend backend({}, true);
        Service service(config());
        service.open(backend, nullptr);
        std::vector<std::unique_ptr<Completion>> live;
        const auto read = [&] { return PrometheusText(service.answer(head("GET", "/metrics"))->body); };
        PrometheusText before = read();
        for (int event = 0; event < 60; ++event) {
          const int64_t what = gen.in(0, 5);
          if (what == 0 && !live.empty()) {
            live.erase(live.begin() + gen.in(0, static_cast<int64_t>(live.size()) - 1));  // The client leaves.
          } else if (what <= 2) {
            const json body = {{"prompt", {1, gen.in(0, 400)}}, {"max_tokens", gen.in(0, 1100)}, {"n", gen.in(1, 3)}};
            Service::Reply reply = service.handle(head("POST", "/v1/completions"), body.dump());
            if (reply.later != nullptr) live.push_back(std::move(reply.later));
          } else if (what == 3) {
            backend.set_queue_bound(static_cast<size_t>(gen.in(0, 4)));
          } else {
            backend.step();
          }
          service.http().answered(gen.pick({"/health", "/v1/completions", "?"}), gen.pick({200, 400, 429, 502}));
          const PrometheusText now = read();
          ASSERT_THAT(now.decreased_since(before), IsEmpty());
          before = now;
        }
        const double ended = before.value("vllm:request_success_total");
        EXPECT_GE(ended, 0);
      },
      10);
}

TEST(PrometheusTextTest, RefusesWhatPrometheusWould) {
  const std::string good = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n";
  EXPECT_EQ(PrometheusText(good).value("a_total"), 2);
  const std::string histogram =
      "# HELP h H.\n# TYPE h histogram\nh_count 3\nh_sum 4\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\n";
  EXPECT_THAT(PrometheusText(histogram).names(), ElementsAre("h_bucket", "h_count", "h_sum"));
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& bad : {
           with(good, "# HELP a_total A.\n", ""),
           with(good, "# TYPE a_total counter\n", ""),
           with(good, "counter", "count"),
           with(good, "x=\"1\"} 2", "x=\"1} 2"),
           with(good, "x=\"1\"", "x-y=\"1\""),
           with(good, "} 2", "} two"),
           with(good, "} 2", "} -2"),
           with(good, "a_total{", "b_total{"),
           good + good,
           good + "a_total{x=\"1\"} 3\n",
           with(with(with(good, "a_total A", "a A"), "a_total counter", "a counter"), "a_total{", "a{"),
           with(histogram, "h_count 3", "h_count 4"),
           with(histogram, "} 2", "} 4"),
           with(histogram, "h_bucket{le=\"+Inf\"} 3\n", ""),
           with(histogram, "h_sum 4\n", ""),
           good.substr(0, good.size() - 1),
       })
    EXPECT_THROW(PrometheusText{bad}, std::runtime_error) << bad;
  EXPECT_THAT(PrometheusText(with(good, "} 2", "} 1")).decreased_since(PrometheusText(good)), ElementsAre("a_total"));
  EXPECT_THAT(PrometheusText(good).decreased_since(PrometheusText(with(good, "} 2", "} 1"))), IsEmpty());
}

}  // namespace
}  // namespace weft
