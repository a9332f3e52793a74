#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace weft {

/// Tells the processor that this is a waiting loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

/// How often a thread may spin before it sleeps, where `threads` threads wait for one another. One pause takes 10 to 50 ns,
/// so this is some 20 us: more than a step between collectives usually differs, and about what a sleep and a wake-up cost.
/// With more threads than cores a spinning thread only keeps the awaited one from running.
inline int spins_for(int threads) {
  constexpr int kSpins = 1000;
  return threads <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0;
}

/// Waits until `word` is no longer `old` and returns what it is then (acquire): spins up to `spins` times, then sleeps.
/// Whoever changes the word does so by a read-modify-write, which cannot pass the look for sleepers in the notify_all() after
/// it.
inline uint32_t wait_for_change(const std::atomic<uint32_t>& word, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
    spin_pause();
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace weft
