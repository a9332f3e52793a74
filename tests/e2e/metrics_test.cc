// /metrics of a running server: well-formed whatever goes on, described in docs/metrics.md, and the source of every name in the
// dashboard and the alert rules.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "e2e/served_model.h"
#include "server/prometheus_text.h"
#include "support/prop.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Answer;
using test::Client;
using test::Gen;
using test::http_request;
using test::PrometheusText;
using test::ServedModel;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using ::testing::SizeIs;

const std::string kModel = WEFT_SOURCE_DIR "/tests/goldens/deepseek_v2_lite";
const std::string kDocs = WEFT_SOURCE_DIR "/docs/";

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

/// `count` tokens of which the first is `first`, so that prompts that begin otherwise share nothing.
json prompt(int first, int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(2 + (first + i * 7) % 240);
  return ids;
}

json request(const json& ids, int64_t max_tokens) {
  return {{"prompt", ids}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

/// A server of two context ranks whose pool holds 20 blocks of 32 tokens.
class MetricsOfAServer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServedModel>(
        WEFT_BINARY, kModel,
        std::vector<std::string>{"-tp", "2", "-dcp", "2", "--num-gpu-blocks-override", "20", "--max-num-seqs", "4",
                                 "--max-queued-requests", "3", "--max-num-batched-tokens", "64", "--threads", "2",
                                 "--disable-log-requests"});
  }
  static void TearDownTestSuite() { server_.reset(); }

  static PrometheusText metrics() { return PrometheusText(server_->client().get("/metrics").body); }
  static Answer post(const json& body) { return server_->client().post("/v1/completions", body.dump()); }

  static std::unique_ptr<ServedModel> server_;
};
std::unique_ptr<ServedModel> MetricsOfAServer::server_;

// --- numbers ---------------------------------------------------------------------------------------------------------------

TEST_F(MetricsOfAServer, HitsAreNothingForPromptsThatShareNothingThoughTheyArePreempted) {
  const PrometheusText before = metrics();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)  // 3 * 250 tokens where 640 fit.
    threads.emplace_back([i] { EXPECT_EQ(post(request(prompt(20 * i, 150), 100)).status, 200); });
  for (std::thread& thread : threads) thread.join();
  const PrometheusText after = metrics();
  const auto grown = [&](const char* name) { return after.value(name) - before.value(name); };
  EXPECT_GT(grown("vllm:num_preemptions_total"), 0);
  EXPECT_EQ(grown("vllm:num_preemptions_total"), grown("weft_preemptions_total"));
  EXPECT_EQ(grown("vllm:prefix_cache_queries_total"), 450);
  EXPECT_EQ(grown("vllm:prefix_cache_hits_total"), 0);
  EXPECT_EQ(grown("vllm:prompt_tokens_total"), 450);
  EXPECT_EQ(grown("vllm:generation_tokens_total"), 300);
}

TEST_F(MetricsOfAServer, HitsAreTheTrueShareOfAPromptThatComesTwice) {
  const json body = request(prompt(100, 100), 4);
  ASSERT_EQ(post(body).status, 200);
  const PrometheusText before = metrics();
  const Answer again = post(body);
  const PrometheusText after = metrics();
  EXPECT_EQ(after.value("vllm:prefix_cache_queries_total") - before.value("vllm:prefix_cache_queries_total"), 100);
  EXPECT_EQ(after.value("vllm:prefix_cache_hits_total") - before.value("vllm:prefix_cache_hits_total"), 99)
      << "all but the last, which is computed to sample after it";
  EXPECT_EQ(again.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 99);
  const auto of = [&](const char* source) {
    return after.value("weft_prefix_cache_hit_tokens_total", {{"source", source}}) -
           before.value("weft_prefix_cache_hit_tokens_total", {{"source", source}});
  };
  EXPECT_EQ(of("shared_blocks"), 96);
  EXPECT_EQ(of("copied_rows"), 3);
  EXPECT_EQ(after.value("weft_kv_copied_tokens_total") - before.value("weft_kv_copied_tokens_total"), 3);
}

TEST_F(MetricsOfAServer, RanksExchangeTheSameBytesAndARequestIsToldItsTime) {
  const PrometheusText before = metrics();
  json body = request(prompt(130, 60), 30);
  body["timings"] = true;
  const json timings = post(body).json()["timings"];
  const PrometheusText after = metrics();
  for (const char* operation : {"gather_queries", "exchange_partials", "all_reduce", "gather_logits"}) {
    const auto of = [&](const char* name, const char* rank) {
      const PrometheusText::Labels labels = {{"operation", operation}, {"rank", rank}};
      return after.value(name, labels) - before.value(name, labels);
    };
    EXPECT_GT(of("weft_exchange_bytes_total", "0"), 0) << operation;
    EXPECT_EQ(of("weft_exchange_bytes_total", "0"), of("weft_exchange_bytes_total", "1")) << operation;
    EXPECT_EQ(of("weft_exchange_calls_total", "0"), of("weft_exchange_calls_total", "1")) << operation;
    EXPECT_GT(of("weft_exchange_seconds_total", "0"), 0) << operation;
  }
  // Each step samples once, on logits that are gathered once.
  const PrometheusText::Labels logits = {{"operation", "gather_logits"}, {"rank", "0"}};
  EXPECT_EQ(after.value("weft_exchange_calls_total", logits) - before.value("weft_exchange_calls_total", logits), 30);
  EXPECT_GT(timings["exchange_ms"].get<double>(), 0);
  EXPECT_LE(timings["exchange_ms"].get<double>(), timings["prefill_ms"].get<double>() + timings["decode_ms"].get<double>());
  EXPECT_EQ(after.families().at("weft_parallel_info").samples.at(0).labels.at("ranks_here"), "0-1");
}

