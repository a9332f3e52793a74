#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>

namespace weft::test {

/// Seeded source of random test values.
class Gen {
 public:
  explicit Gen(uint64_t seed) : engine_(seed) {}
  /// Uniform in [low, high].
  int64_t in(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[in(0, static_cast<int64_t>(values.size()) - 1)];
  }
  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(engine_) < p; }
  double normal() { return std::normal_distribution<double>(0, 1)(engine_); }
  uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

/// Runs `body(Gen&)` for `cases` seeds and stops at the first that fails, printing its seed. WEFT_SEED=N runs that seed alone.
template <typename Body>
void for_each_case(Body body, int cases = 200) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : static_cast<uint64_t>(cases);
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("replay with WEFT_SEED=" + std::to_string(seed));
    Gen gen(seed);
    body(gen);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace weft::test
