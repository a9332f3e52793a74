#include "server/service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "server/token_api.h"

namespace weft {
namespace {

using ordered_json = nlohmann::ordered_json;

constexpr std::string_view kBearer = "bearer ";           // in any case
constexpr auto kProbeTimeout = std::chrono::seconds(20);  // of /health_generate
constexpr size_t kMostAborted = 1024, kMaxIdBytes = 512;
constexpr int kGuess_s = 5;  // that loading takes, while nothing is known of it
constexpr size_t kMostTokenTexts = size_t{1} << 20;

enum class Access : uint8_t { open, key, admin };

struct Route {
  std::string_view path, method;
  Access access = Access::key;
};
constexpr Route kRoutes[] = {
    {"/health", "GET", Access::open},
    {"/ready", "GET", Access::open},
    {"/health_generate", "GET"},
    {"/v1/models", "GET"},
    {"/v1/completions", "POST"},
    {"/v1/chat/completions", "POST"},
    {"/tokenize", "POST"},
    {"/detokenize", "POST"},
    {"/apply-template", "POST"},
    {"/abort_request", "POST"},
    {"/reset_prefix_cache", "POST", Access::admin},
    {"/metrics", "GET"},
    {"/version", "GET"},
    {"/v1/load", "GET"},
    {"/load", "GET"},
    {"/server_info", "GET"},
    {"/get_server_info", "GET"},
};

/// Routes that clients know from elsewhere, and what to do instead.
struct MissingRoute {
  std::string_view path;
  int status;
  std::string_view instead;
};
constexpr MissingRoute kMissing[] = {
    {"/v1/responses", 501, "use /v1/chat/completions"},
    {"/v1/messages", 501, "use /v1/chat/completions"},
    {"/v1/embeddings", 501, "this server generates text only; use a server for embedding models"},
    {"/v1/score", 501, "this server generates text only; /v1/completions with echo and logprobs scores a text"},
    {"/score", 501, "this server generates text only; /v1/completions with echo and logprobs scores a text"},
    {"/v1/rerank", 501, "this server generates text only; use a server for ranking models"},
    {"/rerank", 501, "this server generates text only; use a server for ranking models"},
    {"/pooling", 501, "this server generates text only; use a server for embedding models"},
    {"/classify", 501, "this server generates text only; use a server for classification models"},
    {"/infill", 501, "put the text before and after the gap into a prompt of /v1/completions"},
    {"/generate", 501, "use /v1/completions"},
    {"/invocations", 501, "use /v1/completions or /v1/chat/completions"},
    {"/v1/audio/transcriptions", 501, "this server takes text and token ids only"},
    {"/v1/audio/translations", 501, "this server takes text and token ids only"},
    {"/v1/images/generations", 501, "this server generates text only"},
    {"/v1/load_lora_adapter", 501, "merge the adapter into the checkpoint"},
    {"/v1/unload_lora_adapter", 501, "merge the adapter into the checkpoint"},
    {"/sleep", 501, "stop the server to free its memory"},
    {"/wake_up", 501, "stop the server to free its memory"},
    {"/start_profile", 501, "use perf, and weft replay for single steps"},
    {"/stop_profile", 501, "use perf, and weft replay for single steps"},
};

/// The route itself, or one below it, as /v1/responses/ID.
const MissingRoute* find_missing(std::string_view path) {
  const auto it = std::find_if(std::begin(kMissing), std::end(kMissing), [&](const MissingRoute& route) {
    return path.starts_with(route.path) && (path.size() == route.path.size() || path[route.path.size()] == '/');
  });
  return it == std::end(kMissing) ? nullptr : it;
}

const Route* find_route(std::string_view path) {
  if (path.starts_with("/v1/models/")) path = "/v1/models";
  const auto it = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return r.path == path; });
  return it == std::end(kRoutes) ? nullptr : it;
}

/// Takes the same time wherever the two differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned different = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i)
    different |= static_cast<unsigned char>(secret[i]) ^ static_cast<unsigned char>(i < given.size() ? given[i] : 0);
  return different == 0;
}

