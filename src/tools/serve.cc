#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/log_level.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "tools/commands.h"
#include "tools/option_values.h"
#include "tools/supervisor.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

int64_t whole_number(const Invocation& invocation, const std::string& name, int64_t min, int64_t max, int64_t fallback) {
  return whole_option(invocation, name, min, max).value_or(fallback);
}

std::chrono::milliseconds seconds(const Invocation& invocation, const std::string& name, std::chrono::milliseconds fallback,
                                  double least = 0) {
  if (!invocation.has(name)) return fallback;
  constexpr double kMost = 86400;
  const std::string& text = invocation[name];
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= kMost))
    throw UserError("--{} must be a number of seconds, {} to {}: got {}", name, least, kMost, text.substr(0, 80));
  return std::chrono::milliseconds(static_cast<int64_t>(std::lround(value * 1000)));
}

/// "a,b" or, as other servers want it, ["a","b"].
std::vector<std::string> list(const Invocation& invocation, const std::string& name) {
  const std::string& text = invocation[name];
  std::vector<std::string> out;
  if (text.starts_with('[')) {
    const auto parsed = nlohmann::json::parse(text, nullptr, false);
    const bool strings =
        parsed.is_array() && std::all_of(parsed.begin(), parsed.end(), [](const auto& item) { return item.is_string(); });
    if (!strings)
      throw UserError("--{} must be words with commas between, or a JSON list of strings: got {}", name, text.substr(0, 80));
    out = parsed.get<std::vector<std::string>>();
  } else {
    out = parts_of(text, ',');
  }
  if (out.empty() || std::count(out.begin(), out.end(), "") > 0)
    throw UserError("--{} must not have an empty word: got {}", name, text.substr(0, 80));
  return out;
}

TlsConfig tls_config(const Invocation& invocation) {
  const auto file = [&](const char* name) { return invocation.has(name) ? invocation[name] : std::string(); };
  TlsConfig out{.certificate_file = file("ssl-certfile"), .key_file = file("ssl-keyfile"), .ca_file = file("ssl-ca-certs")};
  out.clients = static_cast<TlsConfig::Clients>(whole_number(invocation, "ssl-cert-reqs", 0, 2, 0));
  return out;
}

HttpConfig http_config(const Invocation& invocation) {
  constexpr double kLeast_s = 0.1;  // As often as deadlines are looked at.
  HttpConfig out;
  out.tls = tls_config(invocation);
  if (invocation.has("uds")) out.unix_socket = invocation["uds"];
  if (invocation.has("uds") && out.unix_socket.empty()) throw UserError("--uds must be a path: got nothing");
  out.max_header_bytes = static_cast<size_t>(
      whole_number(invocation, "max-header-size", 1024, 1 << 24, static_cast<int64_t>(out.max_header_bytes)));
  out.idle_timeout = seconds(invocation, "timeout-keep-alive", out.idle_timeout, kLeast_s);
  out.body_timeout = seconds(invocation, "body-timeout", out.body_timeout, kLeast_s);
  out.write_timeout = seconds(invocation, "write-timeout", out.write_timeout, kLeast_s);
  out.on_drain = [] { tell_supervisor("STOPPING=1"); };
  if (invocation.has("host")) out.host = invocation["host"];
  out.port = static_cast<int>(whole_number(invocation, "port", 0, 65535, out.port));
  out.max_body_bytes = static_cast<size_t>(
      whole_number(invocation, "max-body-size", 1024, int64_t{1} << 32, static_cast<int64_t>(out.max_body_bytes)));
  out.max_connections =
      static_cast<size_t>(whole_number(invocation, "max-connections", 1, 1 << 20, static_cast<int64_t>(out.max_connections)));
  out.shutdown_timeout = seconds(invocation, "shutdown-timeout", out.shutdown_timeout);
  return out;
}

void require_printable(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (std::any_of(key.begin(), key.end(), [](char c) { return c < '!' || c > '~'; }))
      throw UserError("an API key must be of printable ASCII characters without spaces");
  }
}

std::vector<std::string> admin_keys(const Invocation& invocation) {
  std::vector<std::string> keys;
  if (invocation.has("admin-api-key")) keys = list(invocation, "admin-api-key");
  if (const char* key = std::getenv("WEFT_ADMIN_API_KEY"); key != nullptr && *key != '\0') keys.emplace_back(key);
  require_printable(keys);
  return keys;
}

std::vector<std::string> api_keys(const Invocation& invocation) {
  std::vector<std::string> keys;
  if (invocation.has("api-key")) keys = list(invocation, "api-key");
  if (invocation.has("api-key-file")) {
    std::ifstream file(invocation["api-key-file"]);
    for (std::string line; std::getline(file, line);)
      if (!line.empty()) keys.push_back(line);
    if (keys.empty())
      throw UserError("--api-key-file must name a file with a key in each line: got {}", invocation["api-key-file"]);
  }
  if (const char* key = std::getenv("WEFT_API_KEY"); key != nullptr && *key != '\0') keys.emplace_back(key);
  require_printable(keys);
  return keys;
}

bool parses_reasoning(const Invocation& invocation) {
  if (!invocation.has("reasoning-parser")) return false;
  // The names that other servers have for models that think in these marks.
  static const std::vector<std::string> kThink = {"think", "deepseek_r1", "deepseek_v3", "qwen3", "glm45"};
  const std::string& name = invocation["reasoning-parser"];
  if (name == "none") return false;
  if (std::find(kThink.begin(), kThink.end(), name) == kThink.end())
    throw UserError("--reasoning-parser must be none or {}: got {}", fmt::join(kThink, ", "), name.substr(0, 80));
  return true;
}

