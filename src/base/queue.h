#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weft {

/// A queue of bounded length, first in first out, whose memory is taken at the start.
///
/// Thread: any may call anything; what one thread pushes is popped in its order.
template <typename T>
class Queue {
 public:
  explicit Queue(size_t capacity) : slots_(capacity) { WEFT_CHECK_GE(capacity, 1u); }

  /// Waits while the queue is full. False, and `value` is dropped, once it is closed.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return closed_ || size_ < slots_.size(); });
    return put(value);
  }
  /// False where the queue is full or closed: `value` is then untouched.
  bool try_push(T& value) {
    const std::lock_guard lock(mutex_);
    return size_ < slots_.size() && put(value);
  }
  /// Nothing where the queue is empty.
  std::optional<T> try_pop() {
    const std::lock_guard lock(mutex_);
    return take();
  }
  /// Waits for a value. Nothing once the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || size_ > 0; });
    return take();
  }
  /// Takes nothing more; what is in it can still be popped. Wakes all who wait.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    room_.notify_all();
    filled_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }
  size_t capacity() const { return slots_.size(); }

 private:
  bool put(T& value) {
    if (closed_) return false;
    slots_[(first_ + size_++) % slots_.size()].emplace(std::move(value));
    filled_.notify_one();
    return true;
  }
  std::optional<T> take() {
    if (size_ == 0) return std::nullopt;
    std::optional<T> out = std::exchange(slots_[first_], std::nullopt);
    first_ = (first_ + 1) % slots_.size();
    --size_;
    room_.notify_one();
    return out;
  }

  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable room_, filled_;
  std::vector<std::optional<T>> slots_;
  size_t first_ = 0, size_ = 0;
  bool closed_ = false;
};

}  // namespace weft
