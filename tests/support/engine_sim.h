#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/request.h"

namespace weft::test {

/// A request of a simulation, and what must come of it: the witness model read straight through.
struct SimRequest {
  Request request;
  /// One token of an answer: what it is, and what its logits were made of.
  struct Token {
    int32_t token = 0;
    FinishReason finish = FinishReason::none;
    uint64_t hidden = 0;
  };
  std::vector<std::vector<Token>> answers;  ///< of each choice; empty where only the engine knows the random key
  std::vector<uint64_t> prompt_hidden;      ///< after each token of the prompt
  bool cancelled = false;
};

/// One seed's story: the engine's limits, who comes and goes, and when.
struct SimScript {
  uint64_t seed = 0;
  int32_t vocab = 0;
  int64_t max_model_len = 0, spare_blocks = 0;
  Scheduler::Limits limits;
  bool prefix_caching = true, batch_invariant = false;
  double tpot_target_ms = 0;
  std::vector<int32_t> end_tokens;
  std::vector<SimRequest> requests;
  struct Event {
    enum class Kind : uint8_t { step, submit, cancel, wait, reset_cache } kind = Kind::step;
    size_t request = 0;   ///< submit, cancel
    int64_t wait_us = 0;  ///< wait
  };
  std::vector<Event> events;
  int64_t fail_at = -1;  ///< the step in which a rank is lost; -1: none
};
SimScript make_sim_script(uint64_t seed, int events);

/// Where the KV of a simulation lies, and how much of it there is.
struct SimLayout {
  BlockLayout layout;
  int64_t blocks = 0;
  DcpExchange exchange = DcpExchange::automatic;
  int64_t context_rows = 1;
};
/// A layout for W ranks that the script can run on, drawn from its seed.
SimLayout make_sim_layout(const SimScript& script, int ranks);

/// What came of a script.
struct SimRun {
  std::vector<std::string> wrong;  ///< what is not as it must be; empty: all is well
  std::vector<std::shared_ptr<RequestStream>> streams;
  uint64_t checksum = 0;  ///< of all plans
  int64_t steps = 0, rows = 0, preemptions = 0, copies = 0, hit_tokens = 0, waves = 0, allocations = 0;
};
/// Changes a plan before the ranks see it, to see whether the simulation notices.
using Sabotage = std::function<void(StepPlan& plan)>;
SimRun run_sim(const SimScript& script, const SimLayout& layout, const Sabotage& sabotage = {});

/// The answers of `request`, or none where they follow from the engine's own seed.
void expect_answers(SimRequest& request, int32_t vocab, const std::vector<int32_t>& end_tokens);

/// The lengths of the longest beginning that two token lists have in common.
int64_t common_tokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace weft::test
