#include "bench_client/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace weft::bench {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWidth = 50;

/// A metric with a section of its own.
struct Metric {
  std::string key, name, title;
  Spread Figures::*spread;
};
const std::vector<Metric>& metrics() {
  static const std::vector<Metric> all = {
      {"ttft", "TTFT", "Time to First Token", &Figures::ttft},
      {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &Figures::tpot},
      {"itl", "ITL", "Inter-token Latency", &Figures::itl},
      {"e2el", "E2EL", "End-to-end Latency", &Figures::e2el},
      {"client_queue_time", "Client Queue Time", "Client-side Queueing", &Figures::client_queue},
      {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
       &Figures::e2el_with_queue},
  };
  return all;
}

bool is_shown(const Metric& metric, const ReportForm& form) {
  return std::find(form.metrics.begin(), form.metrics.end(), metric.key) != form.metrics.end();
}

/// "99", or "99.9".
std::string percent_text(double percent) { return fmt::format("{:g}", percent); }

std::string heading(const std::string& title, char fill) {
  const size_t before = (kWidth - title.size()) / 2;
  return std::string(before, fill) + title + std::string(kWidth - title.size() - before, fill) + "\n";
}
std::string row(const std::string& name, int64_t value) { return fmt::format("{:<40} {:<10}\n", name + ":", value); }
std::string row(const std::string& name, double value) { return fmt::format("{:<40} {:<10.2f}\n", name + ":", value); }

double hit_rate(const Figures& figures) {
  return figures.input_tokens == 0
             ? 0
             : 100 * static_cast<double>(*figures.cached_tokens) / static_cast<double>(figures.input_tokens);
}

template <typename Get>
ordered_json list_of(std::span<const Record> records, Get get) {
  ordered_json out = ordered_json::array();
  for (const Record& record : records) out.push_back(get(record));
  return out;
}

void add_details(ordered_json& out, std::span<const Record> records) {
  out["input_lens"] = list_of(records, [](const Record& r) { return r.input_tokens; });
  out["output_lens"] = list_of(records, [](const Record& r) { return r.answered() ? r.output_tokens : 0; });
  out["ttfts"] = list_of(records, [](const Record& r) { return r.ttft_s; });
  out["itls"] = list_of(records, [](const Record& r) { return r.itls_s; });
  out["latencies"] = list_of(records, [](const Record& r) { return r.latency_s; });
  out["start_times"] = list_of(records, [](const Record& r) { return r.start_s; });
  out["queue_times"] = list_of(records, [](const Record& r) { return r.queue_s(); });
  out["generated_texts"] = list_of(records, [](const Record& r) { return r.text; });
  out["errors"] = list_of(records, [](const Record& r) { return r.error; });
}

}  // namespace

const std::vector<std::string>& metric_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Metric& metric : metrics()) out.push_back(metric.key);
    return out;
  }();
  return names;
}

std::string report_text(const Figures& figures, const ReportForm& form) {
  std::string out = heading(" Serving Benchmark Result ", '=');
  out += row("Successful requests", figures.completed);
  out += row("Failed requests", figures.failed);
  if (figures.interrupted > 0) out += row("Interrupted requests", figures.interrupted);
  if (form.max_concurrency) out += row("Maximum request concurrency", *form.max_concurrency);
  if (std::isfinite(form.request_rate)) out += row("Request rate configured (RPS)", form.request_rate);
  out += row("Benchmark duration (s)", figures.duration_s);
  out += row("Total input tokens", figures.input_tokens);
  out += row("Total generated tokens", figures.output_tokens);
  out += row("Request throughput (req/s)", figures.request_throughput);
  if (figures.goodput) out += row("Request goodput (req/s)", *figures.goodput);
  out += row("Output token throughput (tok/s)", figures.output_throughput);
  out += row("Peak output token throughput (tok/s)", figures.peak_output_throughput);
  out += row("Peak concurrent requests", static_cast<double>(figures.peak_concurrency));
  out += row("Total token throughput (tok/s)", figures.token_throughput);
  if (figures.cached_tokens) {
    out += heading("Prefix Cache", '-');
    out += row("Cached input tokens", *figures.cached_tokens);
    out += row("Prefix cache hit rate (%)", hit_rate(figures));
  }
  for (const Metric& metric : metrics()) {
    if (!is_shown(metric, form)) continue;
    const Spread& spread = figures.*metric.spread;
    out += heading(metric.title, '-');
    out += row("Mean " + metric.name + " (ms)", spread.mean);
    out += row("Median " + metric.name + " (ms)", spread.median);
    for (const auto& [percent, value] : spread.percentiles)
      out += row("P" + percent_text(percent) + " " + metric.name + " (ms)", value);
  }
  return out + std::string(kWidth, '=') + "\n";
}

ordered_json report_json(const Figures& figures, const ReportForm& form, std::span<const Record> records, bool detailed) {
  ordered_json out;
  out["request_rate"] = std::isfinite(form.request_rate) ? ordered_json(form.request_rate) : ordered_json("inf");
  out["burstiness"] = std::isfinite(form.burstiness) ? ordered_json(form.burstiness) : ordered_json("inf");
  out["max_concurrency"] = form.max_concurrency ? ordered_json(*form.max_concurrency) : ordered_json();
  out["duration"] = figures.duration_s;
  out["completed"] = figures.completed;
  out["failed"] = figures.failed;
  if (figures.interrupted > 0) out["interrupted"] = figures.interrupted;
  out["total_input_tokens"] = figures.input_tokens;
  out["total_output_tokens"] = figures.output_tokens;
  out["request_throughput"] = figures.request_throughput;
  out["request_goodput"] = figures.goodput ? ordered_json(*figures.goodput) : ordered_json();
  out["output_throughput"] = figures.output_throughput;
  out["total_token_throughput"] = figures.token_throughput;
  out["max_output_tokens_per_s"] = figures.peak_output_throughput;
  out["max_concurrent_requests"] = figures.peak_concurrency;
  if (figures.cached_tokens) {
    out["total_cached_tokens"] = *figures.cached_tokens;
    out["prefix_cache_hit_rate"] = hit_rate(figures) / 100;
  }
  for (const Metric& metric : metrics()) {
    if (!is_shown(metric, form)) continue;
    const Spread& spread = figures.*metric.spread;
    out["mean_" + metric.key + "_ms"] = spread.mean;
    out["median_" + metric.key + "_ms"] = spread.median;
    out["std_" + metric.key + "_ms"] = spread.std;
    for (const auto& [percent, value] : spread.percentiles) out["p" + percent_text(percent) + "_" + metric.key + "_ms"] = value;
  }
  if (detailed) add_details(out, records);
  return out;
}

std::string failures_text(std::span<const Record> records, size_t most) {
  std::map<std::string, int64_t> reasons;
  int64_t failed = 0;
  for (const Record& record : records) {
    if (record.state != Record::State::failed) continue;
    std::string reason = record.error;  // It may be the server's, and goes to a terminal.
    std::replace_if(
        reason.begin(), reason.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }, ' ');
    ++reasons[reason];
    ++failed;
  }
  if (failed == 0) return "";
  std::vector<std::pair<std::string, int64_t>> sorted(reasons.begin(), reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out = fmt::format("{} of {} requests failed:\n", failed, records.size());
  for (size_t i = 0; i < std::min(most, sorted.size()); ++i)
    out += fmt::format("{:8} x {}\n", sorted[i].second, sorted[i].first);
  if (sorted.size() > most) out += fmt::format("         and {} other reasons\n", sorted.size() - most);
  return out;
}

}  // namespace weft::bench
