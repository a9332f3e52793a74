#pragma once

#include <cstdint>

#include "ops/cpu/attend_plan.h"

namespace weft::cpu {

/// What a thread works on while it attends one tile. Queries and results are transposed: in each panel of W queries, element d
/// of query i is at d * W + i. W depends on the instruction set and divides kTileQueries.
struct alignas(64) TileScratch {
  float max[kTileQueries];                         ///< largest score so far, in base 2: score * scale * log2(e)
  float sum[kTileQueries];                         ///< of 2^(score - max)
  float decay[kTileQueries];                       ///< what the last keys' new maximum multiplies the older results with
  int32_t begin[kTileQueries], end[kTileQueries];  ///< keys that each query sees in the current segment
  const void* key_rows[kTileKeys];                 ///< where the current keys and values lie; the entries behind the last key
  const void* value_rows[kTileKeys];               ///< repeat it
  float* queries = nullptr;                        ///< [panels][Dk][W]
  float* results = nullptr;                        ///< [panels][Dv][W], not yet divided by the sum
  float* keys = nullptr;                           ///< [kTileKeys][Dk] in float32, where the source is not
  float* values = nullptr;                         ///< [kTileKeys][Dv] likewise
  float* scores = nullptr;                         ///< [kTileKeys][W]
};

/// The result of one part of a tile's keys, to be joined with the others: before division by the sum.
struct PartResult {
  float* out = nullptr;  ///< [count][Dv]
  float* max = nullptr;  ///< [count], base 2
  float* sum = nullptr;  ///< [count]
};

}  // namespace weft::cpu
