#pragma once

#include "comm/mpi_group.h"

namespace weft::test {

/// The processes that mpirun started to run these tests together.
Processes& processes();

}  // namespace weft::test
