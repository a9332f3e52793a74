#include <fmt/format.h>

#include <algorithm>

#include "server/backend.h"
#include "server/metric_families.h"

namespace weft {
namespace {

void add_configuration(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  out.gauge("weft_model_info", "The model and how it is computed.", 1,
            {{"architecture", info.architecture},
             {"dtype", info.dtype},
             {"kv_cache_dtype", info.kv_dtype},
             {"vocab_size", std::to_string(info.vocab)},
             {"instruction_set", info.instruction_set}});
  const size_t here = m.exchange.size();
  out.gauge("weft_parallel_info", "Ranks, and which of them metrics with the label rank tell of: those of this process.", 1,
            {{"tensor_parallel_size", std::to_string(info.tp)},
             {"decode_context_parallel_size", std::to_string(info.dcp)},
             {"cp_kv_cache_interleave_size", std::to_string(info.interleave)},
             {"processes", std::to_string(info.processes)},
             {"ranks_here", here == 0 ? "" : fmt::format("{}-{}", m.first_rank, m.first_rank + static_cast<int>(here) - 1)}});
  out.gauge("weft_max_model_len", "Longest request, prompt and answer together.", static_cast<double>(info.max_model_len));
  out.gauge("weft_max_num_seqs", "Sequences that run at once.", static_cast<double>(info.max_num_seqs));
  for (const auto& [kind, bytes] :
       {std::pair{"weights", info.rank_bytes.weights}, std::pair{"workspaces", info.rank_bytes.workspaces},
        std::pair{"exchange", info.rank_bytes.exchange}, std::pair{"kv", info.rank_bytes.kv}})
    out.gauge("weft_rank_memory_bytes", "Memory of a rank by what it is for, of the largest rank.", static_cast<double>(bytes),
              {{"kind", kind}});
}

void add_queue(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  out.gauge("weft_queue_requests", "Requests that were taken and not yet admitted.", m.queued_requests.value());
  out.gauge("weft_queue_tokens", "Prompt tokens of those.", m.queued_tokens.value());
  out.gauge("weft_queue_limit_requests", "Requests that may wait.", static_cast<double>(info.max_queued_requests));
  out.gauge("weft_queue_limit_tokens", "Prompt tokens that may wait; 0: no bound.",
            static_cast<double>(info.max_queued_tokens));
}

void add_kv(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  out.gauge("weft_kv_capacity_tokens", "Tokens that the KV memory holds.", static_cast<double>(info.capacity_tokens));
  out.gauge("weft_kv_blocks", "Virtual blocks.", static_cast<double>(info.blocks));
  out.gauge("weft_kv_blocks_held", "Virtual blocks that sequences hold.", m.blocks_held.value());
  out.gauge("weft_kv_blocks_cached", "Virtual blocks that nobody holds and whose content can be found again.",
            m.blocks_cached.value());

  std::vector<double> tokens;
  for (const Gauge& rank : m.rank_kv_tokens) tokens.push_back(rank.value());
  if (tokens.empty()) tokens.assign(static_cast<size_t>(info.dcp), 0);
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  const double capacity = std::max(1.0, static_cast<double>(info.blocks) * info.block_size);  // of one rank
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    out.gauge("weft_kv_rank_tokens", "Tokens whose KV a rank of a DCP group holds for running sequences.", tokens[rank],
              {{"dcp_rank", std::to_string(rank)}});
  out.gauge("weft_kv_rank_tokens_min", "The same, of the rank with the fewest.", *least);
  out.gauge("weft_kv_rank_tokens_max", "The same, of the rank with the most.", *most);
  out.gauge("weft_kv_rank_usage_min", "Share of a rank's KV rows, of the rank with the fewest tokens, 0 to 1.",
            *least / capacity);
  out.gauge("weft_kv_rank_usage_max", "Share of a rank's KV rows, of the rank with the most tokens, 0 to 1.", *most / capacity);

  constexpr const char* kHits = "Prompt tokens found in the prefix cache, by how they were taken over.";
  out.counter("weft_prefix_cache_hit_tokens_total", kHits, m.prefix_hits_shared, {{"source", "shared_blocks"}});
  out.counter("weft_prefix_cache_hit_tokens_total", kHits, m.prefix_hits_copied, {{"source", "copied_rows"}});
  out.counter("weft_kv_block_copies_total", "Blocks that were copied in part, because a prefix ends within them.", m.kv_copies);
  out.counter("weft_kv_copied_tokens_total", "Tokens copied so.", m.kv_copied_tokens);
}

void add_steps(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  out.counter("weft_steps_total", "Steps of the engine.", m.steps);
  out.counter("weft_step_rows_total", "Tokens in those steps.", m.step_rows);
  out.histogram("weft_step_duration_seconds", "Time of a step's forward pass, on the first rank.", m.step_duration);
  if (info.dcp == 1) return;
  constexpr const char* kRows = "Tokens of steps, by how they saw what was cached before their step.";
  out.counter("weft_context_rows_total", kRows, m.rows_without_context, {{"via", "none"}});
  out.counter("weft_context_rows_total", kRows, m.rows_via_queries, {{"via", "queries"}});
  out.counter("weft_context_rows_total", kRows, m.rows_via_keys, {{"via", "keys"}});
}

void add_fallbacks(const EngineMetrics& m, MetricFamilies& out) {
  constexpr const char* kPreempted = "Sequences that gave up their blocks, by whose growth took them.";
  out.counter("weft_preemptions_total", kPreempted, m.preemptions_for_older, {{"reason", "older_sequence_grew"}});
  out.counter("weft_preemptions_total", kPreempted, m.preemptions_for_itself, {{"reason", "no_block_to_grow"}});
  for (const auto& [kind, count] :
       {std::pair{"partial_hit_dropped", &m.partial_hits_dropped}, std::pair{"admission_deferred", &m.admissions_deferred},
        std::pair{"decode_postponed", &m.decodes_postponed}, std::pair{"prompt_not_looked_up", &m.prompts_not_looked_up}})
    out.counter("weft_fallbacks_total", "Times that something was done in a slower way, by what it was.", *count,
                {{"kind", kind}});
}

/// Of every rank of this process: one value of each operation that its group has.
template <typename Value>
void add_of_ranks(const EngineMetrics& m, const BackendInfo& info, const std::string& name, const char* help,
                  MetricFamilies& out, const Value& value) {
  for (size_t i = 0; i < m.exchange.size(); ++i) {
    for (size_t operation = 0; operation < ExchangeCounters::kNames.size(); ++operation) {
      const bool of_tp = operation == ExchangeCounters::all_reduce || operation == ExchangeCounters::gather_logits;
      if ((of_tp ? info.tp : info.dcp) == 1) continue;
      out.counter(name, help, value(m.exchange[i]->of[operation]),
                  {{"rank", std::to_string(m.first_rank + static_cast<int>(i))},
                   {"operation", std::string(ExchangeCounters::kNames[operation])}});
    }
  }
}

void add_exchange(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  using Counts = ExchangeCounters::Counts;
  const auto number = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  add_of_ranks(m, info, "weft_exchange_calls_total", "Group operations of a rank of this process.", out,
               [&](const Counts& counts) { return number(counts.calls); });
  add_of_ranks(m, info, "weft_exchange_bytes_total", "Bytes that a rank received from its peers.", out,
               [&](const Counts& counts) { return number(counts.bytes); });
  add_of_ranks(m, info, "weft_exchange_seconds_total", "Time of a rank in group operations: moving data, waiting for peers.",
               out, [&](const Counts& counts) { return number(counts.nanoseconds) * 1e-9; });
  if (info.dcp == 1) return;
  for (size_t i = 0; i < m.exchange.size(); ++i)
    out.counter("weft_merge_seconds_total", "Time of a rank in merging the partials that came from its peers.",
                number(m.exchange[i]->merge_nanoseconds) * 1e-9,
                {{"rank", std::to_string(m.first_rank + static_cast<int>(i))}});
}

}  // namespace

void add_weft_metrics(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out) {
  add_configuration(m, info, out);
  add_queue(m, info, out);
  add_kv(m, info, out);
  add_steps(m, info, out);
  add_fallbacks(m, out);
  add_exchange(m, info, out);
}

}  // namespace weft
