#include "bench_client/report.h"

#include <gmock/gmock.h>

#include <limits>
#include <sstream>

namespace weft::bench {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<Record> records() {
  Record one{.state = Record::State::answered,
             .ttft_s = 0.25,
             .latency_s = 0.75,
             .itls_s = {0.5},
             .chunk_tokens = {1, 1},
             .input_tokens = 30,
             .output_tokens = 2};
  one.text = "a\"b";
  one.cached_tokens = 15;
  return {one, {.state = Record::State::failed, .error = "HTTP 400: no"}};
}
Figures figures(const Objectives& objectives = {}) {
  const std::vector<double> percents = {50, 99.5};
  return measure(records(), 2, percents, objectives);
}
std::string names_of(const std::string& report) {
  std::istringstream lines(report);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += line.substr(0, line.find(':')) + "\n";
  return out;
}

TEST(Report, HasEveryRowOfVllm) {
  const ReportForm form{.request_rate = 4, .max_concurrency = 8, .metrics = metric_names()};
  EXPECT_EQ(
      names_of(report_text(figures({.ttft_ms = 300}), form)),
      "============ Serving Benchmark Result ============\n"
      "Successful requests\nFailed requests\nMaximum request concurrency\nRequest rate configured (RPS)\n"
      "Benchmark duration (s)\nTotal input tokens\nTotal generated tokens\nRequest throughput (req/s)\n"
      "Request goodput (req/s)\nOutput token throughput (tok/s)\nPeak output token throughput (tok/s)\n"
      "Peak concurrent requests\nTotal token throughput (tok/s)\n"
      "-------------------Prefix Cache-------------------\nCached input tokens\nPrefix cache hit rate (%)\n"
      "---------------Time to First Token----------------\nMean TTFT (ms)\nMedian TTFT (ms)\nP50 TTFT (ms)\nP99.5 TTFT (ms)\n"
      "-----Time per Output Token (excl. 1st token)------\nMean TPOT (ms)\nMedian TPOT (ms)\nP50 TPOT (ms)\nP99.5 TPOT (ms)\n"
      "---------------Inter-token Latency----------------\nMean ITL (ms)\nMedian ITL (ms)\nP50 ITL (ms)\nP99.5 ITL (ms)\n"
      "----------------End-to-end Latency----------------\nMean E2EL (ms)\nMedian E2EL (ms)\nP50 E2EL (ms)\nP99.5 E2EL (ms)\n"
      "---------------Client-side Queueing---------------\nMean Client Queue Time (ms)\nMedian Client Queue Time (ms)\n"
      "P50 Client Queue Time (ms)\nP99.5 Client Queue Time (ms)\n"
      "--------Queue-inclusive End-to-end Latency--------\nMean E2EL incl. Client Queue (ms)\n"
      "Median E2EL incl. Client Queue (ms)\nP50 E2EL incl. Client Queue (ms)\nP99.5 E2EL incl. Client Queue (ms)\n"
      "==================================================\n");
}

TEST(Report, HasItsValuesInOneColumn) {
  EXPECT_THAT(report_text(figures(), {.request_rate = 4}),
              AllOf(HasSubstr("Successful requests:                     1         \n"),
                    HasSubstr("Request rate configured (RPS):           4.00      \n"),
                    HasSubstr("Request throughput (req/s):              0.50      \n"),
                    HasSubstr("Prefix cache hit rate (%):               50.00     \n"),
                    HasSubstr("P99.5 TTFT (ms):                         250.00    \n")));
}

TEST(Report, LeavesOutWhatWasNotAskedFor) {
  Figures without = figures();
  without.cached_tokens.reset();
  EXPECT_THAT(
      report_text(without, {.request_rate = kInfinite, .metrics = {"ttft"}}),
      AllOf(Not(HasSubstr("goodput")), Not(HasSubstr("concurrency")), Not(HasSubstr("configured")), Not(HasSubstr("ITL")),
            Not(HasSubstr("E2EL")), Not(HasSubstr("Cache")), Not(HasSubstr("Interrupted")), HasSubstr("TTFT")));
}

TEST(Report, TheJsonHasTheSameFiguresUnderTheKeysOfVllm) {
  const ReportForm form{.request_rate = kInfinite, .max_concurrency = 8, .metrics = {"ttft", "itl"}};
  const ordered_json out = ordered_json::parse(report_json(figures({.ttft_ms = 300}), form, records(), false).dump());
  std::vector<std::string> keys;
  for (const auto& [key, value] : out.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
                                "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
                                "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
                                "max_concurrent_requests", "total_cached_tokens", "prefix_cache_hit_rate", "mean_ttft_ms",
                                "median_ttft_ms", "std_ttft_ms", "p50_ttft_ms", "p99.5_ttft_ms", "mean_itl_ms", "median_itl_ms",
                                "std_itl_ms", "p50_itl_ms", "p99.5_itl_ms"));
  EXPECT_EQ(out["request_rate"], "inf");
  EXPECT_EQ(out["completed"], 1);
  EXPECT_EQ(out["failed"], 1);
  EXPECT_EQ(out["mean_ttft_ms"], 250.0);
  EXPECT_EQ(out["request_goodput"], 0.5);
  EXPECT_EQ(out["prefix_cache_hit_rate"], 0.5);
  EXPECT_TRUE(report_json(figures(), form, records(), false)["request_goodput"].is_null());
}

TEST(Report, TheDetailedJsonHasAnEntryForEachRequest) {
  const ordered_json out = report_json(figures(), {}, records(), true);
  EXPECT_EQ(out["ttfts"], ordered_json({0.25, 0.0}));
  EXPECT_EQ(out["itls"], ordered_json::parse("[[0.5], []]"));
  EXPECT_EQ(out["output_lens"], ordered_json({2, 0}));
  EXPECT_EQ(out["generated_texts"], ordered_json({"a\"b", ""}));
  EXPECT_EQ(out["errors"], ordered_json({"", "HTTP 400: no"}));
}

TEST(Report, FailuresAreGroupedByReason) {
  EXPECT_THAT(failures_text({}), IsEmpty());
  std::vector<Record> all = records();
  all.push_back({.state = Record::State::failed, .error = "HTTP 400: no"});
  all.push_back({.state = Record::State::failed, .error = "bad\x1b[31m\nword"});
  EXPECT_EQ(failures_text(all), "3 of 4 requests failed:\n       2 x HTTP 400: no\n       1 x bad [31m word\n");
  EXPECT_THAT(failures_text(all, 1), HasSubstr("and 1 other reasons"));
}

}  // namespace
}  // namespace weft::bench
