#include <memory>

#include "comm/thread_group.h"
#include "conformance/communicator_cases.h"

namespace weft {
namespace {

constexpr Backend kThreads{"Threads", [](int size, const std::function<void(Communicator&)>& body) {
                             ThreadGroup group(size);
                             std::vector<std::thread> threads;
                             for (int rank = 0; rank < size; ++rank) {
                               threads.emplace_back([&, rank] { body(*group.join(rank)); });
                             }
                             for (std::thread& thread : threads) thread.join();
                           }};

INSTANTIATE_TEST_SUITE_P(Groups, CommunicatorTest,
                         ::testing::Values(Case{kThreads, 1}, Case{kThreads, 2}, Case{kThreads, 3}, Case{kThreads, 4},
                                           Case{kThreads, 8}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace weft
