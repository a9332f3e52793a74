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

constexpr std::string_view kBearer = "bearer ";  // in any case
constexpr int kMaxRetryAfter = 60;
constexpr size_t kMostTokenTexts = size_t{1} << 20;

enum class Access : uint8_t { open, key, admin };

struct Route {
  std::string_view path, method;
  Access access = Access::key;
};
constexpr Route kRoutes[] = {
    {"/health", "GET", Access::open},
    {"/ready", "GET", Access::open},
    {"/v1/models", "GET"},
    {"/v1/completions", "POST"},
    {"/v1/chat/completions", "POST"},
    {"/tokenize", "POST"},
    {"/detokenize", "POST"},
    {"/apply-template", "POST"},
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
    {"/v1/rerank", 501, "this server generates text only; use a server for ranking models"},
    {"/v1/audio/transcriptions", 501, "this server takes text and token ids only"},
    {"/v1/audio/translations", 501, "this server takes text and token ids only"},
    {"/v1/images/generations", 501, "this server generates text only"},
    {"/v1/load_lora_adapter", 501, "merge the adapter into the checkpoint"},
    {"/v1/unload_lora_adapter", 501, "merge the adapter into the checkpoint"},
};

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

/// A header value of the client's that may go into a header of ours.
bool is_plain(std::string_view text) {
  return text.size() <= 1024 && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

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

void Service::tick(std::chrono::steady_clock::time_point now) {
  using namespace std::chrono_literals;
  const Backend* backend = this->backend();
  if (backend == nullptr || now - last_tick_ < 10s) return;
  const EngineMetrics& m = backend->metrics();
  const double seconds = std::chrono::duration<double>(now - last_tick_).count();
  const bool first = last_tick_ == std::chrono::steady_clock::time_point{};
  last_tick_ = now;
  const auto since = [](int64_t& last, int64_t value) { return static_cast<double>(value - std::exchange(last, value)); };
  const double prompt = since(last_prompt_, m.prompt_tokens.value()),
               generated = since(last_generated_, m.generated_tokens.value());
  const double queries = since(last_queries_, m.prefix_queries.value()), hits = since(last_hits_, m.prefix_hits.value());
  const double finished = since(last_finished_, m.finished_stop.value() + m.finished_length.value() + m.finished_abort.value());
  if (first) return;
  finished_per_second_ = finished / seconds;
  if (prompt + generated + m.running.value() + m.waiting.value() == 0) return;
  log::info("prompt {:.1f} tokens/s, generation {:.1f} tokens/s, running {}, waiting {}, KV usage {:.1f}%, prefix hits {:.1f}%",
            prompt / seconds, generated / seconds, m.running.value(), m.waiting.value(), 100 * m.kv_usage.value(),
            queries > 0 ? 100 * hits / queries : 0);
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
  std::string_view given = head.authorization;
  const bool bearer = given.size() >= kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), given.begin(),
                                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + ('a' - 'A') : b); });
  given.remove_prefix(bearer ? kBearer.size() : given.size());
  bool known = false;
  for (const std::string& key : config_.admin_keys) known |= same_secret(given, key);
  if (access == Access::key)
    for (const std::string& key : config_.api_keys) known |= same_secret(given, key);
  return known;
}

