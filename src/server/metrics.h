#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/counters.h"
#include "server/api_error.h"
#include "server/backend.h"

namespace weft {

/// Service::State in words.
inline constexpr std::array<std::string_view, 4> kServerStates{"loading", "ready", "draining", "failed"};

/// Why a request was refused, as one of HttpMetrics::kReasons; empty where the engine has counted it, as it does where its
/// queue is full.
std::string_view refusal_reason(const ApiError& error);

/// What the HTTP side counts. Any thread may count and read.
class HttpMetrics {
 public:
  static constexpr std::array<std::string_view, 16> kRoutes{
      "/health",   "/ready",      "/v1/models",      "/v1/completions",     "/v1/chat/completions",
      "/tokenize", "/detokenize", "/apply-template", "/reset_prefix_cache", "/metrics",
      "/version",  "/v1/load",    "/load",           "/server_info",        "/get_server_info",
      "other"};
  static constexpr std::array kStatuses{200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 415, 417, 429, 431, 500, 501, 503};
  static constexpr std::array<std::string_view, 14> kReasons{
      "too_long", "never_fits", "invalid",  "not_supported", "unknown_model", "unknown_route", "wrong_method",
      "no_key",   "too_large",  "too_slow", "loading",       "draining",      "engine_failed", "other"};

  /// Routes and statuses that are not in the lists count as "other" and as 500.
  void answered(std::string_view route, int status);
  int64_t answers(size_t route, size_t status) const { return answers_[route][status].value(); }
  /// Nothing for an empty reason.
  void refused(std::string_view reason);
  int64_t refusals(size_t reason) const { return refusals_[reason].value(); }

  Counter disconnects;     ///< clients that left before their answer was complete
  Counter body_bytes;      ///< received
  Counter response_bytes;  ///< sent, with their headers
  Gauge connections;       ///< open now
  Counter connections_total, connections_refused;

 private:
  std::array<std::array<Counter, kStatuses.size()>, kRoutes.size()> answers_;
  std::array<Counter, kReasons.size()> refusals_;
};

/// What /metrics tells of.
struct MetricsSource {
  const Backend* backend = nullptr;  ///< null while the model loads
  const HttpMetrics& http;
  std::string_view model_name, version;
  size_t state = 0;  ///< in kServerStates
};

/// Everything as Prometheus text: the engine's numbers under the names that vLLM has for them, so that dashboards and
/// autoscalers made for it work unchanged, Weft's own under weft_, and the process's under the names that all clients of
/// Prometheus have for them. docs/metrics.md describes each.
std::string metrics_text(const MetricsSource& source);

}  // namespace weft
