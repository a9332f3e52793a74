#pragma once

#include <memory>

#include "ops/cpu/panel.h"
#include "ops/cpu/pool.h"
#include "ops/ops.h"

namespace weft::cpu {

/// A weight matrix [out, in] cut into panels of 64 of its rows (see panel.h), the depth padded with zeros to what oneDNN's
/// blocks want. Its memory is aligned and on huge pages where it is large.
class PackedMatrix final : public Matrix {
 public:
  /// Copies `matrix` [out, in], float32 or bfloat16, any strides, converting to `dtype`.
  PackedMatrix(Pool& pool, ConstView matrix, DType dtype);

  size_t bytes() const override { return storage_.bytes(); }
  int64_t panels() const { return (out() + kPanelColumns - 1) / kPanelColumns; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const { return storage_.data() + static_cast<size_t>(i) * panel_bytes_; }

  static size_t bytes_for(int64_t out, int64_t in, DType dtype);

 private:
  size_t panel_bytes_;
  Buffer storage_;
};

}  // namespace weft::cpu
