#include "tools/bench_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "bench_client/report.h"
#include "tools/option_values.h"

namespace weft {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxPrompts = 10'000'000, kMaxTokens = 1 << 24, kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kInfinite = std::numeric_limits<double>::infinity(), kMaxRate = 1e6;

std::string one_of(const Invocation& in, const std::string& name, const std::vector<std::string>& words) {
  const std::string word = text_option(in, name).value_or(words.front());
  if (std::find(words.begin(), words.end(), word) == words.end())
    throw UserError("--{} must be one of {}: got {}", name, fmt::join(words, ", "), word.substr(0, 80));
  return word;
}

/// Of two ways to say the same, e.g. --input-len and --random-input-len, the general one first.
int64_t length(const Invocation& in, const std::string& general, const std::string& special, int64_t min, int64_t otherwise) {
  if (const auto value = whole_option(in, general, min, kMaxTokens)) return *value;
  return whole_option(in, special, min, kMaxTokens).value_or(otherwise);
}

BenchSettings::Server server_settings(const Invocation& in, const Environment& environment) {
  BenchSettings::Server out;
  if (const auto url = text_option(in, "base-url")) {
    if (in.has("host") || in.has("port")) throw UserError("--base-url and --host or --port exclude each other");
    out.address = bench::ServerAddress::parse(*url);
  } else {
    out.address.host = text_option(in, "host").value_or(out.address.host);
    if (const auto port = whole_option(in, "port", 1, 65535)) out.address.port = std::to_string(*port);
  }
  const std::vector<std::string> backends = {"openai", "openai-chat", "vllm"};
  out.backend = one_of(in, in.has("endpoint-type") && !in.has("backend") ? "endpoint-type" : "backend", backends);
  const bool chat = out.backend == "openai-chat";
  out.endpoint = text_option(in, "endpoint").value_or(chat ? "/v1/chat/completions" : "/v1/completions");
  if (!out.endpoint.starts_with('/')) throw UserError("--endpoint must begin with /: got {}", out.endpoint.substr(0, 80));
  if (out.endpoint.ends_with("chat/completions") != chat)
    throw UserError(
        "--backend openai-chat goes with an --endpoint that ends in chat/completions, and no other: got --backend {}, "
        "--endpoint {}",
        out.backend, out.endpoint.substr(0, 80));
  out.headers = {{"Content-Type", "application/json"}};
  if (const char* key = environment("OPENAI_API_KEY"); key != nullptr && *key != '\0')
    out.headers.emplace_back("Authorization", std::string("Bearer ") + key);
  for (auto& header : pairs_option(in, "header", '=')) out.headers.push_back(std::move(header));
  out.ready_timeout_s = number_option(in, "ready-check-timeout-sec", 0, 86400).value_or(0);
  return out;
}

BenchSettings::Data data_settings(const Invocation& in, const std::string& model) {
  BenchSettings::Data out;
  out.name = one_of(in, "dataset-name", {"random", "sharegpt", "prefix_repetition", "timed_trace"});
  out.path = text_option(in, "dataset-path").value_or("");
  const bool is_made_up = out.name == "random" || out.name == "prefix_repetition";
  if (is_made_up && !out.path.empty())
    throw UserError("--dataset-name {} is made up and takes no --dataset-path: for a file use sharegpt or timed_trace",
                    out.name);
  if (!is_made_up && out.path.empty()) throw UserError("--dataset-name {} needs a --dataset-path", out.name);
  std::error_code ignored;
  if (const auto tokenizer = text_option(in, "tokenizer")) {
    out.tokenizer = *tokenizer;
  } else if (!model.empty() && std::filesystem::is_directory(model, ignored) && Tokenizer::is_in(model)) {
    out.tokenizer = model;
  }
  if (in.has("skip-tokenizer-init")) out.tokenizer.clear();

  const auto given = whole_option(in, "num-prompts", 1, kMaxPrompts);
  out.prompts = given.value_or(1000);
  out.vocab_size =
      static_cast<int32_t>(whole_option(in, "random-vocab-size", bench::TokenSource::kFirstId + 1, kMaxTokens).value_or(256));
  out.random = {.prompts = out.prompts,
                .input_len = length(in, "input-len", "random-input-len", 0, 1024),
                .output_len = length(in, "output-len", "random-output-len", 1, 128),
                .prefix_len = whole_option(in, "random-prefix-len", 0, kMaxTokens).value_or(0),
                .range_ratio = number_option(in, "random-range-ratio", 0, std::nextafter(1.0, 0.0)).value_or(0)};
  const bool shuffle = !in.has("disable-shuffle");
  const auto prefix_length = [&](const char* name, int64_t otherwise) {
    return whole_option(in, name, 0, kMaxTokens).value_or(otherwise);
  };
  out.prefix_repetition = {.prompts = out.prompts,
                           .prefixes = whole_option(in, "prefix-repetition-num-prefixes", 1, kMaxPrompts).value_or(10),
                           .prefix_len = prefix_length("prefix-repetition-prefix-len", 256),
                           .suffix_len = prefix_length("prefix-repetition-suffix-len", 256),
                           .output_len = length(in, "output-len", "prefix-repetition-output-len", 1, 128),
                           .shuffle = shuffle};
  const int64_t answers = length(in, "output-len", "sharegpt-output-len", 1, 0);
  out.sharegpt = {.prompts = out.prompts,
                  .output_len = answers > 0 ? std::optional(answers) : std::nullopt,
                  .shuffle = shuffle,
                  .oversample = !in.has("no-oversample")};
  out.trace = {.seconds_per_unit = number_option(in, "timed-trace-sec-multiplier", 1e-12, 1e6).value_or(0.001),
               .block_tokens = whole_option(in, "timed-trace-chunk-hash-size", 1, kMaxTokens).value_or(512),
               .requests = given};
  return out;
}

std::optional<bench::ArrivalPlan::RampUp> ramp_up(const Invocation& in) {
  if (!in.has("ramp-up-strategy")) {
    for (const char* name : {"ramp-up-start-rps", "ramp-up-end-rps"})
      if (in.has(name)) throw UserError("--{} needs --ramp-up-strategy linear or exponential", name);
    return std::nullopt;
  }
  const std::string kind = one_of(in, "ramp-up-strategy", {"linear", "exponential"});
  const auto from = number_option(in, "ramp-up-start-rps", 1e-6, kMaxRate),
             to = number_option(in, "ramp-up-end-rps", 1e-6, kMaxRate);
  if (!from || !to) throw UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
  if (in.has("request-rate")) throw UserError("--ramp-up-strategy and --request-rate exclude each other");
  using Ramp = bench::ArrivalPlan::Ramp;
  return bench::ArrivalPlan::RampUp{.kind = kind == "linear" ? Ramp::linear : Ramp::exponential, .from = *from, .to = *to};
}

BenchSettings::Load load_settings(const Invocation& in, bool is_trace) {
  BenchSettings::Load out;
  out.rates = numbers_option(in, "request-rate", 1e-6, kInfinite);
  if (out.rates.empty()) out.rates = {kInfinite};
  for (const double bound : numbers_option(in, "max-concurrency", 1, 1e6)) {
    if (bound != std::floor(bound)) throw UserError("--max-concurrency must be whole numbers: got {:g}", bound);
    out.concurrencies.emplace_back(static_cast<int64_t>(bound));
  }
  if (out.concurrencies.empty()) out.concurrencies = {std::nullopt};
  if (out.rates.size() > 1 && out.concurrencies.size() > 1)
    throw UserError("a sweep is over one of --request-rate and --max-concurrency: got {} and {} values", out.rates.size(),
                    out.concurrencies.size());
  out.arrivals.burstiness = number_option(in, "burstiness", 1e-6, kInfinite).value_or(1);
  out.arrivals.ramp_up = ramp_up(in);
  const bool timed = in.has("self-timed"), untimed = in.has("no-self-timed");
  if ((timed || untimed) && !is_trace) throw UserError("--self-timed and --no-self-timed need --dataset-name timed_trace");
  if (timed && untimed) throw UserError("--self-timed and --no-self-timed exclude each other");
  const bool has_rate = in.has("request-rate") || out.arrivals.ramp_up.has_value();
  out.self_timed = is_trace && !untimed;
  if (out.self_timed && has_rate)
    throw UserError("a timed_trace begins its requests at its own times: use --no-self-timed with --request-rate or a ramp");
  out.warmups = whole_option(in, "num-warmups", 0, kMaxPrompts).value_or(0);
  out.seed = static_cast<uint64_t>(whole_option(in, "seed", 0, std::numeric_limits<int64_t>::max()).value_or(0));
  out.request_id_prefix = text_option(in, "request-id-prefix").value_or(fmt::format("bench-{}-", out.seed));
  return out;
}

BenchSettings::Results result_settings(const Invocation& in, const std::string& backend) {
  BenchSettings::Results out;
  out.metrics = parts_of(text_option(in, "percentile-metrics").value_or("ttft,tpot,itl"), ',');
  for (const std::string& metric : out.metrics) {
    const auto& known = bench::metric_names();
    if (std::find(known.begin(), known.end(), metric) == known.end())
      throw UserError("--percentile-metrics must be of {}: got {}", fmt::join(known, ", "), metric.substr(0, 80));
  }
  out.percentiles = numbers_option(in, "metric-percentiles", 0, 100);
  if (out.percentiles.empty()) out.percentiles = {99};
  for (const auto& [name, text] : pairs_option(in, "goodput", ':')) {
    std::optional<double> bench::Objectives::*bound = name == "ttft"   ? &bench::Objectives::ttft_ms
                                                      : name == "tpot" ? &bench::Objectives::tpot_ms
                                                      : name == "e2el" ? &bench::Objectives::e2el_ms
                                                                       : nullptr;
    if (bound == nullptr)
      throw UserError("--goodput must be of ttft, tpot and e2el, in milliseconds: got {}", name.substr(0, 80));
    out.objectives.*bound = number_of(fmt::format("goodput {}", name), text, 0, 1e12);
  }
  out.save = in.has("save-result");
  out.append = in.has("append-result");
  out.detailed = in.has("save-detailed");
  out.progress = !in.has("disable-tqdm");
  out.label = text_option(in, "label").value_or(backend);
  out.folder = text_option(in, "result-dir").value_or("");
  out.file = text_option(in, "result-filename").value_or("");
  out.plot = text_option(in, "plot").value_or("");
  out.metadata = pairs_option(in, "metadata", '=');
  return out;
}

ordered_json extra_fields(const Invocation& in) {
  ordered_json out = ordered_json::object();
  constexpr double kMost = 1e6;
  for (const char* name : {"temperature", "top-p", "min-p", "frequency-penalty", "presence-penalty", "repetition-penalty"}) {
    std::string field = name;
    std::replace(field.begin(), field.end(), '-', '_');
    if (const auto value = number_option(in, name, -kMost, kMost)) out[field] = *value;
  }
  if (const auto text = text_option(in, "top-k")) out["top_k"] = static_cast<int64_t>(number_of("top-k", *text, -1, kMaxInt32));
  if (const auto text = text_option(in, "extra-body")) {
    const auto parsed = ordered_json::parse(*text, nullptr, false);
    if (!parsed.is_object()) throw UserError("--extra-body must be a JSON object: got {}", text->substr(0, 80));
    out.update(parsed);
  }
  return out;
}

}  // namespace

BenchSettings bench_settings(const Invocation& in, const Environment& environment) {
  BenchSettings out;
  out.server = server_settings(in, environment);
  out.model = text_option(in, "model").value_or("");
  out.served_name = text_option(in, "served-model-name").value_or("");
  out.data = data_settings(in, out.model);
  out.load = load_settings(in, out.data.name == "timed_trace");
  out.results = result_settings(in, out.server.backend);
  out.form.chat = out.server.backend == "openai-chat";
  out.form.ignore_eos = in.has("ignore-eos") || out.data.name == "random" || out.data.name == "timed_trace";
  if (const auto count = whole_option(in, "logprobs", 0, 1000)) out.form.log_probs = static_cast<int>(*count);
  out.form.extra = extra_fields(in);
  if (out.data.tokenizer.empty() && (out.form.chat || out.data.name == "sharegpt"))
    throw UserError("--dataset-name {} with --backend {} is made of text: name a folder with a tokenizer.json by --tokenizer",
                    out.data.name, out.server.backend);
  return out;
}

}  // namespace weft