TEST_F(MetricsOfAServer, CountersNeverDecreaseThroughAbortsRefusalsAndPreemptions) {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 6; ++seed)
    threads.emplace_back([&, seed] {
      Gen gen(seed);
      while (!over) {
        Client client = server_->client();
        json body = request(prompt(static_cast<int>(gen.in(0, 200)), gen.in(1, 250)), gen.in(1, 100));
        body["stream"] = gen.chance(0.5);
        body["n"] = gen.in(1, 2);
        if (gen.chance(0.2)) body["temperature"] = -1;
        client.send(http_request("POST", "/v1/completions", "", body.dump()));
        if (!gen.chance(0.4)) client.read_answer();
      }
    });
  PrometheusText before = metrics();
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const PrometheusText now = metrics();
    EXPECT_THAT(now.decreased_since(before), IsEmpty());
    EXPECT_LE(now.value("weft_kv_rank_tokens_min"), now.value("weft_kv_rank_tokens_max"));
    EXPECT_LE(now.value("weft_kv_rank_usage_max"), 1);
    EXPECT_LE(now.value("vllm:kv_cache_usage_perc"), 1);
    before = now;
    std::this_thread::sleep_for(30ms);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server_->becomes_quiet());
  const PrometheusText last = metrics();
  EXPECT_THAT(last.decreased_since(before), IsEmpty());
  EXPECT_GT(last.value("vllm:request_success_total", {{"finished_reason", "abort"}}), 0);
  EXPECT_GT(last.value("weft_requests_refused_total", {{"reason", "invalid"}}), 0);
  EXPECT_EQ(last.value("weft_kv_rank_tokens"), 0);
  EXPECT_EQ(last.value("weft_queue_requests") + last.value("weft_queue_tokens"), 0);
  EXPECT_EQ(last.value("vllm:prompt_tokens_total"), last.value("vllm:prompt_tokens_by_source_total"));
  EXPECT_EQ(last.value("vllm:prefix_cache_hits_total"), last.value("weft_prefix_cache_hit_tokens_total"));
}

// --- what is said about them -----------------------------------------------------------------------------------------------

