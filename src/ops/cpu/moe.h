#pragma once

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// Chooses experts as Ops::route describes it. Scores are computed in float64, so that experts rank as their logits do.
void route(Pool& pool, ConstView logits, const Routing& routing, View experts, View weights);

/// A stable counting sort of (row, choice) by expert.
void group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows);

}  // namespace weft::cpu
