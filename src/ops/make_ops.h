#pragma once

#include <memory>

#include "ops/ops.h"

namespace weft {

/// The operators of one CPU rank on `threads` threads.
std::unique_ptr<Ops> make_cpu_ops(int threads);

}  // namespace weft
