#pragma once

#include <cstdint>

namespace weft::test {

/// How often the calling thread has taken memory with operator new so far. A program that calls this has its operators new and
/// delete replaced by ones that count.
int64_t allocations_of_this_thread();
/// The same of all threads together, those that have ended included.
int64_t allocations_of_all_threads();

}  // namespace weft::test
