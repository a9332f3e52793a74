#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/chat.h"
#include "server/completion.h"
#include "server/drain_rate.h"
#include "server/metrics.h"
#include "server/open_requests.h"
#include "server/trace_context.h"

namespace weft {

/// What a request says before its body.
struct HttpHead {
  std::string method, path;  ///< the path without its query
  std::string authorization, origin, request_id;
  std::string preflight_method, preflight_headers;  ///< Access-Control-Request-Method and -Headers
  std::string id = {};                              ///< ours, of Service::next_id(); `request_id` is the client's own
  std::optional<TraceContext> trace = std::nullopt;

  /// Ours as a span of a trace.
  std::string span_id() const { return id.size() > 16 ? id.substr(id.size() - 16) : id; }
};
/// What tells a request from others in the log. `answer_id` may be empty.
std::vector<log::Field> log_fields(const HttpHead& head, std::string_view answer_id = {});

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string_view refusal = {};  ///< of an error: as refusal_reason() says
  std::string code = {};          ///< of an error, for the log
};

/// The server without sockets: which routes there are, who may use them, and what they answer.
///
/// Thread: any thread may call anything.
class Service {
 public:
  struct Config {
    std::vector<std::string> model_names;      ///< the first one is told, all are accepted
    std::vector<std::string> api_keys;         ///< none: everybody may do everything but administer
    std::vector<std::string> admin_keys = {};  ///< may do everything; none: nobody administers
    std::vector<std::string> allowed_origins;  ///< of web pages; "*": all
    bool open_metrics = false;                 ///< /metrics without a key
    bool log_requests = true;
    bool parse_reasoning = false;  ///< thoughts of chats are told apart from their answers
    std::string version;
    bool log_stats = true;                                                      ///< the line every ten seconds
    std::vector<std::string> quiet_routes = {"/health", "/ready", "/metrics"};  ///< answered without a log line if all is well
    std::chrono::microseconds request_timeout{0};  ///< the longest that a request may ask for; 0: any
    bool strict_fields = false;                    ///< fields that nobody knows are refused
    int max_json_depth = 32;
  };
  explicit Service(Config config);

  // --- what the process does --------------------------------------------------------------------------------------------
  enum class State : uint8_t { loading, ready, draining, failed };  ///< kServerStates has their names
  State state() const;
  /// The model is loaded. Both outlive the service; `tokenizer` and `render` may be null. Call once.
  void open(Backend& backend, const Tokenizer* tokenizer, RenderChat render = nullptr);
  /// So much of the weights is read, 0 to 1.
  void loaded(double share, std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());
  void begin_drain() { draining_ = true; }
  /// Why the engine stopped for ever; empty while it has not.
  std::string failure() const;
  Backend* backend() const { return backend_.load(std::memory_order_acquire); }
  /// To be called a few times a second: what the log says every ten seconds while there is something to do.
  void tick(std::chrono::steady_clock::time_point now);

  // --- what it answers --------------------------------------------------------------------------------------------------
  /// The answer where none of the body is needed, errors included. Quick. Nothing: handle() wants the body.
  std::optional<HttpResponse> answer(const HttpHead& head);
  /// One of the two: an answer, or a completion that is on its way.
  struct Reply {
    HttpResponse now;
    std::unique_ptr<Completion> later = nullptr;
  };
  /// For the requests that answer() left. May take as long as the body is large.
  Reply handle(const HttpHead& head, std::string body);
  HttpResponse error(const ApiError& error) const;
  /// The same, of a request that is not taken: counted by its reason.
  HttpResponse refuse(const ApiError& error);
  /// Headers for web pages of other origins.
  std::vector<std::pair<std::string, std::string>> cors(const HttpHead& head) const;
  /// The name under which a path is counted.
  static std::string_view route(std::string_view path);

  bool needs_key() const { return !config_.api_keys.empty(); }
  /// Whether a request that was answered so gets a line in the log.
  bool logs(std::string_view path, int status) const;
  /// For HttpHead::id: unlike any other.
  std::string next_id();
  HttpMetrics& http() { return http_; }

 private:
  bool authorized(const HttpHead& head) const;
  bool is_admin(const HttpHead& head) const;
  ApiError no_admin(std::string_view what) const;
  Reply complete(CompletionRequest request, Backend& backend, const HttpHead& head, const char* id_prefix);
  Reply reply(const HttpHead& head, const std::string& body, Backend& backend);
  HttpResponse abort(const HttpHead& head, const std::string& body, Backend& backend);
  ApiLimits limits(const Backend& backend) const;
  void require_known(const std::string& model) const;
  HttpResponse tokenize(const std::string& body, Backend& backend) const;
  HttpResponse detokenize(const std::string& body, Backend& backend) const;
  std::optional<HttpResponse> answer_to_head(const HttpHead& head);
  std::optional<HttpResponse> get(const HttpHead& head);
  HttpResponse models(std::string_view only) const;
  HttpResponse info() const;
  HttpResponse load() const;
  int retry_after() const;
  int loading_time_left(std::chrono::steady_clock::time_point now) const;

  const Config config_;
  const int64_t started_s_;
  std::atomic<Backend*> backend_{nullptr};
  std::atomic<const Tokenizer*> tokenizer_{nullptr};
  RenderChat render_;  ///< as backend_, which is stored after it
  std::atomic<bool> draining_{false};
  const uint64_t id_base_;
  std::atomic<uint64_t> ids_{0};
  HttpMetrics http_;
  OpenRequests open_;
  DrainRate drain_rate_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<double> loaded_{0};

  // Of tick(), on one thread.
  std::chrono::steady_clock::time_point last_tick_{};
  int64_t last_prompt_ = 0, last_generated_ = 0, last_queries_ = 0, last_hits_ = 0;
};

}  // namespace weft
