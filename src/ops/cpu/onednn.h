#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"

namespace weft::cpu {

/// Products by oneDNN on the bytes of a PackedMatrix: a slice of its panels is a matrix of its own.
///
/// The panel kernels reach what oneDNN reaches with vector instructions, or more (AMD EPYC with AVX-512 BF16, one thread, 512
/// rows: 390 to 441 GFLOP/s against 395 to 441), and with one row they read 1.1 times as fast. They also give a row the same
/// bits whatever its batch. So oneDNN is for CPUs with matrix units (AMX), which it alone uses here.
///
/// Its threads are the pool's: every one calls with one OpenMP thread, on a slice of the rows and panels of its own.
class OneDnn {
 public:
  /// One product of dense rows; bias in float32. (With strides oneDNN 2.6 would fall back to its reference loops.)
  struct Shape {
    DType x = DType::bf16, out = DType::bf16;
    int64_t rows = 0, columns = 0, depth = 0;
    bool bias = false;
    auto operator<=>(const Shape&) const = default;
  };
  class Primitive;

  explicit OneDnn(int threads);
  ~OneDnn();

  /// Whether this CPU multiplies many rows of bfloat16 faster with oneDNN.
  static bool is_faster();

  /// Made at the first call with a shape and then kept; null if oneDNN has no fast code for this shape. Thread: the pool's
  /// caller.
  Primitive* primitive(const Shape& shape);

  /// Thread `thread` of the pool.
  static void multiply(Primitive& primitive, int thread, const std::byte* x, const std::byte* panels, const float* bias,
                       std::byte* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::cpu
