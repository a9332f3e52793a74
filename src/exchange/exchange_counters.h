#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/counters.h"

namespace weft {

/// What one rank's exchange has done so far, by operation. A group of one rank moves nothing and counts nothing.
///
/// Bytes are those that the rank received from its peers: of a gather or an exchange their slices; of a sum of n ranks the
/// least that it takes, 2 (n - 1) / n of the data. So all ranks of a group have the same, and the traffic of a group is the
/// sum.
///
/// Time is what the rank's thread spent in the call, moving bytes and waiting for the slowest peer: a rank that is always late
/// has the least of it. Merging what arrived is work, not waiting, and has a counter of its own.
///
/// Thread: the rank counts, any thread reads.
struct ExchangeCounters {
  enum Operation : uint8_t { gather_queries, exchange_partials, gather_context, all_reduce, gather_logits };
  static constexpr std::array<std::string_view, 5> kNames{"gather_queries", "exchange_partials", "gather_context", "all_reduce",
                                                          "gather_logits"};
  struct Counts {
    Counter calls, bytes, nanoseconds;
  };

  std::array<Counts, kNames.size()> of;
  Counter merge_nanoseconds;

  /// Of all operations, without the merges.
  int64_t nanoseconds() const {
    int64_t sum = 0;
    for (const Counts& counts : of) sum += counts.nanoseconds.value();
    return sum;
  }
};

}  // namespace weft
