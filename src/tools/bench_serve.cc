#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "bench_client/load_run.h"
#include "bench_client/plot.h"
#include "bench_client/report.h"
#include "tools/bench_settings.h"
#include "tools/commands.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using bench::Figures;
using bench::LoadResult;
using bench::LoadSettings;
using bench::Workload;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kAskTimeout = 30;
constexpr auto kBetweenTries = std::chrono::seconds(1);
constexpr double kPlotPercentile = 99;
constexpr uint64_t kWarmUpIndex = 1'000'000;  // beyond those of a sweep's loads

/// A run under one load.
struct Point {
  double rate;
  std::optional<int64_t> max_concurrency;
};

/// The names of the model: in requests, and in the results. Asks the server, which must answer something.
void find_model(BenchSettings& settings) {
  bench::HttpAnswer answer;
  try {
    answer = bench::ask(settings.server.address, {.method = "GET", .path = "/v1/models", .headers = settings.server.headers},
                        kAskTimeout);
  } catch (const SystemError& error) {
    throw SystemError("no server to benchmark: {}. Start one, or name it by --base-url, or --host and --port", error.what());
  }
  if (settings.model.empty() && settings.served_name.empty()) {
    const auto parsed = nlohmann::json::parse(answer.body, nullptr, false);
    const auto first = nlohmann::json::json_pointer("/data/0/id");
    if (answer.status != 200 || !parsed.is_object() || !parsed.contains(first) || !parsed[first].is_string())
      throw SystemError("the server does not tell its models (GET /v1/models is HTTP {}): name one by --model", answer.status);
    settings.model = parsed[first].get<std::string>();
  }
  if (settings.model.empty()) settings.model = settings.served_name;
  settings.form.model = settings.served_name.empty() ? settings.model : settings.served_name;
}

/// Made-up prompts are new ones for every load of a sweep: the server's cache shall not know them from the load before.
Workload load_data(const BenchSettings& settings, uint64_t load_index) {
  const BenchSettings::Data& data = settings.data;
  const uint64_t seed = settings.load.seed + (data.name == "sharegpt" ? 0 : load_index);
  const auto tokenizer = data.tokenizer.empty() ? nullptr : Tokenizer::load(data.tokenizer);
  if (data.name == "sharegpt")
    return bench::sharegpt_workload(bench::read_dataset(data.path), data.sharegpt, *tokenizer, seed, data.path);
  const bench::TokenSource source = tokenizer != nullptr ? bench::TokenSource(*tokenizer) : bench::TokenSource(data.vocab_size);
  Workload out = data.name == "timed_trace"
                     ? bench::trace_workload(bench::read_dataset(data.path), data.trace, source, seed, data.path)
                 : data.name == "random" ? bench::random_workload(data.random, source, seed)
                                         : bench::prefix_repetition_workload(data.prefix_repetition, source, seed);
  if (out.inexact > 0)
    log::warn("{} of {} prompts have another number of tokens than asked for: their text is encoded otherwise", out.inexact,
              out.requests());
  return out;
}

std::vector<double> starts_of(const Workload& workload, const BenchSettings::Load& load, double rate) {
  if (!load.self_timed) {
    bench::ArrivalPlan plan = load.arrivals;
    plan.rate = rate;
    return bench::arrival_times(static_cast<int64_t>(workload.conversations.size()), plan, load.seed);
  }
  std::vector<double> out;
  for (const bench::Conversation& conversation : workload.conversations) out.push_back(conversation.start_s.value_or(0));
  return out;
}

