#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace weft {

/// The operators of one CPU rank on `threads` threads. With `invariant` a row of a product has the same bits whatever rows are
/// beside it, at some cost in speed for many rows; attention has a flag of its own, and all other operators are like that.
std::unique_ptr<Ops> make_cpu_ops(int threads, bool invariant = false);

/// The operators of a rank on GPU number `device`; `invariant` likewise. Throws UserError where there is no such GPU, and in a
/// program that was built without CUDA.
std::unique_ptr<Ops> make_cuda_ops(int device, bool invariant = false);

/// The best instruction set of this machine that these operators have code for: "avx512_bf16", "avx512", "avx2", or a baseline
/// such as "sse2", the portable and slow one.
std::string cpu_instruction_set();

}  // namespace weft
