#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "base/tensor.h"
#include "ops/ops.h"

namespace weft {

/// Lays tensors into one piece of memory, in order, each aligned to 64 bytes. The same code runs twice: first to measure how
/// much is needed (no memory), then to place. Tensors that never live at the same time share space through mark() and rewind().
///
///   Workspace measure;            auto sizes = Tensors(measure);   // views are empty
///   Buffer memory = ops.allocate(measure.peak());
///   Workspace place(memory);      auto tensors = Tensors(place);
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(const Buffer& memory) : base_(memory.data()), limit_(memory.bytes()) {}

  View take(DType dtype, std::initializer_list<int64_t> sizes) {
    View view(nullptr, dtype, sizes);
    const size_t offset = at_;
    at_ += (view.bytes() + 63) / 64 * 64;
    peak_ = std::max(peak_, at_);
    if (base_ == nullptr) return view;
    WEFT_CHECK_LE(at_, limit_) << "workspace is smaller than measured";
    return View(base_ + offset, dtype, sizes);
  }
  size_t mark() const { return at_; }
  void rewind(size_t mark) { at_ = mark; }
  size_t peak() const { return peak_; }

 private:
  std::byte* base_ = nullptr;
  size_t limit_ = 0, at_ = 0, peak_ = 0;
};

}  // namespace weft
