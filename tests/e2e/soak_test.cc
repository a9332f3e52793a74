// Random requests and random aborts over HTTP: at the end everything is as it was.

#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "e2e/chat_model.h"
#include "e2e/served_model.h"
#include "support/checkpoint_writer.h"
#include "support/prop.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Answer;
using test::Client;
using test::Gen;
using test::http_request;
using test::ServedModel;

constexpr int64_t kMaxGrowth = int64_t{64} << 20;
constexpr int kClients = 8;

/// What of a request is the same on all routes that generate.
void add_options(Gen& gen, json& body) {
  body["max_tokens"] = gen.in(1, 60);
  body["temperature"] = gen.pick({0.0, 0.7, 1.5});
  body["stream"] = gen.chance(0.6);
  if (gen.chance(0.2)) body["n"] = gen.in(2, 4);
  if (gen.chance(0.2)) body["top_p"] = 0.9;
  if (gen.chance(0.2)) body["top_k"] = gen.in(1, 50);
  if (gen.chance(0.2)) body["frequency_penalty"] = 0.5;
  if (gen.chance(0.2)) body["stop_token_ids"] = {gen.in(2, 250)};
  if (gen.chance(0.2)) body["stop"] = gen.pick<std::string>({"a", "\n", "th", "e"});
  if (gen.chance(0.05)) body["timeout"] = gen.pick({0.001, 0.01, 0.1});
  if (gen.chance(0.05)) body["max_tokens"] = 1000000;
  if (gen.chance(0.05)) body["cache_salt"] = std::to_string(gen.in(0, 3));
  if (gen.chance(0.1)) body["request_id"] = std::to_string(gen.in(0, 20));
  if (gen.chance(0.1)) body["ignore_eos"] = true;
  if (gen.chance(0.03)) body["temperature"] = "hot";
}

std::string random_text(Gen& gen, int64_t most) {
  std::string out = gen.chance(0.5) ? std::string(static_cast<size_t>(gen.pick({0, 40, 150})), 'x') : "";  // Some begin alike.
  for (int64_t left = gen.in(1, most); left > 0; --left)
    out += gen.pick<std::string>({"the ", "a", "\n", " of", "\xc3\xa4", "\xf0\x9f\x98\x80", "<|end|>", "9"});
  return out;
}

json random_completion(Gen& gen) {
  json body;
  std::vector<int64_t> ids;
  const int64_t shared = gen.pick({0, 0, 40, 150}), length = gen.in(1, 200);
  for (int64_t i = 0; i < shared; ++i) ids.push_back(2 + i % 200);
  for (int64_t i = 0; i < length; ++i) ids.push_back(gen.in(2, 250));
  body["prompt"] = ids;
  if (gen.chance(0.4)) body["prompt"] = random_text(gen, 60);
  if (gen.chance(0.1)) body["prompt"] = {random_text(gen, 20), random_text(gen, 5)};
  if (gen.chance(0.05)) body["prompt"] = {-1};
  add_options(gen, body);
  if (gen.chance(0.2)) body["logprobs"] = gen.in(0, 5);
  if (gen.chance(0.1)) body["echo"] = true;
  return body;
}

json random_chat(Gen& gen) {
  json messages = json::array();
  for (int64_t i = gen.in(0, 3); i >= 0; --i)
    messages.push_back({{"role", gen.pick<std::string>({"user", "assistant", "system"})}, {"content", random_text(gen, 30)}});
  if (gen.chance(0.05)) messages = "hi";
  json body = {{"messages", messages}};
  add_options(gen, body);
  if (gen.chance(0.2)) body["logprobs"] = true;
  if (gen.chance(0.1)) body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  return body;
}

struct Visit {
  std::string method = "POST", path;
  json body;
};
Visit random_visit(Gen& gen) {
  const double kind = static_cast<double>(gen.in(0, 999)) / 1000;
  if (kind < 0.5) return {.path = "/v1/completions", .body = random_completion(gen)};
  if (kind < 0.75) return {.path = "/v1/chat/completions", .body = random_chat(gen)};
  if (kind < 0.8)
    return {.path = "/tokenize", .body = {{"prompt", random_text(gen, 2000)}, {"return_token_strs", gen.chance(0.5)}}};
  if (kind < 0.83) return {.path = "/detokenize", .body = {{"tokens", {gen.in(-1, 260), gen.in(0, 255), gen.in(0, 255)}}}};
  if (kind < 0.86) return {.path = "/apply-template", .body = random_chat(gen)};
  if (kind < 0.92) return {.path = "/abort_request", .body = {{"rid", std::to_string(gen.in(0, 20))}}};
  if (kind < 0.93) return {.path = "/v1/responses", .body = {{"input", "x"}}};
  const auto path = gen.pick<std::string>({"/health", "/ready", "/v1/models", "/metrics", "/version", "/v1/load",
                                           "/server_info", "/health_generate", "/nothing", "/v1/completions"});
  return {.method = gen.pick<std::string>({"GET", "GET", "HEAD", "OPTIONS"}), .path = path, .body = {}};
}

