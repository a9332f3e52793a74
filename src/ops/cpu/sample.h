#pragma once

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

// The operators of the same names in Ops.

size_t sampling_workspace_bytes(const Pool& pool, int64_t logit_rows, int64_t vocab);
void sample(Pool& pool, const SampledLogits& in, View workspace, int32_t* ids);
void log_probs(Pool& pool, const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out);

}  // namespace weft::cpu
