#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace weft::cpu {

/// Weights are multiplied in panels of this many output columns. A panel of depth K is [K][64] in float32, and
/// [K / 2][64][2] in bfloat16 (an odd K is padded with zeros): two neighbours of a row of x meet two neighbours of a column.
/// Panels lie one behind the other. These are also the bytes of oneDNN's BA16a64b and BA16a64b2a, so one copy serves both.
constexpr int64_t kPanelColumns = 64;

/// Some rows of x times one panel.
struct PanelJob {
  const std::byte* const* x = nullptr;  ///< [rows] where each row of x starts
  std::byte* const* out = nullptr;      ///< [rows] where the panel's columns of each row of the result start
  int64_t rows = 0;
  const std::byte* panel = nullptr;
  int64_t depth = 0;                ///< elements of a row of x
  const std::byte* next = nullptr;  ///< the panel that will follow, or null: a kernel may fetch it ahead
  const float* bias = nullptr;      ///< [columns], or null
  int64_t columns = kPanelColumns;  ///< columns of the result to write, the rest of the panel is padding
};

/// Sums each element over the depth in an order that depends on nothing else: not on the other rows, nor on the columns.
using PanelKernel = void (*)(const PanelJob&);

/// The fastest kernel of this CPU for elements of type `x` and results of type `out`.
PanelKernel panel_kernel(DType x, DType out);

/// Kernels for every CPU, with Highway.
PanelKernel highway_panel_kernel(DType x, DType out);

/// Kernels for CPUs that multiply bfloat16 pairs (AVX-512 BF16), or null on others.
PanelKernel avx512_bf16_panel_kernel(DType out);

}  // namespace weft::cpu
