#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

/// One thread per rank. What a rank owns is made, used and destroyed by jobs, so it stays on the rank's own thread.
///
/// A job that throws on some rank aborts the groups at once, so that its peers unwind from whatever collective they wait in or
/// come to. When all ranks are out, run() throws the error that came first, not those that followed from it. The team is dead
/// afterwards.
///
/// Thread: the owner's, one call at a time.
class RankTeam {
 public:
  using Job = std::function<void(int rank)>;

  /// `abort` wakes the ranks that wait for one another: it aborts every group of the team. It is called at most once, from the
  /// thread of the rank that failed first, and must not throw. Throws SystemError where the system gives no more threads.
  RankTeam(int ranks, std::function<void()> abort);
  /// Ends the threads. What jobs left behind is the owner's to destroy.
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int ranks() const { return ranks_; }

  /// Calls job(rank) on every rank's thread and returns when all have returned. Allocates nothing unless a rank fails. Throws
  /// the first error of a rank, or SystemError if the team is dead.
  void run(const Job& job);

 private:
  void rank_loop(int rank);
  void fail(std::exception_ptr error);
  void stop();

  const int ranks_;
  const std::function<void()> abort_;
  const Job* job_ = nullptr;  ///< of the current turn; null ends the threads
  bool dead_ = false;

  std::atomic<uint32_t> started_{0};   ///< turns begun by run()
  std::atomic<int> running_{0};        ///< ranks still in this turn
  std::atomic<uint32_t> finished_{0};  ///< turns that all ranks are out of

  std::mutex error_mutex_;  ///< guards error_
  std::exception_ptr error_;

  std::vector<std::thread> threads_;
};

}  // namespace weft
