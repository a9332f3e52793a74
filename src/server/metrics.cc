#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace weft {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// Collects families of metrics that all carry the model's name.
class Families {
 public:
  explicit Families(const std::string& model_name) : base_{{"model_name", model_name}} {}

  void counter(const std::string& name, const std::string& help, double value, const Labels& labels = {}) {
    add(name, help, MetricType::Counter, labels).counter.value = value;
  }
  void gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {}) {
    add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void histogram(const std::string& name, const std::string& help, const Histogram& from) {
    ClientMetric::Histogram& out = add(name, help, MetricType::Histogram, {}).histogram;
    uint64_t total = 0;
    for (size_t i = 0; i <= from.bounds().size(); ++i) {
      total += static_cast<uint64_t>(from.count(i));
      const double bound = i < from.bounds().size() ? from.bounds()[i] : std::numeric_limits<double>::infinity();
      out.bucket.push_back({total, bound});
    }
    out.sample_count = total;
    out.sample_sum = from.sum();
  }
  const std::vector<MetricFamily>& all() const { return all_; }

 private:
  ClientMetric& add(const std::string& name, const std::string& help, MetricType type, const Labels& labels) {
    if (all_.empty() || all_.back().name != name) all_.push_back({name, help, type, {}});
    ClientMetric& metric = all_.back().metric.emplace_back();
    metric.label = base_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  const Labels base_;
  std::vector<MetricFamily> all_;
};

void add_engine(const EngineMetrics& m, const BackendInfo& info, Families& out) {
  const auto number = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  out.gauge("vllm:num_requests_running", "Sequences that run.", m.running.value());
  out.gauge("vllm:num_requests_waiting", "Sequences that wait.", m.waiting.value());
  out.gauge("vllm:kv_cache_usage_perc",
            "Blocks that running sequences hold, 1 is all. Cached blocks that nobody holds do not count.", m.kv_usage.value());
  out.gauge("vllm:gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc.", m.kv_usage.value());
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", number(m.prefix_queries));
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found there.", number(m.prefix_hits));
  out.counter("vllm:prompt_tokens_total", "Prompt tokens.", number(m.prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Generated tokens.", number(m.generated_tokens));
  out.counter("vllm:num_preemptions_total", "Sequences that gave up their blocks to be computed again.", number(m.preemptions));
  for (const auto& [reason, count] :
       {std::pair{"stop", &m.finished_stop}, std::pair{"length", &m.finished_length}, std::pair{"abort", &m.finished_abort},
        std::pair{"timeout", &m.finished_timeout}, std::pair{"error", &m.finished_error}})
    out.counter("vllm:request_success_total", "Sequences that ended.", number(*count), {{"finished_reason", reason}});
  out.histogram("vllm:time_to_first_token_seconds", "From submission to the first token.", m.time_to_first_token);
  out.histogram("vllm:time_per_output_token_seconds", "Between tokens of a sequence.", m.time_per_output_token);
  out.histogram("vllm:inter_token_latency_seconds", "The newer name of vllm:time_per_output_token_seconds.",
                m.time_per_output_token);
  out.histogram("vllm:e2e_request_latency_seconds", "From submission to the end.", m.e2e_latency);
  out.histogram("vllm:request_queue_time_seconds", "From submission to admission.", m.queue_time);
  out.histogram("vllm:request_prefill_time_seconds", "From admission to the first token.", m.prefill_time);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", m.decode_time);
  out.histogram("vllm:request_inference_time_seconds", "From admission to the end.", m.inference_time);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", m.request_prompt_tokens);
  out.histogram("vllm:request_generation_tokens", "Generated tokens of a sequence.", m.request_generated_tokens);
  out.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", m.request_max_tokens);
  out.histogram("vllm:request_params_n", "n of a request.", m.request_choices);
  out.histogram("vllm:iteration_tokens_total", "Tokens of a step.", m.iteration_tokens);
  out.gauge("vllm:cache_config_info", "The KV cache: a block is a virtual block, over all ranks of a group.", 1,
            {{"block_size", std::to_string(info.block_tokens)},
             {"num_gpu_blocks", std::to_string(info.blocks)},
             {"cache_dtype", info.kv_dtype},
             {"enable_prefix_caching", info.prefix_caching ? "True" : "False"}});

  out.gauge("weft_kv_capacity_tokens", "Tokens that the KV memory holds.", static_cast<double>(info.capacity_tokens));
  out.gauge("weft_max_model_len", "Longest request, prompt and answer together.", static_cast<double>(info.max_model_len));
  out.gauge("weft_kv_blocks", "Virtual blocks.", static_cast<double>(info.blocks));
  out.gauge("weft_kv_blocks_held", "Virtual blocks that sequences hold.", m.blocks_held.value());
  out.gauge("weft_kv_blocks_cached", "Virtual blocks that nobody holds and whose content can be found again.",
            m.blocks_cached.value());
  out.gauge("weft_parallel_info", "Ranks.", 1,
            {{"tensor_parallel_size", std::to_string(info.tp)},
             {"decode_context_parallel_size", std::to_string(info.dcp)},
             {"cp_kv_cache_interleave_size", std::to_string(info.interleave)}});
  out.counter("weft_steps_total", "Steps of the engine.", number(m.steps));
  out.counter("weft_step_rows_total", "Tokens in those steps.", number(m.step_rows));
  out.gauge("weft_step_seconds", "Time of the last step.", m.step_seconds.value());
  out.counter("weft_requests_refused_total", "Requests that were refused.", number(m.refused_queue_full),
              {{"reason", "queue_full"}});
}

void add_http(const HttpMetrics& http, Families& out) {
  for (size_t route = 0; route < HttpMetrics::kRoutes.size(); ++route) {
    for (size_t status = 0; status < HttpMetrics::kStatuses.size(); ++status) {
      if (const int64_t count = http.answers(route, status); count > 0)
        out.counter(
            "weft_http_requests_total", "Answered HTTP requests.", static_cast<double>(count),
            {{"route", std::string(HttpMetrics::kRoutes[route])}, {"status", std::to_string(HttpMetrics::kStatuses[status])}});
    }
  }
  out.counter("weft_http_disconnects_total", "Clients that left before their answer was complete.",
              static_cast<double>(http.disconnects.value()));
  out.counter("weft_http_body_bytes_total", "Bytes of request bodies.", static_cast<double>(http.body_bytes.value()));
  out.gauge("weft_http_connections", "Open connections.", http.connections.value());
  out.counter("weft_http_connections_total", "Connections so far.", static_cast<double>(http.connections_total.value()));
  out.counter("weft_http_connections_refused_total", "Connections beyond the bound.",
              static_cast<double>(http.connections_refused.value()));
}

}  // namespace

void HttpMetrics::answered(std::string_view route, int status) {
  const auto r = std::find(kRoutes.begin(), kRoutes.end() - 1, route) - kRoutes.begin();
  auto s = std::find(kStatuses.begin(), kStatuses.end(), status);
  if (s == kStatuses.end()) s = std::find(kStatuses.begin(), kStatuses.end(), 500);
  answers_[static_cast<size_t>(r)][static_cast<size_t>(s - kStatuses.begin())].add();
}

std::string metrics_text(const Backend* backend, const HttpMetrics& http, const std::string& model_name) {
  Families families(model_name);
  if (backend != nullptr) add_engine(backend->metrics(), backend->info(), families);
  add_http(http, families);
  return prometheus::TextSerializer().Serialize(families.all());
}

}  // namespace weft
