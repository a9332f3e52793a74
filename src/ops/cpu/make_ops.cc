#include "ops/make_ops.h"

#include "ops/cpu/cpu_ops.h"

namespace weft {

std::unique_ptr<Ops> make_cpu_ops(int threads) { return std::make_unique<CpuOps>(threads); }

}  // namespace weft
