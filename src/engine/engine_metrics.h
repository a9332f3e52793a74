#pragma once

#include <array>

#include "base/counters.h"

namespace weft {

/// What the engine counts while it runs, for /metrics and the log. The engine thread writes, any thread reads.
/// A block is a virtual block of block_size * dcp tokens.
struct EngineMetrics {
  static constexpr std::array kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,  0.5,   1.0,
                                       2.5,   5.0,    7.5,   10.0, 20.0,  40.0, 80.0, 160.0, 640.0, 2560.0};
  static constexpr std::array kTokens{1.0,    2.0,    5.0,     10.0,    20.0,    50.0,     100.0,    200.0,    500.0,    1000.0,
                                      2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0, 200000.0, 500000.0, 1000000.0};
  static constexpr std::array kFew{1.0, 2.0, 5.0, 10.0, 20.0};
  static constexpr std::array kStepTokens{1.0,   8.0,    16.0,   32.0,   64.0,   128.0,  256.0,
                                          512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0};

  Gauge running, waiting;  ///< choices (sequences)
  Gauge blocks_held;       ///< blocks that sequences hold
  Gauge blocks_cached;     ///< blocks that nobody holds and whose content can be found again
  Gauge kv_usage;          ///< blocks_held / all blocks
  Counter prompt_tokens, generated_tokens;
  Counter prefix_queries, prefix_hits;  ///< tokens; a preempted sequence's second admission does not count
  Counter preemptions;
  Counter steps, step_rows;
  Counter finished_stop, finished_length, finished_abort, finished_timeout, finished_error;  ///< choices
  Counter refused_queue_full;
  Gauge step_seconds;  ///< of the last step: model
  Histogram time_to_first_token{kSeconds}, time_per_output_token{kSeconds}, e2e_latency{kSeconds};
  Histogram queue_time{kSeconds}, prefill_time{kSeconds}, decode_time{kSeconds}, inference_time{kSeconds};
  Histogram request_prompt_tokens{kTokens}, request_generated_tokens{kTokens}, request_max_tokens{kTokens};
  Histogram request_choices{kFew};
  Histogram iteration_tokens{kStepTokens};
};

}  // namespace weft