/// "12/1000 requests, 8 running, 1 failed" on one line, where somebody sees it.
class ProgressLine {
 public:
  explicit ProgressLine(bool wanted) : shown_(wanted && ::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  void operator()(const bench::LoadProgress& progress) const {
    if (!shown_) return;
    fmt::print(stderr, "\r\x1b[K{}/{} requests, {} running{}", progress.done, progress.requests, progress.running,
               progress.failed > 0 ? fmt::format(", {} failed", progress.failed) : "");
    std::fflush(stderr);
  }

 private:
  const bool shown_;
};

LoadSettings load_settings_of(const BenchSettings& settings) {
  LoadSettings out;
  out.server = settings.server.address;
  out.endpoint = settings.server.endpoint;
  out.headers = settings.server.headers;
  out.form = settings.form;
  out.seed = settings.load.seed;
  return out;
}

/// The first request, `times` times at once, beside the benchmark.
LoadResult run_first(const BenchSettings& settings, const Workload& workload, int64_t times) {
  Workload first;
  first.conversations.resize(static_cast<size_t>(times));
  for (auto& conversation : first.conversations) conversation.turns = {workload.conversations.front().turns.front()};
  LoadSettings load = load_settings_of(settings);
  load.max_concurrency = settings.load.concurrencies.back();
  LoadResult out = run_load(load, first, std::vector<double>(first.conversations.size()));
  if (out.interrupted) throw SystemError("interrupted before the benchmark began");
  return out;
}

void wait_until_ready(const BenchSettings& settings, const Workload& workload) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(settings.server.ready_timeout_s);
  while (true) {
    const LoadResult result = run_first(settings, workload, 1);
    if (result.records.front().answered()) return;
    if (Clock::now() + kBetweenTries > deadline)
      throw SystemError("the server has not answered a first request within {} s (--ready-check-timeout-sec): {}",
                        settings.server.ready_timeout_s, result.records.front().error);
    std::this_thread::sleep_for(kBetweenTries);
  }
}

