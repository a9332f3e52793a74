#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "bench_client/token_source.h"
#include "bench_client/workload.h"

namespace weft::bench {

/// Reads a trace: a JSON object a line, which is a request or a conversation of several.
///
///   {"timestamp": 1500, "input_length": 900, "output_length": 40, "hash_ids": [7, 8]}
///   {"timestamp": 2000, "turns": [{"input_length": 300, "output_length": 80}, {"input": "And then?", "output_length": 60,
///                                  "delay": 4000}]}
///
/// timestamp: when it begins, by the clock of the trace; the earliest is the beginning of the run, lines may be in any order.
/// input_length: tokens of the prompt, or of what a turn adds to it, which are made up; input: the very text instead.
/// hash_ids: what the prompt begins with, in blocks of `block_tokens`: equal numbers are equal blocks.
/// delay: from the end of the answer before to this turn, 0 if not given. Other fields are ignored.
struct TraceSpec {
  double seconds_per_unit = 0.001;       ///< of timestamp and delay
  int64_t block_tokens = 512;            ///< a hash id stands for
  std::optional<int64_t> requests = {};  ///< stop before the conversation that would make it more
};
/// Throws UserError that names `path` and the line.
Workload trace_workload(std::string_view lines, const TraceSpec& spec, const TokenSource& source, uint64_t seed,
                        std::string_view path);

}  // namespace weft::bench
