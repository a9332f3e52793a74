#pragma once

#include <cstdint>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// Rows of the cache, as Ops::gather_rows describes.
void gather_rows(Pool& pool, const KvView& kv, const int32_t* slots, View k, View v);

}  // namespace weft::cpu
