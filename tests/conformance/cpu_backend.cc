#include <map>
#include <memory>

#include "conformance/backend.h"
#include "ops/cpu/cpu_ops.h"
#include "support/mirrored_ops.h"

namespace weft::test {
namespace {

struct Way {
  int threads = 1;
  cpu::ManyRows many_rows = cpu::ManyRows::panels;
  bool mirrored = false;  ///< in memory that is not the test's
  auto operator<=>(const Way&) const = default;
};

Ops& ops_of(Way way) {
  static std::map<Way, std::unique_ptr<Ops>> all;
  std::unique_ptr<Ops>& one = all[way];
  if (!one) one = std::make_unique<CpuOps>(way.threads, way.many_rows);
  if (way.mirrored && dynamic_cast<MirroredOps*>(one.get()) == nullptr) one = std::make_unique<MirroredOps>(std::move(one));
  return *one;
}

}  // namespace

Ops& ops() { return ops_of({.threads = 2}); }

Ops& any_ops(Gen& gen) {
  return ops_of({.threads = static_cast<int>(gen.in(1, 3)),
                 .many_rows = gen.pick({cpu::ManyRows::panels, cpu::ManyRows::onednn}),
                 .mirrored = gen.chance(0.3)});
}

Ops& any_invariant_ops(Gen& gen) { return ops_of({.threads = static_cast<int>(gen.in(1, 3)), .mirrored = gen.chance(0.3)}); }

}  // namespace weft::test
