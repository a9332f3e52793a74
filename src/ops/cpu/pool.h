#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft {

/// The threads of one CPU rank: the caller and threads - 1 workers, which spin briefly for the next job and then sleep, so that
/// more threads than cores still work. Every thread of a pool runs OpenMP code (inside oneDNN) with one OpenMP thread.
///
/// Thread: run() is called by the thread that made the pool, and not from inside a task.
class Pool {
 public:
  /// threads >= 1; with 1 there are no workers and run() is a plain loop.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;

  /// Calls task(i, thread) for every i in [0, tasks) and returns when all are done. Tasks are taken one by one in ascending
  /// order by whichever thread is free; `thread` in [0, threads()) picks scratch memory. A result may not depend on it. An
  /// exception of a task is rethrown here once all threads have stopped.
  void run(int64_t tasks, const std::function<void(int64_t task, int thread)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
