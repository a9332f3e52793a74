// Random requests and random aborts over HTTP: at the end everything is as it was.

#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "e2e/served_model.h"
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
const std::string kModel = WEFT_SOURCE_DIR "/tests/goldens/deepseek_v2_lite";

json random_request(Gen& gen) {
  json body;
  std::vector<int64_t> ids;
  const int64_t shared = gen.pick({0, 0, 40, 150}), length = gen.in(1, 200);  // Some begin alike.
  for (int64_t i = 0; i < shared; ++i) ids.push_back(2 + i % 200);
  for (int64_t i = 0; i < length; ++i) ids.push_back(gen.in(2, 250));
  body["prompt"] = ids;
  body["max_tokens"] = gen.in(1, 60);
  body["temperature"] = gen.pick({0.0, 0.7, 1.5});
  body["stream"] = gen.chance(0.6);
  if (gen.chance(0.2)) body["n"] = gen.in(2, 4);
  if (gen.chance(0.2)) body["logprobs"] = gen.in(0, 5);
  if (gen.chance(0.1)) body["echo"] = true;
  if (gen.chance(0.2)) body["top_p"] = 0.9;
  if (gen.chance(0.2)) body["top_k"] = gen.in(1, 50);
  if (gen.chance(0.2)) body["frequency_penalty"] = 0.5;
  if (gen.chance(0.2)) body["stop_token_ids"] = {gen.in(2, 250)};
  if (gen.chance(0.05)) body["prompt"] = {-1};
  if (gen.chance(0.05)) body["max_tokens"] = 1000000;
  if (gen.chance(0.05)) body["cache_salt"] = std::to_string(gen.in(0, 3));
  return body;
}

/// One request, which may be left half way, on a connection of its own or on a kept one.
void visit(const ServedModel& server, Gen& gen, std::unique_ptr<Client>& kept, std::atomic<int64_t>& answered,
           std::atomic<int64_t>& left) {
  if (kept == nullptr || gen.chance(0.3)) kept = std::make_unique<Client>(server.port());
  const json body = random_request(gen);
  const std::string text = http_request("POST", "/v1/completions", "", body.dump());
  if (gen.chance(0.05)) {  // Leaves within its own request.
    kept->send(text.substr(0, text.size() / 2));
    kept.reset();
    ++left;
    return;
  }
  kept->send(text);
  if (gen.chance(0.3)) {
    if (gen.chance(0.5)) std::this_thread::sleep_for(std::chrono::milliseconds(gen.in(0, 50)));
    kept.reset();
    ++left;
    return;
  }
  const Answer answer = kept->read_answer();
  ASSERT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 429) << answer.status << answer.body;
  if (answer.status == 200 && body["stream"] == true) {
    ASSERT_EQ(answer.events().back(), "[DONE]");
  }
  ++answered;
}

TEST(Soak, RandomTrafficWithAbortsLeavesNothingBehind) {
  const bool full = std::getenv("WEFT_FULL") != nullptr;
  const auto duration = full ? 600s : 5s;
  ServedModel server(
      WEFT_BINARY, kModel,
      {"-tp", "2", "-dcp", "2", "--num-gpu-blocks-override", "24", "--max-num-seqs", "6", "--max-queued-requests", "6",
       "--max-num-batched-tokens", "128", "--threads", "2", "--disable-log-requests"});
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
  EXPECT_TRUE(at_start.contains("vllm:kv_cache_usage_perc{model_name=\"" + kModel + "\",engine=\"0\"}"));
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
