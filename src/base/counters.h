#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace weft {

/// A number that only grows. Any thread may add and read.
class Counter {
 public:
  void add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

/// A number that goes up and down. Any thread may set and read.
class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// Counts observations in buckets with the upper bounds that it was made with, and above the last of them.
/// Any thread may observe and read; a reader may see an observation's bucket before its sum.
class Histogram {
 public:
  static constexpr size_t kMaxBounds = 24;

  /// `bounds` ascending, at most kMaxBounds, alive as long as the histogram.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds) {}

  void observe(double value, int64_t times = 1) {
    size_t i = 0;
    while (i < bounds_.size() && value > bounds_[i]) ++i;
    counts_[i].fetch_add(times, std::memory_order_relaxed);
    sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
  }
  std::span<const double> bounds() const { return bounds_; }
  /// Observations in bucket i: above bounds()[i - 1], at most bounds()[i]; i == bounds().size() is what is above them all.
  int64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::span<const double> bounds_;
  std::array<std::atomic<int64_t>, kMaxBounds + 1> counts_{};
  std::atomic<double> sum_{0};
};

}  // namespace weft
