#include "ops/make_ops.h"

#include "ops/cuda/cuda_ops.h"

namespace weft {

std::unique_ptr<Ops> make_cuda_ops(int device, bool invariant) { return std::make_unique<CudaOps>(device, invariant); }

}  // namespace weft
