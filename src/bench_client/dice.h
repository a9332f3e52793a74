#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weft::bench {

/// Seeded random numbers. What they are for is a part of the seed, so that one use does not shift another's numbers.
class Dice {
 public:
  enum class For : uint32_t { lengths = 1, tokens = 2, prefix = 3, order = 4, arrivals = 5, stand_ins = 6 };

  Dice(uint64_t seed, For use, uint64_t index = 0) {
    std::seed_seq words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(use),
                        static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
    bits_.seed(words);
  }

  /// Uniform in [low, high].
  int64_t in(int64_t low, int64_t high) {
    WEFT_CHECK_LE(low, high);
    const uint64_t count = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
    if (count == 0) return static_cast<int64_t>(bits_());
    // Numbers below the remainder of 2^64 would make small results more likely.
    const uint64_t remainder = -count % count;
    uint64_t drawn = bits_();
    while (drawn < remainder) drawn = bits_();
    return static_cast<int64_t>(static_cast<uint64_t>(low) + drawn % count);
  }
  /// Of mean 1; its variance is 1 / shape.
  double gamma(double shape) { return std::gamma_distribution<double>(shape, 1 / shape)(bits_); }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<size_t>(in(0, static_cast<int64_t>(i) - 1))]);
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace weft::bench
