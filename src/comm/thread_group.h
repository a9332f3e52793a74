#pragma once

#include <memory>

#include "comm/communicator.h"

namespace weft {

/// A group of ranks that are threads of this process: they show one another pointers, meet at a barrier, and each copies or
/// adds what it needs straight from its peers' memory. Ranks spin briefly for a late peer and then sleep, so that more ranks
/// than cores work too. Different calls or sizes on the ranks of a group are our bug and end the process.
///
/// An aborted call leaves `out` undefined, and no peer reads or writes a rank's memory after its call has returned or thrown.
///
/// Thread: join() and abort() may be called by any. The group outlives the communicators.
class ThreadGroup {
 public:
  /// Requires: size >= 1.
  explicit ThreadGroup(int size);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const;
  /// The communicator of `rank`. Once per rank.
  std::unique_ptr<Communicator> join(int rank);
  /// As Communicator::abort, for someone who is not a rank.
  void abort() noexcept;

 private:
  struct Shared;
  class Rank;
  std::unique_ptr<Shared> shared_;
};

}  // namespace weft
