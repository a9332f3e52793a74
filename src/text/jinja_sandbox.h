#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace weft::jinja {

/// The bounds of one template and of one rendering of it. Whatever the template and the data, a rendering stays inside them and
/// ends.
struct Limits {
  size_t max_template_bytes = size_t{1} << 20;
  size_t max_output_bytes = size_t{64} << 20;
  /// All values that are alive at one time, the data included.
  size_t max_memory_bytes = size_t{512} << 20;
  /// About one for each node of the template that is run, and for each 64 bytes of text and each element that a filter reads.
  int64_t max_steps = 20'000'000;
  std::chrono::milliseconds max_time{10'000};
};

// Each level of the syntax tree takes at most about 2 KiB of stack, in the parser or in the interpreter: the whole engine does
// with less than 384 KiB. A macro that calls itself takes five to eight levels a call.
constexpr int kMaxDepth = 200;
/// Of lists in lists, in the data and in what a template makes.
constexpr int kMaxValueDepth = 100;

/// An operation that Python refuses too, or a bound that is passed. The interpreter adds the line of the template.
class OperationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Counts what a rendering uses. Thread: that of the rendering.
class Sandbox {
 public:
  explicit Sandbox(const Limits& limits)
      : limits_(limits), steps_left_(limits.max_steps), deadline_(std::chrono::steady_clock::now() + limits.max_time) {}
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  const Limits& limits() const { return limits_; }

  /// Work is done. Throws OperationError when it was too much.
  void step(int64_t steps = 1) {
    steps_left_ -= steps;
    if (steps_left_ < next_look_) [[unlikely]]
      look();
  }
  void step_bytes(size_t bytes) { step(1 + static_cast<int64_t>(bytes / 64)); }

  /// Memory is needed. Throws OperationError when there is none left.
  void take(size_t bytes) {
    if (bytes > limits_.max_memory_bytes - taken_) out_of_memory();
    taken_ += bytes;
  }
  void give_back(size_t bytes) { taken_ -= bytes; }
  size_t taken() const { return taken_; }

  /// One level of a recursion, for as long as it lives. Throws OperationError when there are too many.
  class Level {
   public:
    explicit Level(Sandbox& box) : box_(box) {
      if (++box.depth_ > kMaxDepth) too_deep(box);
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --box_.depth_; }

   private:
    Sandbox& box_;
  };

 private:
  void look();
  [[noreturn]] void out_of_memory() const;
  [[noreturn]] static void too_deep(Sandbox& box);

  const Limits limits_;
  int64_t steps_left_;
  int64_t next_look_ = INT64_MAX;  ///< the clock is read when fewer steps are left
  std::chrono::steady_clock::time_point deadline_;
  size_t taken_ = 0;
  int depth_ = 0;
};

/// Memory of a sandbox, for as long as this lives.
class Charge {
 public:
  Charge() = default;
  Charge(Sandbox& box, size_t bytes) : box_(&box), bytes_(bytes) { box.take(bytes); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (box_ != nullptr) box_->give_back(bytes_);
  }
  void more(size_t bytes) {
    box_->take(bytes);
    bytes_ += bytes;
  }

 private:
  Sandbox* box_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft::jinja
