#pragma once

#include "engine/engine.h"
#include "engine/plan_builder.h"
#include "model/step_limits.h"
#include "ops/ops.h"

namespace weft {

/// What a start resolves flags to, before anything is allocated.
struct ResolvedConfig {
  RankGrid grid;
  StepLimits limits;
  KvShape shape;
  EngineSizes sizes;
};

/// The one place where flags, model and memory become sizes: Engine and engine_sizes() both use it. `ops` only answers how
/// large packed matrices are.
ResolvedConfig resolve(const ModelConfig& model, const EngineConfig& config, Ops& ops);

/// How plans are built for a model whose ranks hold all its layers.
PlanBuilder::Options plan_options(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved);

/// Throws UserError where all ranks together need more than this machine can still give: memory is only taken when it is first
/// written, so the system would end the process in the middle of a run instead.
void require_memory(const ResolvedConfig& resolved);

}  // namespace weft
