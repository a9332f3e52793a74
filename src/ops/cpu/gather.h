#pragma once

#include <cstdint>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// Rows of the cache: k [n, kv_heads, k_dim] and v [n, kv_heads, v_dim] from `slots` [n]; -1 gives zeros. An empty v is not
/// wanted, as for a latent cache. Element types are equal, or float32 <-> bfloat16.
void gather_rows(Pool& pool, const KvView& kv, const int32_t* slots, View k, View v);

/// Copies `count` adjacent elements; the types are equal, or float32 <-> bfloat16. The storages do not overlap.
void copy_elements(const void* in, DType in_dtype, int64_t count, void* out, DType out_dtype);

}  // namespace weft::cpu
