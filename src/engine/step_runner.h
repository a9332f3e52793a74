#pragma once

#include "model/step_plan.h"

namespace weft {

/// Carries out plans: all that the engine's loop knows of ranks and models. The ranks' team is one, the simulator's witness
/// another.
/// Thread: engine thread only.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// Runs the plan on all ranks and returns what came of it, valid until the next call. Throws SystemError where a rank fails;
  /// the runner is dead afterwards.
  virtual const StepResult& run(const StepPlan& plan) = 0;
};

}  // namespace weft
