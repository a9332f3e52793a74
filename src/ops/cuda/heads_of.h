#pragma once

#include "ops/cuda/params.h"

namespace weft::cuda {

/// [rows, heads, D], or [rows, D] as one head.
template <typename View>
auto heads_of(const View& view) {
  return BasicHeads{.data = view.data(), .row_stride = view.stride(0), .head_stride = view.dims() == 3 ? view.stride(1) : 0};
}

}  // namespace weft::cuda
