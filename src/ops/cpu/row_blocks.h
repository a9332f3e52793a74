#pragma once

#include <algorithm>
#include <cstdint>

#include "base/tensor.h"
#include "ops/cpu/pool.h"

namespace weft::cpu {

/// Elements that an elementwise operator gives one task: some microseconds of work, so that taking tasks does not show, and a
/// step's single row stays on the calling thread.
constexpr int64_t kElementsPerTask = 16384;

/// Calls body(row) for every row, blocks of rows in parallel.
template <typename Body>
void for_each_row(Pool& pool, int64_t rows, int64_t elements_per_row, Body&& body) {
  const int64_t block = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  pool.run((rows + block - 1) / block, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * block);
    for (int64_t row = task * block; row < end; ++row) body(row);
  });
}

/// Where the last dimension of row `row` begins, rows counted over all dimensions before it.
inline int64_t row_offset(const ConstView& view, int64_t row) {
  int64_t offset = 0;
  for (int d = view.dims() - 2; d >= 0; --d) {
    offset += row % view.size(d) * view.stride(d);
    row /= view.size(d);
  }
  return offset;
}

inline const std::byte* row_at(const ConstView& view, int64_t row) {
  return static_cast<const std::byte*>(view.data()) + row_offset(view, row) * static_cast<int64_t>(size_of(view.dtype()));
}

inline std::byte* row_at(const View& view, int64_t row) {
  return static_cast<std::byte*>(view.data()) + row_offset(view, row) * static_cast<int64_t>(size_of(view.dtype()));
}

/// Rows over all dimensions but the last.
inline int64_t row_count(const ConstView& view) {
  int64_t rows = 1;
  for (int d = 0; d < view.dims() - 1; ++d) rows *= view.size(d);
  return rows;
}

}  // namespace weft::cpu
