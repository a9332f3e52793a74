// The files that take the place of MPI where it is not installed.

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/check.h"
#include "comm/mpi_group.h"

namespace weft {
namespace {

TEST(WithoutMpi, OneProcessRunsAndSeveralAreRefused) {
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ::unsetenv("PMI_SIZE");
  EXPECT_EQ(Processes::join_launched(), nullptr);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    ::setenv(name, "1", 1);
    EXPECT_EQ(Processes::join_launched(), nullptr) << name;
    ::setenv(name, "2", 1);
    EXPECT_THAT([] { Processes::join_launched(); }, ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("without MPI")))
        << name;
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace weft
