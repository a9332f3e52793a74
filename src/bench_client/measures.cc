#include "bench_client/measures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace weft::bench {
namespace {

constexpr double kMilliseconds = 1000;

Spread spread_of(std::vector<double> seconds, std::span<const double> percents) {
  std::sort(seconds.begin(), seconds.end());
  Spread out;
  if (!seconds.empty()) {
    const auto count = static_cast<double>(seconds.size());
    const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
    double squares = 0;
    for (const double value : seconds) squares += (value - mean) * (value - mean);
    out.mean = mean * kMilliseconds;
    out.std = std::sqrt(squares / count) * kMilliseconds;
    out.median = percentile_of_sorted(seconds, 50) * kMilliseconds;
  }
  for (const double percent : percents)
    out.percentiles.emplace_back(percent, percentile_of_sorted(seconds, percent) * kMilliseconds);
  return out;
}

/// 0 for an answer of one token: it keeps to any objective.
double tpot_of(const Record& record) {
  if (record.output_tokens < 2) return 0;
  return (record.latency_s - record.ttft_s) / static_cast<double>(record.output_tokens - 1);
}

bool keeps(const Record& record, const Objectives& objectives) {
  const auto within = [](const std::optional<double>& bound_ms, double seconds) {
    return !bound_ms || seconds <= *bound_ms / kMilliseconds;
  };
  return within(objectives.ttft_ms, record.ttft_s) && within(objectives.tpot_ms, tpot_of(record)) &&
         within(objectives.e2el_ms, record.latency_s);
}

int64_t peak_concurrency(std::span<const Record> records) {
  std::vector<std::pair<double, int>> changes;  // At one time those who leave come first.
  for (const Record& record : records) {
    if (!record.answered()) continue;
    changes.emplace_back(record.start_s, 1);
    changes.emplace_back(record.start_s + record.latency_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

double peak_output_throughput(std::span<const Record> records) {
  double begin = 0, end = 0;
  bool any = false;
  for (const Record& record : records) {
    if (!record.answered()) continue;
    begin = any ? std::min(begin, record.start_s) : record.start_s;
    end = any ? std::max(end, record.start_s + record.latency_s) : record.start_s + record.latency_s;
    any = true;
  }
  if (!any) return 0;
  std::vector<int64_t> seconds(static_cast<size_t>(end - begin) + 2);
  for (const Record& record : records) {
    if (!record.answered()) continue;
    double time = record.start_s + record.ttft_s - begin;
    for (size_t chunk = 0; chunk < record.chunk_tokens.size(); ++chunk) {
      if (chunk > 0) time += record.itls_s[chunk - 1];
      // Sums of intervals may end a little after the end.
      seconds[std::min(static_cast<size_t>(time), seconds.size() - 1)] += record.chunk_tokens[chunk];
    }
  }
  return static_cast<double>(*std::max_element(seconds.begin(), seconds.end()));
}

}  // namespace

double Spread::percentile(double percent) const {
  for (const auto& [known, value] : percentiles)
    if (known == percent) return value;
  WEFT_CHECK(false) << "percentile " << percent << " was not asked for";
  return 0;
}

double percentile_of_sorted(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double place = static_cast<double>(sorted.size() - 1) * percent / 100;
  const auto below = static_cast<size_t>(place);
  const double a = sorted[below], b = sorted[std::min(below + 1, sorted.size() - 1)], part = place - std::floor(place);
  return part < 0.5 ? a + (b - a) * part : b - (b - a) * (1 - part);
}

Figures measure(std::span<const Record> records, double duration_s, std::span<const double> percents,
                const Objectives& objectives) {
  WEFT_CHECK_GT(duration_s, 0.0);
  Figures out{.duration_s = duration_s};
  std::vector<double> ttfts, tpots, itls, e2els, queues, e2els_with_queue;
  int64_t good = 0;
  for (const Record& record : records) {
    if (record.state == Record::State::failed) ++out.failed;
    if (record.state == Record::State::interrupted) ++out.interrupted;
    if (!record.answered()) continue;
    ++out.completed;
    out.input_tokens += record.input_tokens;
    out.output_tokens += record.output_tokens;
    if (record.cached_tokens) out.cached_tokens = out.cached_tokens.value_or(0) + *record.cached_tokens;
    ttfts.push_back(record.ttft_s);
    if (record.output_tokens > 1) tpots.push_back(tpot_of(record));
    itls.insert(itls.end(), record.itls_s.begin(), record.itls_s.end());
    e2els.push_back(record.latency_s);
    queues.push_back(record.queue_s());
    e2els_with_queue.push_back(record.latency_s + record.queue_s());
    good += keeps(record, objectives) ? 1 : 0;
  }
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / duration_s; };
  out.request_throughput = per_second(out.completed);
  if (objectives.any()) out.goodput = per_second(good);
  out.output_throughput = per_second(out.output_tokens);
  out.token_throughput = per_second(out.input_tokens + out.output_tokens);
  out.peak_output_throughput = peak_output_throughput(records);
  out.peak_concurrency = peak_concurrency(records);
  out.ttft = spread_of(std::move(ttfts), percents);
  out.tpot = spread_of(std::move(tpots), percents);
  out.itl = spread_of(std::move(itls), percents);
  out.e2el = spread_of(std::move(e2els), percents);
  out.client_queue = spread_of(std::move(queues), percents);
  out.e2el_with_queue = spread_of(std::move(e2els_with_queue), percents);
  return out;
}

}  // namespace weft::bench