HttpResponse json_response(const ordered_json& value, int status = 200) {
  return {.status = status, .body = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

/// Requests that have ended, choice by choice, as they are counted while they wait.
int64_t ended(const EngineMetrics& m) {
  return m.finished_stop.value() + m.finished_length.value() + m.finished_abort.value() + m.finished_timeout.value() +
         m.finished_error.value();
}

uint64_t random_base() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

/// Names that a client made up, for the log.
std::string quoted_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) quoted.push_back(as_quoted(names[i]));
  return fmt::format("{}{}", fmt::join(quoted, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

/// The key of "Authorization: Bearer KEY", or nothing.
std::string_view key_of(const HttpHead& head) {
  const std::string_view given = head.authorization;
  const bool bearer = given.size() >= kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), given.begin(),
                                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + ('a' - 'A') : b); });
  return bearer ? given.substr(kBearer.size()) : std::string_view();
}

bool is_among(std::string_view given, const std::vector<std::string>& keys) {
  bool known = false;
  for (const std::string& key : keys) known |= same_secret(given, key);
  return known;
}

/// Whose a request is. Without keys everybody's.
std::string owner_of(const HttpHead& head, const Service::Config& config) {
  return config.api_keys.empty() ? std::string() : std::string(key_of(head));
}

/// A one-token answer to anything, to see whether tokens come.
CompletionRequest probe() {
  CompletionRequest out;
  out.prompts.push_back({.is_text = false, .text = {}, .ids = {0}});
  out.base.max_tokens = 1;
  out.max_tokens_given = true;
  out.base.sampling.temperature = 0;
  out.base.timeout_us = std::chrono::microseconds(kProbeTimeout).count();
  return out;
}

