#pragma once

#include <span>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// Joins partial results over disjoint keys, as Ops::merge describes it.
void merge(Pool& pool, std::span<const Partial> partials, View out, View lse);

}  // namespace weft::cpu
