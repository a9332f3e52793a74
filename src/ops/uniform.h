#pragma once

#ifdef __CUDACC__  // how Random123 is told to compile for both
#define R123_CUDA_DEVICE __host__ __device__
#endif
#include <Random123/philox.h>

#include <cstdint>

namespace weft {

/// The random number of one token: uniform in (0, 1), an odd multiple of 2^-53. A function of its arguments alone, the same on
/// every backend: it compiles for the host and, under nvcc, for the device.
R123_CUDA_DEVICE inline double uniform(uint64_t seed, int32_t choice, int32_t position) {
  using Philox = r123::Philox4x64;
  const Philox::ctr_type counter{{static_cast<uint32_t>(position), 0, 0, 0}};
  const Philox::key_type key{{seed, static_cast<uint32_t>(choice)}};
  const uint64_t bits = Philox()(counter, key)[0] >> 12;
  return static_cast<double>(2 * bits + 1) * 0x1p-53;
}

}  // namespace weft
