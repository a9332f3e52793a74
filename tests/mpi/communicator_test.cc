// Started by mpirun: every process runs the same tests at the same time.

#include <memory>

#include "comm/mpi_group.h"
#include "conformance/communicator_cases.h"
#include "mpi/run.h"

namespace weft {
namespace {

/// Runs body on the ranks of this process.
void on_own_ranks(const MpiGroup::Members& members, const std::function<void(Communicator&)>& body) {
  MpiGroup group(test::processes(), members);
  const int own_first = test::processes().index() * members.per_process;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members.size; ++rank) {
    const int global = members.first + rank;
    if (global < own_first || global >= own_first + members.per_process) continue;
    threads.emplace_back([&, rank] { body(*group.join(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr Backend kMpi{"Mpi", [](int size, const std::function<void(Communicator&)>& body) {
                         on_own_ranks({.first = 0, .size = size, .per_process = size / test::processes().count()}, body);
                       }};
/// Begins and ends inside of processes: with 2 processes the second has one rank of it more than the first.
constexpr Backend kMpiPart{"MpiPart", [](int size, const std::function<void(Communicator&)>& body) {
                             const int per_process = (size + 1) / test::processes().count() + 1;
                             on_own_ranks({.first = 2, .size = size, .per_process = per_process}, body);
                           }};

std::vector<Case> cases() {
  const int count = test::processes().count();
  return {{kMpi, count}, {kMpi, 2 * count}, {kMpiPart, 2 * count - 1}};
}

INSTANTIATE_TEST_SUITE_P(Groups, CommunicatorTest, ::testing::ValuesIn(cases()), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace weft
