#include "server/backend.h"
#include "server/metric_families.h"

namespace weft {
namespace {

void add_gauges_and_counters(const EngineMetrics& m, MetricFamilies& out) {
  out.gauge("vllm:num_requests_running", "Sequences that run.", m.running.value());
  out.gauge("vllm:num_requests_waiting", "Sequences that wait.", m.waiting.value());
  out.gauge("vllm:kv_cache_usage_perc",
            "Share of the blocks that running sequences hold, 0 to 1. Cached blocks that nobody holds do not count.",
            m.kv_usage.value());
  out.gauge("vllm:gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc.", m.kv_usage.value());
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", m.prefix_queries);
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found there.", m.prefix_hits);
  out.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", m.prompt_tokens);
  out.counter("vllm:prompt_tokens_cached_total", "Of them those found in the prefix cache.", m.prefix_hits);
  constexpr const char* kBySource = "Prompt tokens by where their KV came from.";
  out.counter("vllm:prompt_tokens_by_source_total", kBySource, m.computed_prompt_tokens, {{"source", "local_compute"}});
  out.counter("vllm:prompt_tokens_by_source_total", kBySource, m.prefix_hits, {{"source", "local_cache_hit"}});
  out.counter("vllm:generation_tokens_total", "Generated tokens.", m.generated_tokens);
  out.counter("vllm:num_preemptions_total", "Sequences that gave up their blocks to be computed again.", m.preemptions);
  for (const auto& [reason, count] : {std::pair{"stop", &m.finished_stop}, std::pair{"length", &m.finished_length},
                                      std::pair{"abort", &m.finished_abort}, std::pair{"error", &m.finished_error}})
    out.counter("vllm:request_success_total", "Sequences that ended, however they did.", *count, {{"finished_reason", reason}});
}

void add_times(const EngineMetrics& m, MetricFamilies& out) {
  out.histogram("vllm:time_to_first_token_seconds", "From submission to the first token.", m.time_to_first_token);
  out.histogram("vllm:inter_token_latency_seconds", "Between tokens of a sequence.", m.time_per_output_token);
  out.histogram("vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds.",
                m.time_per_output_token);
  out.histogram("vllm:request_time_per_output_token_seconds", "Between tokens, the mean of a sequence of two tokens or more.",
                m.request_time_per_output_token);
  out.histogram("vllm:e2e_request_latency_seconds", "From submission to the end.", m.e2e_latency);
  out.histogram("vllm:request_queue_time_seconds", "From submission to admission.", m.queue_time);
  out.histogram("vllm:request_prefill_time_seconds", "From admission to the first token.", m.prefill_time);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", m.decode_time);
  out.histogram("vllm:request_inference_time_seconds", "From admission to the end.", m.inference_time);
}

void add_sizes(const EngineMetrics& m, double longest, MetricFamilies& out) {
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", m.request_prompt_tokens, longest);
  out.histogram("vllm:request_generation_tokens", "Generated tokens of a request, those of all its answers.",
                m.request_generated_tokens);
  out.histogram("vllm:request_max_num_generation_tokens", "Generated tokens of the longest answer to a request.",
                m.request_most_generated_tokens, longest);
  out.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that the cache did not have.",
                m.request_computed_tokens, longest);
  out.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", m.request_max_tokens, longest);
  out.histogram("vllm:request_params_n", "n of a request.", m.request_choices);
  out.histogram("vllm:iteration_tokens_total", "Tokens of a step.", m.iteration_tokens);
}

}  // namespace

void add_vllm_metrics(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  add_gauges_and_counters(m, out);
  add_times(m, out);
  add_sizes(m, static_cast<double>(info.max_model_len), out);
  out.gauge("vllm:cache_config_info",
            "The KV cache. A block is a virtual block, over all ranks of a group: block_size * num_gpu_blocks tokens fit.", 1,
            {{"block_size", std::to_string(info.block_tokens)},
             {"num_gpu_blocks", std::to_string(info.blocks)},
             {"cache_dtype", info.kv_dtype},
             {"enable_prefix_caching", info.prefix_caching ? "True" : "False"}});
}

}  // namespace weft
