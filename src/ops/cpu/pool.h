#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace weft {

/// The threads of one CPU rank: the caller and threads - 1 workers, which spin briefly for the next job and then sleep, so that
/// more threads than cores still work. Every thread of a pool runs OpenMP code (inside oneDNN) with one OpenMP thread.
///
/// Thread: run() is called by one thread at a time, and not from inside a task.
class Pool {
 public:
  /// threads >= 1; with 1 there are no workers and run() is a plain loop. Throws SystemError where the system gives no more
  /// threads.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;

  /// Calls task(i, thread) for every i in [0, tasks) and returns when all are done. Tasks are taken one by one in ascending
  /// order by whichever thread is free; `thread` in [0, threads()) picks scratch memory. A result may not depend on it. An
  /// exception of a task is rethrown here once all threads have stopped; tasks not yet begun are then dropped. Allocates
  /// nothing, and waits only for tasks that a worker has taken, not for workers that are still waking up.
  template <typename Task>
  void run(int64_t tasks, Task&& task) {
    using Body = std::remove_reference_t<Task>;
    run_job(tasks, {.call = [](void* body, int64_t i, int thread) { (*static_cast<Body*>(body))(i, thread); },
                    .body = const_cast<void*>(static_cast<const void*>(&task))});
  }

 private:
  /// A borrowed callable.
  struct Job {
    void (*call)(void* body, int64_t task, int thread) = nullptr;
    void* body = nullptr;
  };
  void run_job(int64_t tasks, Job job);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
