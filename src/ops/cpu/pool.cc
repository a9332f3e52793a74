#include "ops/cpu/pool.h"

#include <omp.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weft {
namespace {

// About 20 us on the machines at hand: longer than the gap between two operators of a step, shorter than what waking a
// sleeping thread costs everyone else when the cores are shared.
constexpr int kSpins = 1500;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// oneDNN is an OpenMP build and asks the calling thread how many threads it may use. Ours are cut by the pool already.
void use_one_openmp_thread() {
  thread_local bool done = false;
  if (done) return;
  omp_set_num_threads(1);
  done = true;
}

}  // namespace

struct Pool::State {
  // The tasks of the current job that nobody has taken, in the low half; the number of the job in the high half, so that a
  // worker that slept through a job cannot take a task of the next one with the function of the last.
  std::atomic<uint64_t> open{0};
  std::atomic<int64_t> unfinished{0};
  Job job;            // Written before `open` is published, read only by who took a task: the job cannot end before that task.
  int64_t tasks = 0;  // Likewise.
  std::atomic<bool> failed{false};

  std::mutex mutex;  // Guards sleeping and waking, and `error`.
  std::condition_variable work, finished;
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::exception_ptr error;
  std::vector<std::thread> workers;

  /// Also runs where the constructor of the pool got only some of its threads.
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop.store(true);
    }
    work.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  static uint64_t left(uint64_t ticket) { return ticket & std::numeric_limits<uint32_t>::max(); }

  /// Takes one task and runs it; false when none is open.
  bool run_one(int thread) {
    uint64_t ticket = open.load();
    do {
      if (left(ticket) == 0) return false;
    } while (!open.compare_exchange_weak(ticket, ticket - 1));
    if (!failed.load(std::memory_order_relaxed)) {
      try {
        job.call(job.body, tasks - static_cast<int64_t>(left(ticket)), thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        failed.store(true, std::memory_order_relaxed);
      }
    }
    if (unfinished.fetch_sub(1) == 1 && caller_sleeps.load()) {
      const std::lock_guard lock(mutex);
      finished.notify_one();
    }
    return true;
  }

  void work_loop(int thread) {
    use_one_openmp_thread();
    for (int spins = 0; !stop.load();) {
      if (run_one(thread)) {
        spins = 0;
      } else if (++spins < kSpins) {
        pause();
      } else {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        work.wait(lock, [&] { return stop.load() || left(open.load()) != 0; });
        sleepers.fetch_sub(1);
        spins = 0;
      }
    }
  }

  void wait_until_finished() {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (unfinished.load() == 0) return;
      pause();
    }
    std::unique_lock lock(mutex);
    caller_sleeps.store(true);
    finished.wait(lock, [&] { return unfinished.load() == 0; });
    caller_sleeps.store(false);
  }
};

Pool::Pool(int threads) : state_(std::make_unique<State>()) {
  WEFT_CHECK_GE(threads, 1);
  State& state = *state_;
  state.workers.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) state.workers.emplace_back([&state, thread] { state.work_loop(thread); });
  } catch (const std::system_error& error) {
    throw SystemError("cannot start the threads of a rank: {}, threads {}, started {}; lower --threads", error.what(), threads,
                      state.workers.size() + 1);
  }
}

Pool::~Pool() = default;

int Pool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void Pool::run_job(int64_t tasks, Job job) {
  use_one_openmp_thread();
  State& state = *state_;
  if (tasks <= 1 || state.workers.empty()) {
    for (int64_t i = 0; i < tasks; ++i) job.call(job.body, i, 0);
    return;
  }
  WEFT_CHECK_LE(tasks, static_cast<int64_t>(std::numeric_limits<uint32_t>::max()));
  state.job = job;
  state.tasks = tasks;
  state.unfinished.store(tasks);
  const uint64_t number = (state.open.load() >> 32) + 1;
  state.open.store(number << 32 | static_cast<uint64_t>(tasks));
  if (state.sleepers.load() != 0) {
    { const std::lock_guard lock(state.mutex); }
    state.work.notify_all();
  }
  while (state.run_one(0)) {
  }
  state.wait_until_finished();
  if (state.failed.load(std::memory_order_relaxed)) {
    state.failed.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(state.error, nullptr));
  }
}

}  // namespace weft
