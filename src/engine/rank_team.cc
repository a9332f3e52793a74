#include "engine/rank_team.h"

#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/spin_wait.h"

namespace weft {

RankTeam::RankTeam(int ranks, std::function<void()> abort) : ranks_(ranks), abort_(std::move(abort)) {
  WEFT_CHECK_GE(ranks, 1);
  threads_.reserve(static_cast<size_t>(ranks));
  try {
    for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { rank_loop(rank); });
  } catch (const std::system_error& error) {
    const size_t made = threads_.size();
    stop();
    throw SystemError("cannot start a thread for each rank: {}, ranks {}, started {}", error.what(), ranks, made);
  }
}

RankTeam::~RankTeam() { stop(); }

void RankTeam::run(const Job& job) {
  if (dead_) throw SystemError("the ranks are dead: a rank failed in an earlier run");
  job_ = &job;
  running_.store(ranks_, std::memory_order_relaxed);
  const uint32_t turn = finished_.load(std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_acq_rel);
  started_.notify_all();
  // The owner waits beside its ranks: it may only spin where it does not take a core from one of them.
  wait_for_change(finished_, turn, spins_for(ranks_ + 1));
  const std::lock_guard lock(error_mutex_);
  if (error_ == nullptr) return;
  dead_ = true;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void RankTeam::rank_loop(int rank) {
  for (uint32_t turn = 0;;) {
    turn = wait_for_change(started_, turn, spins_for(ranks_));
    if (job_ == nullptr) return;
    try {
      (*job_)(rank);
    } catch (...) {
      fail(std::current_exception());
    }
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      finished_.fetch_add(1, std::memory_order_acq_rel);
      finished_.notify_all();
    }
  }
}

void RankTeam::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_ != nullptr) return;
    error_ = std::move(error);
  }
  abort_();
}

void RankTeam::stop() {
  job_ = nullptr;
  started_.fetch_add(1, std::memory_order_acq_rel);
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace weft
