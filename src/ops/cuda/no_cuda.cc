// Linked instead of the CUDA operators where there is no CUDA toolkit.

#include "base/check.h"
#include "ops/make_ops.h"

namespace weft {

std::unique_ptr<Ops> make_cuda_ops(int device, bool) {
  throw UserError(
      "CUDA device {} cannot be used: this program was built without CUDA; build it with cmake --preset cuda, which "
      "needs the CUDA toolkit 13 or newer",
      device);
}

}  // namespace weft
