#pragma once

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

// The operators of the same names in Ops.

void argmax(Pool& pool, ConstView logits, int32_t* ids);
void log_prob(Pool& pool, ConstView logits, const int32_t* ids, float* out);

}  // namespace weft::cpu
