#include "ops/cpu/packed.h"

#include <algorithm>

namespace weft::cpu {
namespace {

/// oneDNN blocks the depth by 16 lines of a panel: one element each in float32, a pair in bfloat16.
constexpr int64_t kLines = 16;

int64_t elements_per_line(DType dtype) {
  WEFT_CHECK(dtype == DType::f32 || dtype == DType::bf16) << "matrices of " << to_string(dtype) << " are not multiplied";
  return dtype == DType::f32 ? 1 : 2;
}

size_t bytes_of_panel(int64_t in, DType dtype) {
  const int64_t block = kLines * elements_per_line(dtype);
  return static_cast<size_t>((in + block - 1) / block * block * kPanelColumns) * size_of(dtype);
}

/// Column `c` of the panel is row `c` of the matrix.
template <typename From, typename To>
void pack_panel(ConstView rows, To* panel) {
  const auto* from = rows.as<From>();
  constexpr int64_t kPerLine = std::is_same_v<To, float> ? 1 : 2;
  // Rows outside, so that a row of the matrix is read once, in order; a panel fits a cache.
  for (int64_t c = 0; c < rows.size(0); ++c) {
    for (int64_t k = 0; k < rows.size(1); ++k) {
      const From value = from[c * rows.stride(0) + k * rows.stride(1)];
      To& target = panel[(k / kPerLine * kPanelColumns + c) * kPerLine + k % kPerLine];
      if constexpr (std::is_same_v<From, To>) {
        target = value;
      } else {
        target = To(static_cast<float>(value));
      }
    }
  }
}

}  // namespace

size_t PackedMatrix::bytes_for(int64_t out, int64_t in, DType dtype) {
  return static_cast<size_t>((out + kPanelColumns - 1) / kPanelColumns) * bytes_of_panel(in, dtype);
}

PackedMatrix::PackedMatrix(Pool& pool, ConstView matrix, DType dtype)
    : Matrix(matrix.size(0), matrix.size(1), dtype),
      panel_bytes_(bytes_of_panel(matrix.size(1), dtype)),
      storage_(Buffer::host(bytes_for(matrix.size(0), matrix.size(1), dtype))) {
  WEFT_CHECK_EQ(matrix.dims(), 2);
  WEFT_CHECK(matrix.dtype() == DType::f32 || matrix.dtype() == DType::bf16) << to_string(matrix.dtype());
  if (panel_bytes_ == 0) return;
  pool.run(panels(), [&](int64_t i, int) {
    const int64_t first = i * kPanelColumns;
    const ConstView rows = matrix.rows(first, std::min(kPanelColumns, out() - first));
    std::byte* target = storage_.data() + static_cast<size_t>(i) * panel_bytes_;
    const bool from_f32 = matrix.dtype() == DType::f32;
    if (dtype == DType::f32) {
      from_f32 ? pack_panel<float>(rows, reinterpret_cast<float*>(target))
               : pack_panel<bf16>(rows, reinterpret_cast<float*>(target));
    } else {
      from_f32 ? pack_panel<float>(rows, reinterpret_cast<bf16*>(target))
               : pack_panel<bf16>(rows, reinterpret_cast<bf16*>(target));
    }
  });
}

}  // namespace weft::cpu
