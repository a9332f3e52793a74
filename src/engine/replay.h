#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/flight_recorder.h"

namespace weft {

/// What came of running a flight again.
struct ReplayReport {
  int64_t steps = 0;           ///< that were run and gave what was recorded
  int64_t rebuilt_tokens = 0;  ///< whose KV was computed again, because it was older than the flight

  /// The first step that gave something else.
  struct Difference {
    uint64_t step = 0;
    int rank = -1;  ///< the first rank whose checksum differs, or -1: the ranks agree, the tokens differ
    int32_t row = -1, recorded = 0, now = 0;  ///< the first sampled token that differs, or -1
  };
  std::optional<Difference> difference;
  std::string failure;       ///< of a step that failed now: what it said
  bool failed_then = false;  ///< the step that the report ends with failed when it was recorded
};

/// Runs the steps of a flight again on the CPU, with the configuration that they were recorded under. KV that is older than the
/// flight is computed again from its tokens, in chunks of its own: bits may then differ where they do not matter, and a token
/// where two were almost equally likely. Throws UserError or SystemError where the model cannot be loaded any more.
ReplayReport replay(const Flight& flight, const std::function<void(const std::string&)>& progress = {});

}  // namespace weft
