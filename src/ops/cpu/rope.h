#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// cos, sin [T, n] float32 = factor * cos/sin(positions[t] * inv_freq[i]), angles in float64.
void rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin);

/// Rotation and cache write, as RopeAppend describes them.
void rope_append(Pool& pool, const RopeAppend& args);

}  // namespace weft::cpu
