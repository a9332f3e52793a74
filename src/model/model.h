#pragma once

#include "base/tensor.h"
#include "model/step_plan.h"

namespace weft {

/// One rank's forward pass: all that the engine knows of a model. Every rank of a team runs the same plan.
/// Thread: the rank's own.
class Model {
 public:
  virtual ~Model() = default;
  /// Runs the plan. `hidden` [T, H] holds the rows that come from the stage before, or leave for the stage after; empty where
  /// the team has all layers. Ids and log probabilities are filled on every rank, logits and records on tp rank 0.
  virtual void forward(const StepPlan& plan, View hidden, StepResult& result) = 0;
};

}  // namespace weft
