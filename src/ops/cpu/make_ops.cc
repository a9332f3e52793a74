#include "ops/make_ops.h"

#include <algorithm>
#include <cctype>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/panel.h"
#include "ops/cpu/targets.h"
//
#include "hwy/targets.h"

namespace weft {

std::unique_ptr<Ops> make_cpu_ops(int threads, bool invariant) {
  return std::make_unique<CpuOps>(threads, invariant ? cpu::ManyRows::panels : cpu::fastest_for_many_rows());
}

std::string cpu_instruction_set() {
  if (cpu::avx512_bf16_panel_kernel(DType::bf16) != nullptr) return "avx512_bf16";
  const int64_t usable = hwy::SupportedTargets() & static_cast<int64_t>(HWY_TARGETS);
  const int64_t best = usable & -usable;  // Highway numbers its targets from the best on.
  if (best == HWY_AVX3) return "avx512";
  std::string name = hwy::TargetName(best);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace weft