/// As find_model(), but waits for a server that is only starting.
void find_model_in_time(BenchSettings& settings) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(settings.server.ready_timeout_s);
  while (true) {
    try {
      return find_model(settings);
    } catch (const SystemError&) {
      if (Clock::now() + kBetweenTries > deadline) throw;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

fs::path result_path(const BenchSettings& settings, const Point& point, const std::string& date) {
  const BenchSettings::Results& results = settings.results;
  std::string name = results.file;
  if (name.empty()) {
    const std::string bound = point.max_concurrency ? fmt::format("-concurrency{}", *point.max_concurrency) : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json", results.label, point.rate, bound, fs::path(settings.model).filename().string(),
                       date);
  }
  return fs::path(results.folder) / name;
}

ordered_json result_json(const BenchSettings& settings, const ordered_json& figures, int64_t requests,
                         const std::string& date) {
  ordered_json out;
  out["date"] = date;
  out["endpoint_type"] = settings.server.backend;
  out["backend"] = settings.server.backend;
  out["label"] = settings.results.label;
  out["model_id"] = settings.model;
  out["tokenizer_id"] = settings.data.tokenizer.empty() ? ordered_json() : ordered_json(settings.data.tokenizer);
  out["num_prompts"] = requests;
  for (const auto& [name, value] : settings.results.metadata) out[name] = value;
  out.update(figures);
  return out;
}

void write_text(const fs::path& path, const std::string& text, bool append) {
  std::error_code error;
  const bool goes_on = append && fs::file_size(path, error) > 0 && !error;
  std::ofstream file(path, append ? std::ios::app : std::ios::trunc);
  file << (goes_on ? "\n" : "") << text;
  file.flush();
  if (!file) throw SystemError("cannot write {}", path.string());
}

/// Fails before the work rather than after it.
void prepare_results(const BenchSettings::Results& results) {
  std::error_code error;
  if (!results.folder.empty()) fs::create_directories(results.folder, error);
  if (error) throw UserError("--result-dir {} cannot be made: {}", results.folder, error.message());
  const fs::path folder = fs::path(results.plot).parent_path();
  if (!folder.empty() && !fs::is_directory(folder))
    throw UserError("--plot is in a folder that does not exist: {}", results.plot);
}

class Benchmark {
 public:
  explicit Benchmark(const Invocation& invocation)
      : settings_(bench_settings(invocation, [](const char* name) { return std::getenv(name); })) {
    prepare_results(settings_.results);
  }

  void run() {
    find_model_in_time(settings_);
    warm_up();
    uint64_t index = 0;
    for (const double rate : settings_.load.rates)
      for (const auto& bound : settings_.load.concurrencies)
        if (!interrupted_) run_point({rate, bound}, load_data(settings_, index++));
    if (!settings_.results.plot.empty() && !plot_.points.empty()) write_plot();
    if (interrupted_) throw SystemError("interrupted: {} of {} requests were answered", answered_, sent_);
    if (answered_ == 0) throw SystemError("no request was answered");
  }

 private:
  /// With a prompt of its own, so that the benchmark finds nothing of its prompts in a cache.
  void warm_up() {
    if (settings_.server.ready_timeout_s == 0 && settings_.load.warmups == 0) return;
    const Workload workload = load_data(settings_, kWarmUpIndex);
    if (settings_.server.ready_timeout_s > 0) wait_until_ready(settings_, workload);
    if (settings_.load.warmups == 0) return;
    const LoadResult warm = run_first(settings_, workload, settings_.load.warmups);
    if (const std::string failures = bench::failures_text(warm.records); !failures.empty())
      log::warn("warming up: {}", failures);
  }

  void run_point(const Point& point, const Workload& workload) {
    const std::string date =
        fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
    LoadSettings load = load_settings_of(settings_);
    load.max_concurrency = point.max_concurrency;
    load.request_id_prefix = settings_.load.request_id_prefix;
    LoadResult result;
    {
      const ProgressLine line(settings_.results.progress);
      load.progress = [&line](const bench::LoadProgress& progress) { line(progress); };
      result = run_load(load, workload, starts_of(workload, settings_.load, point.rate));
    }
    interrupted_ = result.interrupted;
    const Figures figures =
        measure(result.records, std::max(result.duration_s, 1e-9), settings_.results.percentiles, settings_.results.objectives);
    answered_ += figures.completed;
    sent_ += workload.requests();

    const bench::ReportForm form{
        .request_rate = settings_.load.self_timed ? std::numeric_limits<double>::infinity() : point.rate,
        .burstiness = settings_.load.arrivals.burstiness,
        .max_concurrency = point.max_concurrency,
        .metrics = settings_.results.metrics};
    std::fputs(report_text(figures, form).c_str(), stdout);
    std::fflush(stdout);
    std::fputs(bench::failures_text(result.records).c_str(), stderr);
    if (settings_.results.save || settings_.results.append) {
      const ordered_json figures_json = report_json(figures, form, result.records, settings_.results.detailed);
      const ordered_json json = result_json(settings_, figures_json, workload.requests(), date);
      const bool goes_on = settings_.results.append || (has_saved_ && !settings_.results.file.empty());
      write_text(result_path(settings_, point, date), json.dump(-1, ' ', false, ordered_json::error_handler_t::replace),
                 goes_on);
      has_saved_ = true;
    }
    if (figures.completed > 0) add_to_plot(point, result);
  }

  void add_to_plot(const Point& point, const LoadResult& result) {
    const std::vector<double> percentiles = {kPlotPercentile};
    const Figures figures = measure(result.records, result.duration_s, percentiles);
    const bool is_over_concurrency = settings_.load.concurrencies.size() > 1;
    plot_.load_name = is_over_concurrency ? "requests at once" : "requests per second";
    plot_.points.push_back({.load = is_over_concurrency ? static_cast<double>(*point.max_concurrency) : point.rate,
                            .ttft_median_ms = figures.ttft.median,
                            .ttft_p99_ms = figures.ttft.percentile(kPlotPercentile),
                            .tpot_median_ms = figures.tpot.median,
                            .tpot_p99_ms = figures.tpot.percentile(kPlotPercentile),
                            .output_throughput = figures.output_throughput});
  }

  void write_plot() {
    plot_.title = "Latency against load: " + settings_.model;
    plot_.subtitle =
        fmt::format("{}, {} requests for each load", settings_.data.name, sent_ / static_cast<int64_t>(plot_.points.size()));
    write_text(settings_.results.plot, plot_svg(plot_), false);
  }

  BenchSettings settings_;
  bench::LatencyPlot plot_;
  bool has_saved_ = false, interrupted_ = false;
  int64_t answered_ = 0, sent_ = 0;
};

}  // namespace

void run_bench_serve(const Invocation& invocation) { Benchmark(invocation).run(); }

}  // namespace weft
