#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace weft::cuda {

/// Throws SystemError where a call of the CUDA runtime failed, a launch included; `what` names it and its values.
void check(cudaError_t status, const char* what);
void check(cudaError_t status, const char* what, size_t value);

}  // namespace weft::cuda