Service::Config service_config(const Invocation& invocation) {
  Service::Config out{.model_names = {invocation.engine.model_dir.string()},
                      .api_keys = api_keys(invocation),
                      .admin_keys = admin_keys(invocation),
                      .allowed_origins = {"*"},
                      .open_metrics = invocation.has("open-metrics"),
                      .log_requests = !invocation.has("disable-log-requests") && !invocation.has("disable-uvicorn-access-log"),
                      .parse_reasoning = parses_reasoning(invocation),
                      .version = WEFT_VERSION,
                      .log_stats = !invocation.has("disable-log-stats"),
                      .request_timeout = seconds(invocation, "request-timeout", {}),
                      .strict_fields = invocation.has("strict-fields")};
  out.max_json_depth = static_cast<int>(whole_number(invocation, "max-json-depth", 4, 256, out.max_json_depth));
  if (invocation.has("disable-access-log-for-endpoints"))
    out.quiet_routes = list(invocation, "disable-access-log-for-endpoints");
  if (invocation.has("served-model-name")) out.model_names = list(invocation, "served-model-name");
  if (invocation.has("allowed-origins")) out.allowed_origins = list(invocation, "allowed-origins");
  return out;
}

void set_log(const Invocation& invocation) {
  if (invocation.has("log-format") && !log::set_format(invocation["log-format"]))
    throw UserError("--log-format must be text or json: got {}", invocation["log-format"].substr(0, 80));
  if (!invocation.has("log-level")) return;
  const std::string& level = invocation["log-level"];
  if (!log::set_level(level)) throw UserError("--log-level must be debug, info, warning or error: got {}", level.substr(0, 80));
}

/// Everything that the process was told or chose, but for keys.
std::string flags_in_use(const Invocation& invocation) {
  std::string out = invocation.engine.model_dir.string();
  for (const Flag& flag : engine_flags()) out += fmt::format(" --{} {}", flag.name, flag.text_in(invocation.engine));
  for (const auto& [name, value] : invocation.options) {
    const bool secret = name.ends_with("api-key");
    out += fmt::format(" --{}{}{}", name, value.empty() ? "" : " ", secret ? "..." : value);
  }
  return out;
}

/// What a model on these ranks holds, in one line.
std::string banner(const BackendInfo& info, bool has_tokenizer) {
  return fmt::format(
      "{}: tp {}, W = {} (dcp), S = {} (interleave), B = {} (block), {}, KV {}: room for {} tokens in {} blocks of {}; longest "
      "request {} "
      "tokens; {}",
      info.architecture, info.tp, info.dcp, info.interleave, info.block_size, info.dtype, info.kv_dtype, info.capacity_tokens,
      info.blocks, info.block_tokens, info.max_model_len,
      has_tokenizer ? "text and token ids" : "no tokenizer: token ids only");
}

}  // namespace

void run_serve(const Invocation& invocation) {
  const auto began = Clock::now();
  set_log(invocation);
  const HttpConfig http = http_config(invocation);
  Wake wake;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<EngineBackend> backend;
  Service service(service_config(invocation));
  HttpServer server(http, service, wake);  // A port that cannot be had is known before weights are read.

  log::info("weft {}: {}", WEFT_VERSION, flags_in_use(invocation));

  std::exception_ptr failed;
  std::thread loader([&] {
    try {
      const auto& folder = invocation.engine.model_dir;
      EngineConfig config = invocation.engine;
      if (Tokenizer::is_in(folder)) tokenizer = Tokenizer::load(folder);
      if (tokenizer != nullptr && tokenizer->eos_id()) config.end_tokens.push_back(*tokenizer->eos_id());
      engine = std::make_unique<Engine>(
          config,
          Engine::Hooks{.progress = [&wake] { wake.ring(); }, .loading = [&service](double share) { service.loaded(share); }},
          invocation.make_ranks);
      std::unique_ptr<const ChatTemplate> chat_template = invocation.has("chat-template")
                                                              ? ChatTemplate::chosen(invocation["chat-template"], folder)
                                                              : ChatTemplate::of_model(folder);
      const bool chats = chat_template != nullptr;
      backend = std::make_unique<EngineBackend>(*engine);
      server.drain_on_signals();  // Until here a signal simply ends the process.
      service.open(*backend, tokenizer.get(), render_with(std::move(chat_template)));
      log::info("{}{}", banner(backend->info(), tokenizer != nullptr), chats ? ", chats" : ", no chat template");
      log::info("process {} is ready after {:.1f} s{}", ::getpid(), std::chrono::duration<double>(Clock::now() - began).count(),
                service.needs_key() ? "" : "; no --api-key: everybody who reaches the port may use it");
      std::printf("weft serves at %s\n", server.address().c_str());
      std::fflush(stdout);
      tell_supervisor("READY=1");
    } catch (...) {
      failed = std::current_exception();
      server.stop();
    }
  });
  server.run();
  loader.join();
  if (failed != nullptr) std::rethrow_exception(failed);
  if (const std::string why = service.failure(); !why.empty()) throw SystemError("{}", why);
}

}  // namespace weft
