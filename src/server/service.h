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

#include "server/chat.h"
#include "server/completion.h"
#include "server/metrics.h"

namespace weft {

/// What a request says before its body.
struct HttpHead {
  std::string method, path;  ///< the path without its query
  std::string authorization, origin, request_id;
  std::string preflight_method, preflight_headers;  ///< Access-Control-Request-Method and -Headers
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string_view refusal = {};  ///< of an error: as refusal_reason() says
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
  };
  explicit Service(Config config);

  // --- what the process does --------------------------------------------------------------------------------------------
  enum class State : uint8_t { loading, ready, draining, failed };  ///< kServerStates has their names
  State state() const;
  /// The model is loaded. Both outlive the service; `tokenizer` and `render` may be null. Call once.
  void open(Backend& backend, const Tokenizer* tokenizer, RenderChat render = nullptr);
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
  bool logs_requests() const { return config_.log_requests; }
  HttpMetrics& http() { return http_; }

 private:
  bool authorized(const HttpHead& head) const;
  Reply complete(CompletionRequest request, Backend& backend, const char* id_prefix);
  Reply reply(std::string_view path, const std::string& body, Backend& backend);
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
  std::string next_id(const char* prefix);

  const Config config_;
  const int64_t started_s_;
  std::atomic<Backend*> backend_{nullptr};
  std::atomic<const Tokenizer*> tokenizer_{nullptr};
  RenderChat render_;  ///< as backend_, which is stored after it
  std::atomic<bool> draining_{false};
  const uint64_t id_base_;
  std::atomic<uint64_t> ids_{0};
  HttpMetrics http_;

  // Of tick(), on one thread; only the rate is read by others.
  std::chrono::steady_clock::time_point last_tick_{};
  int64_t last_prompt_ = 0, last_generated_ = 0, last_finished_ = 0, last_queries_ = 0, last_hits_ = 0;
  std::atomic<double> finished_per_second_{0};
};

}  // namespace weft
