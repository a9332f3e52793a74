#include "server/metrics.h"

#include <algorithm>

#include "server/metric_families.h"

namespace weft {
namespace {

void add_state(size_t state, MetricFamilies& out) {
  for (size_t i = 0; i < kServerStates.size(); ++i)
    out.gauge("weft_server_state", "1 at the state that the server is in.", i == state ? 1 : 0,
              {{"state", std::string(kServerStates[i])}});
}

void add_refusals(const HttpMetrics& http, const EngineMetrics* engine, MetricFamilies& out) {
  const auto add = [&](std::string_view reason, int64_t count) {
    out.counter("weft_requests_refused_total", "Requests that were not taken, by reason.", static_cast<double>(count),
                {{"reason", std::string(reason)}});
  };
  add("queue_requests", engine != nullptr ? engine->refused_queue_requests.value() : 0);
  add("queue_tokens", engine != nullptr ? engine->refused_queue_tokens.value() : 0);
  for (size_t reason = 0; reason < HttpMetrics::kReasons.size(); ++reason)
    add(HttpMetrics::kReasons[reason], http.refusals(reason));
}

void add_http(const HttpMetrics& http, MetricFamilies& out) {
  for (size_t route = 0; route < HttpMetrics::kRoutes.size(); ++route) {
    for (size_t status = 0; status < HttpMetrics::kStatuses.size(); ++status) {
      if (const int64_t count = http.answers(route, status); count > 0)
        out.counter(
            "weft_http_requests_total", "Answered HTTP requests.", static_cast<double>(count),
            {{"route", std::string(HttpMetrics::kRoutes[route])}, {"status", std::to_string(HttpMetrics::kStatuses[status])}});
    }
  }
  out.counter("weft_http_disconnects_total", "Clients that left before their answer was complete.", http.disconnects);
  out.counter("weft_http_body_bytes_total", "Bytes of request bodies.", http.body_bytes);
  out.counter("weft_http_response_bytes_total", "Bytes of answers, with their headers.", http.response_bytes);
  out.gauge("weft_http_connections", "Open connections.", http.connections.value());
  out.counter("weft_http_connections_total", "Connections so far.", http.connections_total);
  out.counter("weft_http_connections_refused_total", "Connections beyond the bound.", http.connections_refused);
}

}  // namespace

std::string_view refusal_reason(const ApiError& error) {
  if (error.code == "queue_full") return "";
  if (error.code == "context_length_exceeded") return error.never_fits ? "never_fits" : "too_long";
  if (error.code == "not_supported" || error.code == "unsupported_parameter" || error.status == 501) return "not_supported";
  if (error.code == "model_not_found") return "unknown_model";
  if (error.code == "loading") return "loading";
  if (error.code == "shutting_down") return "draining";
  if (error.code == "engine_failed") return "engine_failed";
  switch (error.status) {
    case 400:
    case 422:
      return "invalid";
    case 401:
    case 403:
      return "no_key";
    case 404:
      return "unknown_route";
    case 405:
      return "wrong_method";
    case 408:
    case 504:
      return "too_slow";
    case 413:
    case 431:
      return "too_large";
    default:
      return "other";
  }
}

void HttpMetrics::answered(std::string_view route, int status) {
  const auto r = std::find(kRoutes.begin(), kRoutes.end() - 1, route) - kRoutes.begin();
  auto s = std::find(kStatuses.begin(), kStatuses.end(), status);
  if (s == kStatuses.end()) s = std::find(kStatuses.begin(), kStatuses.end(), 500);
  answers_[static_cast<size_t>(r)][static_cast<size_t>(s - kStatuses.begin())].add();
}

void HttpMetrics::refused(std::string_view reason) {
  if (reason.empty()) return;
  const auto at = std::find(kReasons.begin(), kReasons.end() - 1, reason) - kReasons.begin();
  refusals_[static_cast<size_t>(at)].add();
}

std::string metrics_text(const MetricsSource& source) {
  MetricFamilies out;
  const std::string model(source.model_name);
  const EngineMetrics* engine = source.backend == nullptr ? nullptr : &source.backend->metrics();
  if (engine != nullptr) {
    out.set_base({{"model_name", model}, {"engine", "0"}});
    add_vllm_metrics(*engine, source.backend->info(), out);
  }
  out.set_base({{"model_name", model}});
  if (engine != nullptr) add_weft_metrics(*engine, source.backend->info(), out);
  out.gauge("weft_build_info", "The program.", 1, {{"version", std::string(source.version)}, {"compiler", __VERSION__}});
  add_state(source.state, out);
  add_refusals(source.http, engine, out);
  add_http(source.http, out);
  out.set_base({});
  add_process_metrics(out);
  return out.text();
}

}  // namespace weft
