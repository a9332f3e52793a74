#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "support/prop.h"
#include "support/test_memory.h"

namespace weft::test {

/// A tensor of one to three dimensions with room between its rows that holds NaN: reading there spoils a result, writing there
/// is found. The last dimension is contiguous.
class Strided {
 public:
  /// Filled with normally distributed values of the given size, rounded to `dtype` (float32 or bfloat16).
  Strided(Gen& gen, DType dtype, std::vector<int64_t> sizes, double size = 1);

  View view();
  /// The elements in row-major order.
  std::vector<double> values();
  void set(int64_t row, int64_t column, double value);
  /// Whether everything between the rows is as it was made.
  bool gaps_are_untouched() const;

 private:
  std::vector<int64_t> sizes_, strides_;
  DType dtype_;
  Array<uint32_t> storage_;
  std::vector<bool> used_;
};

/// A result in float64, with a bound for the error of each element.
struct Expected {
  std::vector<double> values, bounds;
};

/// Compares where infinities and NaNs are first, then values within their bounds; the message names the worst element.
/// Empty if all agree.
std::string differences(std::span<const double> got, const Expected& expected);

/// x [rows, in] w^T + bias with w [out, in], added up one by one. The bound is that of float32 sums in any order, rounded to
/// `result` at the end. bias may be empty.
Expected reference_linear(std::span<const double> x, std::span<const double> w, std::span<const double> bias, int64_t rows,
                          int64_t in, int64_t out, DType result);

/// x / sqrt(mean(x^2) + eps) * weight for each row.
Expected reference_rms_norm(std::span<const double> x, std::span<const double> weight, double eps, DType result);

/// silu(gate) * up from rows [gate | up].
Expected reference_silu_mul(std::span<const double> gate_up, int64_t rows, int64_t width, DType result);

/// What a router chooses for one row of logits: the order of preference is made by sorting.
struct ReferenceRoute {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};
ReferenceRoute reference_route(std::span<const double> logits, const Routing& routing);

int32_t reference_argmax(std::span<const double> logits);
double reference_log_prob(std::span<const double> logits, int32_t id);

/// Half a unit in the last place, relative.
double rounding(DType dtype);

}  // namespace weft::test
