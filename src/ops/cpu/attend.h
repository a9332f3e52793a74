#pragma once

#include <memory>

#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// The memory that attend works in: each thread's tiles, and the partial results of key ranges that were split. It is what
/// was reserved, grows to the largest call seen and is then kept, so that a steady stream of steps allocates nothing.
///
/// Thread: belongs to one caller of attend at a time.
class AttendScratch {
 public:
  AttendScratch();
  ~AttendScratch();
  AttendScratch(AttendScratch&&) noexcept;
  AttendScratch& operator=(AttendScratch&&) noexcept;

  /// As Ops::reserve, for calls on `threads` threads.
  void reserve(int threads, const AttentionLimits& limits);
  static size_t reserved_bytes(int threads, const AttentionLimits& limits);

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Attention as Ops::attend describes it. The result does not depend on the number of threads: long key ranges are split into
/// parts whose number follows from the shapes and lengths alone, and parts are joined in order.
void attend(Pool& pool, AttendScratch& scratch, const Attention& args);

}  // namespace weft::cpu
