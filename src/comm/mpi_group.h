#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/peer_watch.h"

namespace weft {

/// The processes that mpirun started together, seen from one of them. MPI carries the data; it says nothing when a process
/// dies, so a PeerWatch does.
///
/// Thread: made, used for messages and destroyed by one thread at a time; failure(), on_loss() and abort() by any.
class Processes {
 public:
  /// Joins the others. Nothing where mpirun did not start this process, or started it alone: then nothing of MPI runs. Throws
  /// SystemError where the processes do not find one another, UserError where this build has no MPI.
  static std::unique_ptr<Processes> join_launched();
  /// After leave(0) on all processes waits for them; otherwise leaves MPI to the end of the process.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int index() const;
  int count() const;

  /// Process 0: sends a message to all others and returns when `bytes` may change. Throws SystemError once a process is lost.
  void broadcast(int kind, std::span<const std::byte> bytes);
  /// The others: waits for the next message and returns its kind; -1 once process 0 has left. `bytes` grows as needed. Throws
  /// SystemError once a process is lost.
  int receive(std::vector<std::byte>& bytes);

  /// Ends all groups in all processes: this one cannot go on.
  void abort(const std::string& why) noexcept;
  /// Why the run is over; empty while all is well.
  std::string loss() const;
  /// Set `call` to hear of the loss of a process, on another thread; at once if it has come already. Empty takes it back.
  void on_loss(std::function<void(const std::string& why)> call);

  /// Tells the others that this process ends with `status`, last thing in main.
  void leave(int status, const std::string& why);
  /// Set once process 0 has said that it ends: its status, and why if that is not 0.
  std::optional<PeerWatch::Farewell> farewell() const;

 private:
  friend class MpiGroup;
  struct Parts;
  Processes();
  std::unique_ptr<Parts> parts_;
};

/// A group of ranks in several processes, several ranks to a process, each a thread.
///
/// A rank copies what it sends into a buffer of its process and what it receives out of it. The last rank of a process that
/// comes to a meeting exchanges the buffers with the other processes, while its peers wait. Long calls are several meetings,
/// so that the buffers have a fixed size and nothing is allocated after the start. No one but a rank itself touches its memory.
///
/// Different calls or sizes on the ranks of a group are our bug and end the process. An aborted call leaves `out` undefined.
///
/// Thread: join() and abort() may be called by any. The group outlives the communicators, the processes outlive the group.
class MpiGroup {
 public:
  /// Ranks [first, first + size) of a run that has ranks [p * per_process, (p + 1) * per_process) in process p.
  struct Members {
    int first = 0, size = 1;
    int per_process = 1;
  };
  /// Every process makes the same groups in the same order, also those that it has no rank in.
  MpiGroup(Processes& processes, const Members& members);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  /// The communicator of `rank`, counted in the group, which must be one of this process. Once per rank.
  std::unique_ptr<Communicator> join(int rank);
  /// As Communicator::abort, for someone who is not a rank.
  void abort() noexcept;

 private:
  friend class Processes;
  class Shared;
  class Rank;
  std::unique_ptr<Shared> shared_;
};

}  // namespace weft
