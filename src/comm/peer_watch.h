#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace weft {

/// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

/// A connection to another process of the run.
struct PeerConnection {
  int process = 0;
  pid_t pid = 0;
  Descriptor socket;  ///< Unix, SOCK_SEQPACKET
};

/// Where process 0 waits for the others. The name is random, in the abstract namespace of this machine's Unix sockets, and
/// only processes of the same user are let in.
class PeerListener {
 public:
  PeerListener();
  const std::string& name() const { return name_; }
  /// Waits for processes 1 to count - 1. Throws SystemError where one does not come in time.
  std::vector<PeerConnection> accept_all(int count);

 private:
  std::string name_;
  Descriptor socket_;
};
/// Connects process `process` with process 0, which listens on `name`. Throws SystemError.
PeerConnection connect_to_first(const std::string& name, int process);

/// Knows whether the other processes of a run still live, and carries short news between them: that a group was aborted, and
/// that a process leaves. Process 0 is connected with each other process, and passes on what concerns all.
///
/// A thread of its own answers for this process and listens to the others, so that the length of a step does not matter. A
/// process is lost when its connection ends without a farewell, when its farewell says that it failed, or when nothing is
/// heard of it for `silence_ms` (it hangs or was stopped). Once a process is lost this one must end: where it still exists
/// `exit_ms` later, the thread ends it with status 1.
///
/// Thread: any may call anything. Handlers are called on the watch's own thread and must not throw.
class PeerWatch {
 public:
  struct Options {
    int64_t beat_ms = 500;
    // A stopped process must show within 10 s; the rest is for the way out.
    int64_t silence_ms = 8000;
    int64_t exit_ms = 5000;
    /// SIGTERM comes from mpirun too when another process died, and would end this one before it could say why. Where true,
    /// the watch takes the signal. Process 0 ends by it when no loss shows within `term_ms`; the others leave the decision to
    /// process 0.
    bool take_sigterm = false;
    int64_t term_ms = 500;
  };
  struct Handlers {
    /// Once, when the first process is lost.
    std::function<void(const std::string& why)> lost;
    /// Another process aborted a group.
    std::function<void(uint64_t group, int64_t after)> aborted;
  };
  /// How process 0 ended.
  struct Farewell {
    int status = 0;
    std::string why;
  };

  /// `peers`: of process 0 all others, of another process 0 alone.
  PeerWatch(int process, int count, std::vector<PeerConnection> peers, Handlers handlers, const Options& options);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Tells all processes that `group` was aborted after `after` of its meetings.
  void tell_abort(uint64_t group, int64_t after) noexcept;
  /// Tells all processes that this one fails. They lose it.
  void tell_failure(const std::string& why) noexcept;
  /// Tells that this process ends by itself with `status`; an end with another status than 0 is a loss to the others.
  void leave(int status, const std::string& why) noexcept;
  /// Set once process 0 has said that it ends. A farewell is no loss to a process that has nothing to do.
  std::optional<Farewell> farewell() const;
  /// Why the run is over; empty while all processes live.
  std::string loss() const;

 private:
  struct Frame;
  struct Peer {
    PeerConnection connection;
    int64_t heard_ms = 0;
    bool left = false;
  };

  void work();
  void read_all(Peer& peer);
  void take(Peer& peer, const Frame& frame);
  /// `peer` is where the news came from.
  void lose(const Peer* peer, const std::string& why);
  void send_failure(const std::string& text, const Peer* except = nullptr) noexcept;
  void set_deadline(int status);
  void send_all(const Frame& frame, const Peer* except = nullptr) noexcept;
  std::string name_of(const Peer& peer) const;
  void look_at_signal();
  void die_if_late();

  const int process_, count_;
  const Options options_;
  const Handlers handlers_;
  std::vector<Peer> peers_;  ///< the watch's own thread; others only send
  Descriptor wake_read_, wake_write_;
  std::atomic<bool> stop_{false}, left_{false};
  int64_t deadline_ms_ = 0, term_ms_ = 0;  ///< 0: none
  int deadline_status_ = 1;

  mutable std::mutex mutex_;  ///< guards the two below
  std::optional<Farewell> farewell_;
  std::string loss_;

  std::thread thread_;
};

}  // namespace weft