/// A header value of the client's that may go into a header of ours.
bool is_plain(std::string_view text) {
  return text.size() <= 1024 && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

std::vector<log::Field> log_fields(const HttpHead& head, std::string_view answer_id) {
  std::vector<log::Field> out;
  out.emplace_back("request_id", answer_id.empty() ? "req-" + head.id : std::string(answer_id));
  if (!head.request_id.empty()) out.emplace_back("client_request_id", head.request_id);
  if (head.trace) {
    out.emplace_back("trace_id", head.trace->trace_id);
    out.emplace_back("span_id", head.span_id());
  }
  return out;
}

Service::Service(Config config) : config_(std::move(config)), started_s_(std::time(nullptr)), id_base_(random_base()) {
  WEFT_CHECK(!config_.model_names.empty());
}

Service::State Service::state() const {
  const Backend* backend = this->backend();
  if (backend != nullptr && !backend->failure().empty()) return State::failed;
  if (draining_) return State::draining;
  return backend == nullptr ? State::loading : State::ready;
}

void Service::open(Backend& backend, const Tokenizer* tokenizer, RenderChat render) {
  render_ = std::move(render);
  tokenizer_.store(tokenizer, std::memory_order_release);
  backend_.store(&backend, std::memory_order_release);
}

std::string Service::failure() const {
  const Backend* backend = this->backend();
  return backend == nullptr ? std::string() : backend->failure();
}

void Service::loaded(double share, std::chrono::steady_clock::time_point now) {
  loaded_ = now > began_ ? share / std::chrono::duration<double>(now - began_).count() : 0;
}

/// Seconds, by the pace so far.
int Service::loading_time_left(std::chrono::steady_clock::time_point now) const {
  constexpr double kMost = DrainRate::kMostSeconds;
  const double per_second = loaded_, passed = std::chrono::duration<double>(now - began_).count();
  return per_second > 0 ? static_cast<int>(std::clamp(std::ceil(1 / per_second - passed), 1.0, kMost)) : kGuess_s;
}

void Service::tick(std::chrono::steady_clock::time_point now) {
  using namespace std::chrono_literals;
  const Backend* backend = this->backend();
  if (backend == nullptr) return;
  const EngineMetrics& m = backend->metrics();
  const double running = m.running.value(), waiting = m.waiting.value();
  drain_rate_.observe(now, ended(m), running + waiting > 0);
  if (now - last_tick_ < 10s) return;
  const double seconds = std::chrono::duration<double>(now - last_tick_).count();
  const bool first = last_tick_ == std::chrono::steady_clock::time_point{};
  last_tick_ = now;
  const auto since = [](int64_t& last, int64_t value) { return static_cast<double>(value - std::exchange(last, value)); };
  const double prompt = since(last_prompt_, m.prompt_tokens.value()),
               generated = since(last_generated_, m.generated_tokens.value());
  const double queries = since(last_queries_, m.prefix_queries.value()), hits = since(last_hits_, m.prefix_hits.value());
  if (first || !config_.log_stats || prompt + generated + running + waiting == 0) return;
  log::info("prompt {:.1f} tokens/s, generation {:.1f} tokens/s, running {}, waiting {}, KV usage {:.1f}%, prefix hits {:.1f}%",
            prompt / seconds, generated / seconds, running, waiting, 100 * m.kv_usage.value(),
            queries > 0 ? 100 * hits / queries : 0);
}

bool Service::logs(std::string_view path, int status) const {
  if (!config_.log_requests) return false;
  const auto& quiet = config_.quiet_routes;
  return status >= 400 || std::find(quiet.begin(), quiet.end(), route(path)) == quiet.end();
}

std::string_view Service::route(std::string_view path) {
  const Route* route = find_route(path);
  return route == nullptr ? "other" : route->path;
}

bool Service::authorized(const HttpHead& head) const {
  const Route* route = find_route(head.path);
  const Access access = route == nullptr                                    ? Access::key
                        : config_.open_metrics && route->path == "/metrics" ? Access::open
                                                                            : route->access;
  if (access == Access::open || (access == Access::key && config_.api_keys.empty())) return true;
  const bool admin = is_admin(head);
  return access == Access::admin ? admin : is_among(key_of(head), config_.api_keys) || admin;
}

bool Service::is_admin(const HttpHead& head) const { return is_among(key_of(head), config_.admin_keys); }

ApiError Service::no_admin(std::string_view what) const {
  const bool has_keys = !config_.admin_keys.empty();
  return ApiError(has_keys ? 401 : 403,
                  fmt::format("{} needs a key of --admin-api-key{}", what, has_keys ? "" : ", of which this server has none"),
                  {}, "admin_key_needed");
}

HttpResponse Service::error(const ApiError& error) const {
  HttpResponse out{.status = error.status, .body = error_json(error)};
  out.refusal = refusal_reason(error);
  out.code = error.code.empty() ? "refused" : error.code;
  if (error.status == 429) out.headers.emplace_back("Retry-After", std::to_string(retry_after()));
  if (error.code == "loading")
    out.headers.emplace_back("Retry-After", std::to_string(loading_time_left(std::chrono::steady_clock::now())));
  if (error.code == "too_many_bodies") out.headers.emplace_back("Retry-After", "1");
  // OpenAI's clients would ask again, as often as they may.
  if (error.code == "deadline_exceeded") out.headers.emplace_back("X-Should-Retry", "false");
  if (error.status == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer");
  return out;
}

HttpResponse Service::refuse(const ApiError& error) {
  HttpResponse out = this->error(error);
  http_.refused(out.refusal);
  return out;
}

std::vector<std::pair<std::string, std::string>> Service::cors(const HttpHead& head) const {
  const auto& allowed = config_.allowed_origins;
  if (head.origin.empty() || !is_plain(head.origin)) return {};
  if (std::find(allowed.begin(), allowed.end(), "*") != allowed.end()) return {{"Access-Control-Allow-Origin", "*"}};
  if (std::find(allowed.begin(), allowed.end(), head.origin) == allowed.end()) return {};
  return {{"Access-Control-Allow-Origin", head.origin}, {"Vary", "Origin"}};
}

std::optional<HttpResponse> Service::answer(const HttpHead& head) {
  std::optional<HttpResponse> out = answer_to_head(head);
  if (out) http_.refused(out->refusal);
  return out;
}

std::optional<HttpResponse> Service::answer_to_head(const HttpHead& head) {
  // A browser asks so before a request, without the key; the answer says nothing but who may ask.
  if (head.method == "OPTIONS" && !head.preflight_method.empty()) {
    HttpResponse out{.status = 204, .body = {}};
    out.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"}, {"Access-Control-Max-Age", "600"}};
    if (!head.preflight_headers.empty() && is_plain(head.preflight_headers))
      out.headers.emplace_back("Access-Control-Allow-Headers", head.preflight_headers);
    return out;
  }
  if (!authorized(head)) {
    const Route* secret = find_route(head.path);
    if (secret != nullptr && secret->access == Access::admin) return error(no_admin(secret->path));
    return error(ApiError(401, "the API key is missing or wrong: send Authorization: Bearer KEY", {}, "invalid_api_key"));
  }
  const Route* route = find_route(head.path);
  if (route == nullptr) {
    if (const MissingRoute* missing = find_missing(head.path); missing != nullptr)
      return error(ApiError(missing->status, fmt::format("{} is not supported: {}", missing->path, missing->instead), {},
                            "not_supported"));
    return error(ApiError(
        404,
        fmt::format("there is no {}: POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize, "
                    "/apply-template, /abort_request, GET /v1/models, /health, /ready, /metrics, /version, /server_info or "
                    "/v1/load",
                    as_quoted(head.path)),
        {}, "not_found"));
  }
  const bool is_get = head.method == "GET" || head.method == "HEAD";
  const std::string allow = route->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  if (head.method == "OPTIONS") return HttpResponse{.status = 204, .body = {}, .headers = {{"Allow", allow}}};
  if (is_get != (route->method == "GET") || (!is_get && head.method != route->method)) {
    HttpResponse out = error(ApiError(
        405, fmt::format("{} takes {}, not {}", route->path, route->method, as_quoted(head.method)), {}, "method_not_allowed"));
    out.headers.emplace_back("Allow", allow);
    return out;
  }
  if (is_get && route->path != "/health_generate") return get(head);
  switch (state()) {
    case State::ready:
      return std::nullopt;
    case State::loading:
      return error(ApiError(503, "the model is loading", {}, "loading"));
    case State::draining:
      if (route->path == "/abort_request") return std::nullopt;  // It helps to come to an end.
      return error(ApiError(503, "the server is shutting down", {}, "shutting_down"));
    case State::failed:
      return error(ApiError(503, "the engine has failed: " + failure(), {}, "engine_failed"));
  }
  return std::nullopt;
}

std::optional<HttpResponse> Service::get(const HttpHead& head) {
  const State now = state();
  if (head.path == "/health") {
    if (now == State::failed) return error(ApiError(503, "the engine has failed: " + failure(), {}, "engine_failed"));
    return json_response({{"status", "ok"}});
  }
  if (head.path == "/ready") {
    return json_response({{"status", kServerStates[static_cast<size_t>(now)]}}, now == State::ready ? 200 : 503);
  }
  if (head.path == "/version") return json_response({{"version", config_.version}});
  if (head.path == "/metrics")
    return HttpResponse{.body = metrics_text({.backend = backend(),
                                              .http = http_,
                                              .model_name = config_.model_names.front(),
                                              .version = config_.version,
                                              .state = static_cast<size_t>(now)}),
                        .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  if (backend() == nullptr) return error(ApiError(503, "the model is loading", {}, "loading"));
  if (head.path == "/server_info" || head.path == "/get_server_info") return info();
  if (head.path == "/v1/load" || head.path == "/load") return load();
  return models(std::string_view(head.path).substr(std::string_view("/v1/models").size()));
}

HttpResponse Service::models(std::string_view only) const {
  if (!only.empty()) only.remove_prefix(1);
  ordered_json list = ordered_json::array();
  for (const std::string& name : config_.model_names) {
    if (!only.empty() && name != only) continue;
    ordered_json model;
    model["id"] = name;
    model["object"] = "model";
    model["created"] = started_s_;
    model["owned_by"] = "weft";
    model["root"] = config_.model_names.front();
    model["parent"] = nullptr;
    model["max_model_len"] = backend()->info().max_model_len;
    model["kv_capacity_tokens"] = backend()->info().capacity_tokens;
    if (!only.empty()) return json_response(model);
    list.push_back(std::move(model));
  }
  if (!only.empty())
    return error(ApiError(404, fmt::format("there is no model {}: {}", as_quoted(only), fmt::join(config_.model_names, ", ")),
                          {}, "model_not_found"));
  return json_response({{"object", "list"}, {"data", list}});
}

HttpResponse Service::info() const {
  const BackendInfo& info = backend()->info();
  ordered_json out;
  out["version"] = config_.version;
  out["models"] = config_.model_names;
  out["architecture"] = info.architecture;
  out["dtype"] = info.dtype;
  out["kv_cache_dtype"] = info.kv_dtype;
  out["vocab_size"] = info.vocab;
  out["has_tokenizer"] = tokenizer_.load() != nullptr;
  out["has_chat_template"] = render_ != nullptr;
  out["max_model_len"] = info.max_model_len;
  out["kv_capacity_tokens"] = info.capacity_tokens;
  out["kv_blocks"] = info.blocks;
  out["kv_block_tokens"] = info.block_tokens;
  out["tensor_parallel_size"] = info.tp;
  out["decode_context_parallel_size"] = info.dcp;
  out["cp_kv_cache_interleave_size"] = info.interleave;
  out["block_size"] = info.block_size;
  return json_response(out);
}

HttpResponse Service::load() const {
  const EngineMetrics& m = backend()->metrics();
  ordered_json out;
  out["running"] = static_cast<int64_t>(m.running.value());
  out["waiting"] = static_cast<int64_t>(m.waiting.value());
  out["kv_blocks_held"] = static_cast<int64_t>(m.blocks_held.value());
  out["kv_blocks"] = backend()->info().blocks;
  out["kv_usage"] = m.kv_usage.value();
  return json_response(out);
}

int Service::retry_after() const {
  const Backend* backend = this->backend();
  return drain_rate_.seconds_for(backend == nullptr ? 0 : backend->metrics().waiting.value());
}

std::string Service::next_id() { return fmt::format("{:016x}{:08x}", id_base_, ids_++); }

ApiLimits Service::limits(const Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  ApiLimits out;
  out.vocab = tokenizer == nullptr ? backend.info().vocab : std::min<int64_t>(backend.info().vocab, tokenizer->vocab_size());
  out.max_depth = config_.max_json_depth;
  return out;
}

void Service::require_known(const std::string& model) const {
  const auto& names = config_.model_names;
  if (!model.empty() && std::find(names.begin(), names.end(), model) == names.end())
    throw ApiError(404, fmt::format("there is no model {}: {}", as_quoted(model), fmt::join(names, ", ")), "model",
                   "model_not_found");
}

Service::Reply Service::complete(CompletionRequest request, Backend& backend, const HttpHead& head, const char* id_prefix) {
  CompletionHead answer{.id = fmt::format("{}-{}", id_prefix, head.id.empty() ? next_id() : head.id),
                        .model = request.model.empty() ? config_.model_names.front() : request.model,
                        .created = static_cast<int64_t>(std::time(nullptr))};
  if (!request.ignored.empty()) {
    if (config_.strict_fields)
      throw ApiError(400, fmt::format("unknown fields: {}", quoted_names(request.ignored)), request.ignored.front(),
                     "unknown_parameter");
    if (log::should_log(log::Level::debug))
      log::event(log::Level::debug, "fields ignored: " + quoted_names(request.ignored), log_fields(head, answer.id));
  }
  const int64_t most_us = config_.request_timeout.count();
  int64_t& timeout_us = request.base.timeout_us;
  if (most_us > 0) timeout_us = timeout_us > 0 ? std::min(timeout_us, most_us) : most_us;

  std::vector<std::string> names = {answer.id};
  for (const std::string& name : {head.request_id, request.client_id})
    if (!name.empty()) names.push_back(name);
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  // Made before the reply: GCC 12 destroys the members of an aggregate twice where one of them throws.
  auto completion = std::make_unique<Completion>(std::move(request), backend, tokenizer, std::move(answer));
  completion->set_open(open_.enter(std::move(names), owner_of(head, config_), completion->engine_ids()));
  return {.now = {}, .later = std::move(completion)};
}

HttpResponse Service::abort(const HttpHead& head, const std::string& body, Backend& backend) {
  BodyFields fields(read_body(body, limits(backend), "").fields);
  const bool all = fields.flag("abort_all", false);
  std::vector<std::string> names;
  for (const char* field : {"rid", "request_id", "request_ids"}) {
    auto value = fields.take(field);
    if (!value) continue;
    if (!value->is_array()) *value = nlohmann::json::array({*value});
    if (value->size() > kMostAborted) refuse_field(field, fmt::format("at most {} ids", kMostAborted), shown_value(*value));
    for (const nlohmann::json& name : *value) names.push_back(BodyFields::as_text(field, name, kMaxIdBytes));
  }
  if (!all && names.empty())
    throw ApiError(400, "rid is missing: the id of an answer, or the X-Request-Id it was sent with", "rid");
  if (all && !is_admin(head)) throw no_admin("abort_all");
  std::vector<uint64_t> ids = all ? open_.abort_all() : std::vector<uint64_t>();
  for (const std::string& name : names) {
    const auto more = open_.abort(name, owner_of(head, config_), is_admin(head));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  for (const uint64_t id : ids) backend.cancel(id);
  return json_response({{"aborted", ids.size()}});
}

HttpResponse Service::tokenize(const std::string& body, Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  if (tokenizer == nullptr)
    throw ApiError(400, "the model folder has no tokenizer.json or tokenizer.model", {}, "no_tokenizer");
  const TokenizeRequest request = parse_tokenize(body, limits(backend));
  require_known(request.model);
  const PromptInput prompt = request.chat ? chat_prompt(*request.chat, render_, tokenizer)
                                          : PromptInput{.is_text = true, .text = *request.prompt, .ids = {}};
  const std::vector<int32_t> ids = tokenizer->encode(
      prompt.text, {.add_special_tokens = request.add_special_tokens.value_or(!request.chat.has_value()), .mark = prompt.mark});
  if (request.return_token_strs && ids.size() > kMostTokenTexts)
    throw ApiError(400, fmt::format("return_token_strs is for at most {} tokens: the text has {}", kMostTokenTexts, ids.size()),
                   "return_token_strs");
  std::vector<std::string> texts;
  if (request.return_token_strs)
    for (const int32_t id : ids) texts.push_back(tokenizer->decode_further({&id, 1}, false));
  return {.body = tokenize_json(ids, request.return_token_strs ? &texts : nullptr, backend.info().max_model_len)};
}

HttpResponse Service::detokenize(const std::string& body, Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  if (tokenizer == nullptr)
    throw ApiError(400, "the model folder has no tokenizer.json or tokenizer.model", {}, "no_tokenizer");
  const DetokenizeRequest request = parse_detokenize(body, limits(backend));
  require_known(request.model);
  return {.body = prompt_json(tokenizer->decode(request.tokens, false))};
}

Service::Reply Service::reply(const HttpHead& head, const std::string& body, Backend& backend) {
  const std::string& path = head.path;
  if (path == "/v1/chat/completions") {
    ChatRequest request = parse_chat(body, limits(backend));
    require_known(request.answer.model);
    PromptInput prompt = chat_prompt(request.chat, render_, tokenizer_.load(std::memory_order_acquire));
    request.answer.reasoning = config_.parse_reasoning;
    request.answer.reasoning_open = ReasoningSplitter::leaves_open(prompt.text);
    request.answer.prompts.push_back(std::move(prompt));
    return complete(std::move(request.answer), backend, head, "chatcmpl");
  }
  if (path == "/health_generate") return complete(probe(), backend, head, "health");
  if (path == "/abort_request") return {.now = abort(head, body, backend)};
  if (path == "/tokenize") return {.now = tokenize(body, backend)};
  if (path == "/detokenize") return {.now = detokenize(body, backend)};
  if (path == "/apply-template") {
    const PromptInput prompt = chat_prompt(parse_chat_messages(body, limits(backend)), render_, nullptr);
    return {.now = {.body = prompt_json(prompt.text)}};
  }
  if (path == "/reset_prefix_cache") {
    backend.reset_prefix_cache();
    return {.now = json_response(ordered_json::object())};
  }
  CompletionRequest request = parse_completion(body, limits(backend));
  require_known(request.model);
  return complete(std::move(request), backend, head, "cmpl");
}

Service::Reply Service::handle(const HttpHead& head, std::string body) {
  try {
    Backend* backend = this->backend();
    if (backend == nullptr) throw ApiError(503, "the model is loading", {}, "loading");
    return reply(head, std::exchange(body, {}), *backend);
  } catch (const ApiError& refused) {
    return {.now = refuse(refused)};
  } catch (const UserError& refused) {
    return {.now = refuse(ApiError(400, refused.what()))};
  } catch (const std::exception& failed) {
    log::event(log::Level::err, fmt::format("a request failed: {}", failed.what()), log_fields(head));
    return {.now = refuse(ApiError(500, "the server could not handle the request", {}, "internal_error"))};
  }
}

}  // namespace weft
