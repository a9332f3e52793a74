#include <gtest/gtest.h>

#include <cstdio>

#include "base/log.h"
#include "mpi/run.h"

namespace weft::test {
namespace {
std::unique_ptr<Processes> g_processes;
}
Processes& processes() { return *g_processes; }
}  // namespace weft::test

int main(int argc, char** argv) {
  using weft::test::g_processes;
  weft::log::start();
  g_processes = weft::Processes::join_launched();
  if (g_processes == nullptr) {
    std::fprintf(stderr, "start this with mpirun -n 2 or more\n");
    return 1;
  }
  // Process 0 writes the report; the others print what fails.
  if (g_processes->index() > 0) {
    GTEST_FLAG_SET(output, "");
    GTEST_FLAG_SET(brief, true);
  }
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  g_processes->leave(status, "a test failed");
  g_processes.reset();
  return status;
}
