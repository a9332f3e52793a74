#include <memory>

#include "conformance/backend.h"
#include "ops/make_ops.h"
#include "support/mirrored_ops.h"

namespace weft::test {
namespace {

/// Graphics processor 0, with products by cublasLt or by our own kernel.
Ops& ops_of(bool invariant) {
  static const std::unique_ptr<Ops> all[] = {std::make_unique<MirroredOps>(make_cuda_ops(0, false)),
                                             std::make_unique<MirroredOps>(make_cuda_ops(0, true))};
  return *all[invariant];
}

}  // namespace

Ops& ops() { return ops_of(false); }
Ops& any_ops(Gen& gen) { return ops_of(gen.chance(0.4)); }
Ops& any_invariant_ops(Gen&) { return ops_of(true); }

}  // namespace weft::test