HttpResponse Service::error(const ApiError& error) const {
  HttpResponse out{.status = error.status, .body = error_json(error)};
  out.refusal = refusal_reason(error);
  if (error.status == 429) out.headers.emplace_back("Retry-After", std::to_string(retry_after()));
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
    if (secret != nullptr && secret->access == Access::admin)
      return error(ApiError(config_.admin_keys.empty() ? 403 : 401,
                            fmt::format("{} needs a key of --admin-api-key{}", secret->path,
                                        config_.admin_keys.empty() ? ", of which this server has none" : ""),
                            {}, "admin_key_needed"));
    return error(ApiError(401, "the API key is missing or wrong: send Authorization: Bearer KEY", {}, "invalid_api_key"));
  }
  const Route* route = find_route(head.path);
  if (route == nullptr) {
    const auto missing =
        std::find_if(std::begin(kMissing), std::end(kMissing), [&](const MissingRoute& m) { return m.path == head.path; });
    if (missing != std::end(kMissing))
      return error(ApiError(missing->status, fmt::format("{} is not supported: {}", missing->path, missing->instead), {},
                            "not_supported"));
    return error(ApiError(404,
                          fmt::format("there is no {}: POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize, "
                                      "/apply-template, GET /v1/models, /health, /ready, /metrics, /version, /server_info or "
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
  if (is_get) return get(head);
  switch (state()) {
    case State::ready:
      return std::nullopt;
    case State::loading:
      return error(ApiError(503, "the model is loading", {}, "loading"));
    case State::draining:
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
  const double waiting = backend == nullptr ? 0 : backend->metrics().waiting.value();
  const double rate = finished_per_second_;
  return rate > 0 ? static_cast<int>(std::clamp(std::ceil(waiting / rate), 1.0, double{kMaxRetryAfter})) : 1;
}

std::string Service::next_id(const char* prefix) { return fmt::format("{}-{:016x}{:08x}", prefix, id_base_, ids_++); }

ApiLimits Service::limits(const Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  ApiLimits out;
  out.vocab = tokenizer == nullptr ? backend.info().vocab : std::min<int64_t>(backend.info().vocab, tokenizer->vocab_size());
  return out;
}

void Service::require_known(const std::string& model) const {
  const auto& names = config_.model_names;
  if (!model.empty() && std::find(names.begin(), names.end(), model) == names.end())
    throw ApiError(404, fmt::format("there is no model {}: {}", as_quoted(model), fmt::join(names, ", ")), "model",
                   "model_not_found");
}

Service::Reply Service::complete(CompletionRequest request, Backend& backend, const char* id_prefix) {
  if (!request.ignored.empty()) log::debug("fields ignored: {}", quoted_names(request.ignored));
  CompletionHead answer{.id = next_id(id_prefix),
                        .model = request.model.empty() ? config_.model_names.front() : request.model,
                        .created = static_cast<int64_t>(std::time(nullptr))};
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  // Made before the reply: GCC 12 destroys the members of an aggregate twice where one of them throws.
  auto completion = std::make_unique<Completion>(std::move(request), backend, tokenizer, std::move(answer));
  return {.now = {}, .later = std::move(completion)};
}

HttpResponse Service::tokenize(const std::string& body, Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  if (tokenizer == nullptr) throw ApiError(400, "the model folder has no tokenizer.json", {}, "no_tokenizer");
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
    for (const int32_t id : ids) texts.push_back(tokenizer->decode({&id, 1}, false));
  return {.body = tokenize_json(ids, request.return_token_strs ? &texts : nullptr, backend.info().max_model_len)};
}

HttpResponse Service::detokenize(const std::string& body, Backend& backend) const {
  const Tokenizer* tokenizer = tokenizer_.load(std::memory_order_acquire);
  if (tokenizer == nullptr) throw ApiError(400, "the model folder has no tokenizer.json", {}, "no_tokenizer");
  const DetokenizeRequest request = parse_detokenize(body, limits(backend));
  require_known(request.model);
  return {.body = prompt_json(tokenizer->decode(request.tokens, false))};
}

Service::Reply Service::reply(std::string_view path, const std::string& body, Backend& backend) {
  if (path == "/v1/chat/completions") {
    ChatRequest request = parse_chat(body, limits(backend));
    require_known(request.answer.model);
    PromptInput prompt = chat_prompt(request.chat, render_, tokenizer_.load(std::memory_order_acquire));
    request.answer.reasoning = config_.parse_reasoning;
    request.answer.reasoning_open = ReasoningSplitter::leaves_open(prompt.text);
    request.answer.prompts.push_back(std::move(prompt));
    return complete(std::move(request.answer), backend, "chatcmpl");
  }
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
  return complete(std::move(request), backend, "cmpl");
}

Service::Reply Service::handle(const HttpHead& head, std::string body) {
  try {
    Backend* backend = this->backend();
    if (backend == nullptr) throw ApiError(503, "the model is loading", {}, "loading");
    return reply(head.path, std::exchange(body, {}), *backend);
  } catch (const ApiError& refused) {
    return {.now = refuse(refused)};
  } catch (const UserError& refused) {
    return {.now = refuse(ApiError(400, refused.what()))};
  } catch (const std::exception& failed) {
    log::error("a request failed: {}", failed.what());
    return {.now = refuse(ApiError(500, "the server could not handle the request", {}, "internal_error"))};
  }
}

}  // namespace weft
