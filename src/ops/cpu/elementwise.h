#pragma once

#include <cstdint>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

// The operators of the same names in Ops. Sizes and types have been checked; the last dimension of everything but the operands
// of copy is contiguous.

void copy(Pool& pool, ConstView in, View out);
void embed(Pool& pool, const int32_t* ids, ConstView table, int64_t first_row, View out);
void rms_norm(Pool& pool, ConstView x, const float* weight, float eps, View out);
void add_rms_norm(Pool& pool, ConstView delta, View residual, const float* weight, float eps, View out);
void add(Pool& pool, ConstView y, View x);
void silu_mul(Pool& pool, ConstView gate_up, View out);

/// One row of combine_experts.
struct ExpertSum {
  const std::byte* y = nullptr;
  int64_t y_stride = 0;  ///< bytes
  const int32_t* place = nullptr;
  const float* weights = nullptr;
  int64_t top_k = 0;
  const void* shared = nullptr;  ///< or null
  void* out = nullptr;
};

/// out [T, H] = sum_j weights[t, j] * y[place[t * top_k + j]] + shared[t] (unless empty), summed in float32, rounded once.
void combine_experts(Pool& pool, ConstView y, const int32_t* place, ConstView weights, ConstView shared, View out);

}  // namespace weft::cpu
