#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/counters.h"
#include "server/backend.h"

namespace weft {

/// What the HTTP side counts. Any thread may count and read.
class HttpMetrics {
 public:
  static constexpr std::array<std::string_view, 18> kRoutes{"/health",
                                                            "/ready",
                                                            "/v1/models",
                                                            "/v1/completions",
                                                            "/v1/chat/completions",
                                                            "/tokenize",
                                                            "/detokenize",
                                                            "/apply-template",
                                                            "/reset_prefix_cache",
                                                            "/metrics",
                                                            "/version",
                                                            "/v1/load",
                                                            "/load",
                                                            "/server_info",
                                                            "/get_server_info",
                                                            "/health_generate",
                                                            "/abort_request",
                                                            "other"};
  static constexpr std::array kStatuses{200, 204, 400, 401, 403, 404, 405, 408, 411,
                                        413, 415, 417, 429, 431, 500, 501, 503, 504};

  /// Routes and statuses that are not in the lists count as "other" and as 500.
  void answered(std::string_view route, int status);
  int64_t answers(size_t route, size_t status) const { return answers_[route][status].value(); }

  Counter disconnects;  ///< clients that left before their answer was complete
  Counter body_bytes;   ///< received
  Gauge connections;    ///< open now
  Counter connections_total, connections_refused;

 private:
  std::array<std::array<Counter, kStatuses.size()>, kRoutes.size()> answers_;
};

/// Everything as Prometheus text: the engine's numbers under the names that vLLM has for them, so that dashboards and
/// autoscalers made for it work unchanged, and Weft's own under weft_. `backend` may be null while the model loads.
std::string metrics_text(const Backend* backend, const HttpMetrics& http, const std::string& model_name);

}  // namespace weft
