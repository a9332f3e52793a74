#pragma once

#include "base/tensor.h"

namespace weft {

/// A contiguous view of `data` with the type and sizes of `like`.
inline View packed_like(const ConstView& like, void* data) {
  switch (like.dims()) {
    case 1:
      return View(data, like.dtype(), {like.size(0)});
    case 2:
      return View(data, like.dtype(), {like.size(0), like.size(1)});
    case 3:
      return View(data, like.dtype(), {like.size(0), like.size(1), like.size(2)});
    default:
      return View(data, like.dtype(), {like.size(0), like.size(1), like.size(2), like.size(3)});
  }
}

}  // namespace weft
