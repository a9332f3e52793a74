#pragma once

#include <array>
#include <vector>

#include "base/counters.h"
#include "exchange/exchange_counters.h"

namespace weft {

/// What the engine counts while it runs, for /metrics and the log. The engine thread writes, any thread reads.
/// A block is a virtual block of block_size * dcp tokens. docs/metrics.md says what each number means to a user.
///
/// The bounds of the histograms are those of vLLM's metrics of the same names, so that dashboards read the same quantiles.
struct EngineMetrics {
  static constexpr std::array kFirstToken{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
  static constexpr std::array kBetweenTokens{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                             0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
  static constexpr std::array kLatency{0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                       30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
  /// 1, 2 and 5 times powers of ten. A reader leaves out those above the longest request, where nothing can be.
  static constexpr std::array kTokens{1.0,     2.0,      5.0,      10.0,     20.0,      50.0,      100.0,
                                      200.0,   500.0,    1000.0,   2000.0,   5000.0,    10000.0,   20000.0,
                                      50000.0, 100000.0, 200000.0, 500000.0, 1000000.0, 2000000.0, 5000000.0};
  static constexpr std::array kFew{1.0, 2.0, 5.0, 10.0, 20.0};
  static constexpr std::array kStepTokens{1.0,   8.0,    16.0,   32.0,   64.0,   128.0,  256.0,
                                          512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0};
  static constexpr std::array kStepSeconds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                           0.25,   0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};

  // --- what there is now ------------------------------------------------------------------------------------------------
  Gauge running, waiting;                ///< choices (sequences)
  Gauge queued_requests, queued_tokens;  ///< what counts towards the bounds of the queue: requests not yet admitted
  Gauge blocks_held;                     ///< blocks that sequences hold
  Gauge blocks_cached;                   ///< blocks that nobody holds and whose content can be found again
  Gauge kv_usage;                        ///< blocks_held / all blocks
  /// Tokens whose KV each rank of a DCP group holds for running sequences, a shared block counted once; looked after ten times
  /// a second, and whenever nothing runs any more. The loop gives it its size before anybody reads.
  std::vector<Gauge> rank_kv_tokens;

  // --- tokens and requests so far ---------------------------------------------------------------------------------------
  Counter prompt_tokens, generated_tokens;
  Counter computed_prompt_tokens;                  ///< of the prompt tokens: not found in the cache
  Counter prefix_queries, prefix_hits;             ///< tokens; a preempted sequence's second admission does not count
  Counter prefix_hits_shared, prefix_hits_copied;  ///< of the hits: whole blocks, and rows copied from one that matches in part
  Counter finished_stop, finished_length, finished_abort, finished_error;  ///< choices
  Counter refused_queue_requests, refused_queue_tokens;                    ///< by the bounds of the queue
  Counter kv_copies, kv_copied_tokens;                                     ///< copy-on-write: blocks, and their tokens

  // --- steps ------------------------------------------------------------------------------------------------------------
  Counter steps, step_rows;
  Counter rows_without_context, rows_via_queries, rows_via_keys;  ///< by how they see what was cached before their step
  std::vector<const ExchangeCounters*> exchange;                  ///< of the ranks of this process; set before anybody reads
  int first_rank = 0;                                             ///< the tp rank of the first of them

  // --- what had to be done another way ----------------------------------------------------------------------------------
  Counter preemptions;             ///< all
  Counter preemptions_for_older;   ///< the youngest gave its blocks to an older one
  Counter preemptions_for_itself;  ///< the one that grew was the youngest, and waits
  Counter partial_hits_dropped;    ///< no block was left to copy a partly matching one into
  Counter admissions_deferred;     ///< to the next step: this one changes too many table entries
  Counter decodes_postponed;       ///< a step without them: the lists of penalties and biases were full
  Counter prompts_not_looked_up;   ///< requests whose prompt rows are wanted, and so are computed anew

  Histogram time_to_first_token{kFirstToken}, time_per_output_token{kBetweenTokens};
  Histogram request_time_per_output_token{kBetweenTokens};  ///< the mean of a choice, of those with two tokens or more
  Histogram e2e_latency{kLatency}, queue_time{kLatency}, prefill_time{kLatency}, decode_time{kLatency},
      inference_time{kLatency};
  Histogram request_prompt_tokens{kTokens}, request_generated_tokens{kTokens}, request_max_tokens{kTokens};
  Histogram request_most_generated_tokens{kTokens};  ///< of a request's choices the longest
  Histogram request_computed_tokens{kTokens};        ///< of a request's prompt
  Histogram request_choices{kFew};
  Histogram iteration_tokens{kStepTokens};
  Histogram step_duration{kStepSeconds};
};

}  // namespace weft
