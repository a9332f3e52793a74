#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/mpi_group.h"

namespace weft {

/// How process 0, which decides, tells the other processes of a run what to do. Ranks inside a process get plans by pointer
/// and need no link.
/// Thread: one at a time.
class PlanLink {
 public:
  enum class Order : uint8_t {
    start,  ///< load the ranks; bytes: what all must agree on
    run,    ///< run a step plan; bytes: the plan
    stop,   ///< give the ranks back
    leave,  ///< process 0 has ended: so does the run
  };

  /// `processes` outlives the link.
  explicit PlanLink(Processes& processes) : processes_(processes) {}

  /// Process 0. Throws SystemError once a process is lost.
  void broadcast(Order order, std::span<const std::byte> bytes = {});

  struct Received {
    Order order;
    std::span<const std::byte> bytes;  ///< until the next call
  };
  /// The other processes: waits for the next order. Throws SystemError once a process is lost.
  Received receive();

 private:
  Processes& processes_;
  std::vector<std::byte> buffer_;
};

}  // namespace weft
