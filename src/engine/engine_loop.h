#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/prefix_index.h"
#include "engine/engine_metrics.h"
#include "engine/plan_builder.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "engine/submission.h"

namespace weft {

/// The engine without threads: takes requests, runs one step at a time, appends events to streams.
///
/// Deterministic: the same submissions, cancellations, times and seed between the same steps give the same plans and events.
/// Thread: engine thread only. Allocates nothing in step() unless a request captures.
class EngineLoop {
 public:
  struct Options {
    BlockLayout layout;
    int64_t blocks = 0;  ///< of the pool
    Scheduler::Limits limits;
    int64_t max_model_len = 0;  ///< tokens of one sequence, prompt and answer
    int32_t vocab = 0;
    std::vector<int32_t> end_tokens;  ///< the model's own
    bool prefix_caching = true;
    bool batch_invariant = false;
    double tpot_target_ms = 0;  ///< 0: prefill chunks as large as the token budget
    uint64_t seed = 0;
    std::string fingerprint;           ///< model and layout: root of the prefix keys
    std::array<uint8_t, 16> secret{};  ///< of the prefix hash
  };
  /// `builder`, `runner` and `metrics` outlive the loop, which gives the metrics their gauges of ranks.
  EngineLoop(const Options& options, PlanBuilder& builder, StepRunner& runner, EngineMetrics& metrics);
  ~EngineLoop();

  using SubmissionPtr = std::unique_ptr<Submission>;
  /// Takes the memory that a checked request needs while it runs. Any thread may call it.
  static SubmissionPtr prepare(Request request, std::shared_ptr<RequestStream> stream, const Options& options);

  void add(SubmissionPtr submission, int64_t now_us);
  /// Ends what is left of the request before the next step. Unknown and ended ids are fine.
  void cancel(uint64_t id, int64_t now_us);
  /// Runs one step. False if nothing waits or runs. Throws what the runner throws; fail_all() is then the way out.
  bool step(int64_t now_us);
  /// Ends every request with an error.
  void fail_all(const std::string& why, int64_t now_us);

  /// Calls visit(request id, tokens whose KV is stored) for every running choice, in order of admission.
  void each_running(const std::function<void(uint64_t id, int64_t kv_tokens)>& visit) const;
  int64_t running() const;  ///< choices
  int64_t waiting() const;  ///< choices
  /// Forgets every cached prefix that nobody holds.
  void reset_prefix_cache();
  void check_invariants() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft
