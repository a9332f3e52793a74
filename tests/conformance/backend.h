#pragma once

#include "ops/ops.h"
#include "support/prop.h"

namespace weft::test {

// The backend whose operators the cases of ops_*_test.cc are about: the file that is linked decides, cpu_backend.cc or
// cuda_backend.cc. Arguments are test memory (support/test_memory.h), so it does not matter where the rank's own is.

/// Its operators, made once.
Ops& ops();
/// Any of the ways it has to run them: numbers of threads, kinds of products, memory of its own or the host's.
Ops& any_ops(Gen& gen);
/// Any of those whose products give a row the same bits whatever rows are beside it.
Ops& any_invariant_ops(Gen& gen);

}  // namespace weft::test
