#include "ops/make_ops.h"

#include "ops/cpu/cpu_ops.h"

namespace weft {

std::unique_ptr<Ops> make_cpu_ops(int threads, bool invariant) {
  return std::make_unique<CpuOps>(threads, invariant ? cpu::ManyRows::panels : cpu::fastest_for_many_rows());
}

}  // namespace weft