std::set<std::string> names_in(const std::string& text) {
  static const std::regex name("(vllm:|weft_|process_)[a-zA-Z0-9_:]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), name), std::sregex_token_iterator()};
}

/// Labels that queries select, group or match by, and that legends show.
std::set<std::string> labels_in(const std::string& text) {
  std::set<std::string> out;
  static const std::regex one(R"re(([a-zA-Z_]+)(=~|!~|!=|=)"|\{\{([a-z_]+)\}\})re");
  for (std::sregex_iterator it(text.begin(), text.end(), one), end; it != end; ++it)
    out.insert((*it)[1].matched ? (*it)[1].str() : (*it)[3].str());
  static const std::regex list(R"((by|on|without|ignoring|group_left|group_right) ?\(([a-z_, ]*)\))"), word("[a-z_]+");
  for (std::sregex_iterator it(text.begin(), text.end(), list), end; it != end; ++it) {
    const std::string words = (*it)[2];
    out.insert(std::sregex_token_iterator(words.begin(), words.end(), word), std::sregex_token_iterator());
  }
  return out;
}

/// What is wrong with a query, as far as one sees without Prometheus.
void check_query(const std::string& query, const PrometheusText& text) {
  EXPECT_EQ(std::count(query.begin(), query.end(), '('), std::count(query.begin(), query.end(), ')')) << query;
  EXPECT_EQ(std::count(query.begin(), query.end(), '{'), std::count(query.begin(), query.end(), '}')) << query;
  EXPECT_THAT(names_in(query), IsSubsetOf(text.names())) << query;
  std::set<std::string> labels = text.label_names();
  labels.insert({"instance", "job"});  // which Prometheus adds
  EXPECT_THAT(labels_in(query), IsSubsetOf(labels)) << query;
  // Rates are of counters, and quantiles of histograms.
  static const std::regex rated(R"((rate|increase)\(([a-zA-Z0-9_:]+))");
  for (std::sregex_iterator it(query.begin(), query.end(), rated), end; it != end; ++it) {
    const std::string name = (*it)[2];
    const auto family = text.families().find(name);
    EXPECT_TRUE(family == text.families().end() || family->second.type == "counter") << "a rate of " << name << " in " << query;
  }
}

TEST_F(MetricsOfAServer, AreAllDescribedAndNothingElseIs) {
  ASSERT_EQ(post(request(prompt(1, 3), 1)).status, 200);
  std::set<std::string> described, there;
  std::istringstream lines(read(kDocs + "metrics.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::set<std::string> names = names_in(line.substr(0, line.find(" | ")));
    described.insert(names.begin(), names.end());
  }
  const PrometheusText text = metrics();
  for (const auto& [name, family] : text.families()) there.insert(name);
  EXPECT_EQ(described, there);
}

TEST_F(MetricsOfAServer, FeedEveryPanelOfTheDashboard) {
  ASSERT_EQ(post(request(prompt(1, 3), 1)).status, 200);
  const PrometheusText text = metrics();
  const json board = json::parse(read(kDocs + "grafana/weft.json"));
  std::set<int> ids;
  std::set<std::string> titles, used;
  int rows = 0, panels = 0;
  for (const json& panel : board["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int>()).second) << panel["title"];
    EXPECT_TRUE(titles.insert(panel["title"]).second) << panel["title"];
    if (panel["type"] == "row") {
      ++rows;
      continue;
    }
    ++panels;
    EXPECT_EQ(panel["datasource"]["uid"], "${datasource}") << panel["title"];
    EXPECT_FALSE(panel["description"].get<std::string>().empty()) << panel["title"];
    ASSERT_FALSE(panel["targets"].empty()) << panel["title"];
    for (const json& target : panel["targets"]) {
      const std::string query = target["expr"];
      check_query(query, text);
      EXPECT_THAT(labels_in(target["legendFormat"]), IsSubsetOf(labels_in(query)))
          << "a legend by what the query drops: " << query;
      EXPECT_NE(query.find("instance=~\"$instance\""), std::string::npos) << "of all servers at once: " << query;
      const std::set<std::string> names = names_in(query);
      EXPECT_FALSE(names.empty()) << query;
      used.insert(names.begin(), names.end());
    }
  }
  EXPECT_EQ(rows, 6);
  EXPECT_GE(panels, 25);
  EXPECT_THAT(board["templating"]["list"], SizeIs(3));
  for (const json& variable : board["templating"]["list"]) {
    if (variable["type"] != "datasource") check_query(variable["query"]["query"], text);
  }
  EXPECT_THAT(used, Contains("weft_exchange_bytes_total"));
}

/// One rule of the file, which is written plainly: two spaces a level, keys in a fixed order.
struct Rule {
  std::string name, query, wait, severity, summary, description;
};

std::vector<Rule> rules_of(const std::string& text) {
  std::vector<Rule> out;
  std::istringstream lines(text);
  bool in_query = false;
  for (std::string line; std::getline(lines, line);) {
    const auto value = [&](const std::string& key) -> std::optional<std::string> {
      const size_t at = line.find_first_not_of(' ');
      if (at == std::string::npos || line.compare(at, key.size(), key) != 0) return std::nullopt;
      return line.substr(at + key.size());
    };
    EXPECT_EQ(line.find('\t'), std::string::npos) << line;
    if (const auto name = value("- alert: ")) {
      out.emplace_back().name = *name;
      in_query = false;
      continue;
    }
    if (out.empty()) continue;
    Rule& rule = out.back();
    if (value("expr: |")) {
      in_query = true;
    } else if (const auto wait = value("for: ")) {
      rule.wait = *wait;
      in_query = false;
    } else if (value("labels:")) {
      in_query = false;
    } else if (const auto severity = value("severity: ")) {
      rule.severity = *severity;
    } else if (const auto summary = value("summary: ")) {
      rule.summary = *summary;
    } else if (const auto description = value("description: ")) {
      rule.description = *description;
    } else if (in_query) {
      rule.query += line + "\n";
    }
  }
  return out;
}

TEST_F(MetricsOfAServer, FeedEveryAlert) {
  ASSERT_EQ(post(request(prompt(1, 3), 1)).status, 200);
  const PrometheusText text = metrics();
  const std::string file = read(kDocs + "alerts/weft.yml"), page = read(kDocs + "metrics.md");
  EXPECT_EQ(file.substr(0, 8), "groups:\n") << file.substr(0, 8);
  EXPECT_THAT(names_in(file), IsSubsetOf(text.names()));
  const std::vector<Rule> rules = rules_of(file);
  EXPECT_GE(rules.size(), 12u);
  std::set<std::string> names, told;
  for (const Rule& rule : rules) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(names_in(rule.query).empty()) << rule.name;
    check_query(rule.query, text);
    EXPECT_TRUE(std::regex_match(rule.wait, std::regex("[0-9]+[smh]"))) << rule.name << ": " << rule.wait;
    EXPECT_TRUE(rule.severity == "critical" || rule.severity == "warning") << rule.name << ": " << rule.severity;
    EXPECT_FALSE(rule.summary.empty()) << rule.name;
    EXPECT_FALSE(rule.description.empty()) << rule.name;
  }
  static const std::regex alert("`(Weft[A-Za-z]+)`");
  for (std::sregex_iterator it(page.begin(), page.end(), alert), end; it != end; ++it) told.insert((*it)[1]);
  EXPECT_EQ(told, names) << "docs/metrics.md says what to do for each";
}

}  // namespace
}  // namespace weft