/// One request, which may be left half way, on a connection of its own or on a kept one.
void visit(const ServedModel& server, Gen& gen, std::unique_ptr<Client>& kept, std::atomic<int64_t>& answered,
           std::atomic<int64_t>& left) {
  if (kept == nullptr || gen.chance(0.3)) kept = std::make_unique<Client>(server.port());
  const Visit wanted = random_visit(gen);
  std::string body = wanted.body.is_null() ? "" : wanted.body.dump();
  if (!body.empty() && gen.chance(0.02)) body.resize(body.size() / 2);
  const std::string text = http_request(wanted.method, wanted.path, "", body);
  if (gen.chance(0.05)) {  // Leaves within its own request.
    kept->send(text.substr(0, text.size() / 2));
    kept.reset();
    ++left;
    return;
  }
  kept->send(text);
  if (gen.chance(0.25)) {
    if (gen.chance(0.5)) std::this_thread::sleep_for(std::chrono::milliseconds(gen.in(0, 50)));
    kept.reset();
    ++left;
    return;
  }
  const Answer answer = kept->read_answer(wanted.method == "HEAD");
  ASSERT_THAT(answer.status, ::testing::AnyOf(200, 204, 400, 404, 405, 429, 501, 504)) << wanted.path << answer.body;
  if (answer.status == 200 && answer.headers.at("content-type").starts_with("text/event-stream")) {
    const std::string last = answer.events().back();
    ASSERT_TRUE(last == "[DONE]" || json::parse(last)["error"]["code"] == "deadline_exceeded") << last;
  }
  if (answer.headers.contains("connection") && answer.headers.at("connection") == "close") kept.reset();
  ++answered;
}

TEST(Soak, RandomTrafficWithAbortsLeavesNothingBehind) {
  const bool full = std::getenv("WEFT_FULL") != nullptr;
  const auto duration = full ? 1800s : 5s;
  test::TemporaryFolder folder;
  test::write_chat_model(folder.path());
  ServedModel server(WEFT_BINARY, folder.path(),
                     {"--load-format", "dummy", "-tp", "2", "-dcp", "2", "--num-gpu-blocks-override", "24", "--max-num-seqs",
                      "6", "--max-queued-requests", "6", "--max-num-batched-tokens", "128", "--threads", "2",
                      "--disable-log-requests", "--served-model-name", "chat"});
  const std::map<std::string, double> at_start = server.gauges();
  std::atomic<int64_t> answered{0}, left{0};
  const auto traffic = [&](std::chrono::steady_clock::duration time, uint64_t first_seed) {
    const auto end = std::chrono::steady_clock::now() + time;
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kClients; ++i)
      threads.emplace_back([&, seed = first_seed + i] {
        Gen gen(seed);
        std::unique_ptr<Client> kept;
        while (std::chrono::steady_clock::now() < end && !::testing::Test::HasFatalFailure())
          visit(server, gen, kept, answered, left);
      });
    for (std::thread& thread : threads) thread.join();
  };
  traffic(2s, 1000);  // Pools and caches fill.
  ASSERT_TRUE(server.becomes_quiet());
  const int64_t resident = server.resident_bytes();
  traffic(duration, 1);
  ASSERT_TRUE(server.becomes_quiet());
  // All but the cache, which is there to stay.
  const std::map<std::string, double> at_end = server.gauges();
  EXPECT_EQ(at_end.size(), at_start.size());
  EXPECT_TRUE(at_start.contains("vllm:kv_cache_usage_perc{model_name=\"chat\",engine=\"0\"}"));
  for (const auto& [name, value] : at_start) {
    if (name.starts_with("process_")) continue;  // Its memory is looked at below.
    if (name.starts_with("weft_kv_blocks_cached")) {
      EXPECT_LE(at_end.at(name), 24);
    } else {
      EXPECT_EQ(at_end.at(name), value) << name;
    }
  }
  EXPECT_LT(server.resident_bytes() - resident, kMaxGrowth);
  EXPECT_GT(answered, 0);
  EXPECT_GT(left, 0);
  RecordProperty("answered", static_cast<int>(answered));
  RecordProperty("left", static_cast<int>(left));
  RecordProperty("grown_bytes", static_cast<int>(server.resident_bytes() - resident));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.log();
}

}  // namespace
}  // namespace weft
