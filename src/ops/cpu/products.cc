#include "ops/cpu/products.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::cpu {
namespace {

// Rows that share one pass over the panels. 96 rows of a depth of 1024 to 4096 are 192 to 768 KiB in bfloat16: they stay in a
// core's second-level cache while the panels stream through, and multiply each of them long enough (2 * 96 operations a byte of
// bfloat16) to hide its arrival.
constexpr int64_t kRowsPerTask = 96;

// A task reads at most so many bytes of panels: some tens of microseconds, so that taking tasks does not show.
constexpr size_t kMostBytes = size_t{1} << 20;
// And multiplies at least so many bytes of panels by a row each, if there are: about a microsecond, what waking a thread costs.
constexpr size_t kLeastBytes = size_t{32} << 10;

/// Panels of the next task, of `left` in all that are not cut yet. Tasks shrink towards the end, so that the threads finish
/// together.
int64_t panels_of_task(int64_t left, int threads, size_t panel_bytes, int64_t rows) {
  const size_t bytes = std::max(panel_bytes, size_t{1});
  const size_t least = kLeastBytes / (bytes * static_cast<size_t>(rows)) + 1, most = std::max(kMostBytes / bytes, least);
  return std::clamp(left / (2 * threads), static_cast<int64_t>(least), static_cast<int64_t>(most));
}

int64_t row_blocks(const Product& product) { return (product.rows + kRowsPerTask - 1) / kRowsPerTask; }

}  // namespace

Products::Products(Pool& pool, ManyRows many_rows)
    : pool_(pool), many_rows_(many_rows), onednn_(pool.threads()), dense_(static_cast<size_t>(pool.threads())) {
  // More than any step here has: a call's matrices are a layer's experts or heads, and a task takes about 1 MiB of them.
  constexpr size_t kMostProducts = 1024, kMostTasks = 16384;
  products_.reserve(kMostProducts);
  tasks_.reserve(kMostTasks);
}

void Products::add(const Product& product) {
  if (product.rows == 0 || product.w->out() == 0) return;
  products_.push_back(product);
}

OneDnn::Primitive* Products::primitive_for(const Product& product, const Task& task, DType out) {
  const PackedMatrix& w = *product.w;
  if (many_rows_ == ManyRows::panels || task.rows < kRowsPerTask || w.in() == 0) return nullptr;
  return onednn_.primitive({.x = w.dtype(),
                            .out = out,
                            .rows = task.rows,
                            .columns = std::min(task.panels * kPanelColumns, w.out() - task.panel * kPanelColumns),
                            .depth = w.in(),
                            .bias = product.bias != nullptr});
}

void Products::cut(const Product& product, int32_t index, int64_t& panels_left, DType out) {
  // Even blocks for the panel kernels; whole ones and a rest for oneDNN, which needs code for each number of rows.
  const PackedMatrix& w = *product.w;
  const int64_t blocks = row_blocks(product);
  for (int64_t block = 0, row = 0; block < blocks; ++block) {
    const int64_t rows_left = product.rows - row;
    const int64_t rows = many_rows_ == ManyRows::panels ? rows_left / (blocks - block) : std::min(rows_left, kRowsPerTask);
    for (int64_t panel = 0; panel < w.panels();) {
      const int64_t wanted = panels_of_task(panels_left, pool_.threads(), w.panel_bytes(), rows);
      const int64_t panels = std::min(wanted, w.panels() - panel);
      Task task{.product = index, .row = row, .rows = rows, .panel = panel, .panels = panels, .primitive = nullptr};
      task.primitive = primitive_for(product, task, out);
      tasks_.push_back(task);
      panel += panels;
      panels_left -= panels;
    }
    row += rows;
  }
}

void Products::run(DType out) {
  if (products_.empty()) return;
  int64_t panels_left = 0;
  for (const Product& product : products_) panels_left += row_blocks(product) * product.w->panels();
  tasks_.clear();
  for (size_t i = 0; i < products_.size(); ++i) cut(products_[i], static_cast<int32_t>(i), panels_left, out);

  const PanelKernel kernel = panel_kernel(products_.front().w->dtype(), out);
  pool_.run(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int thread) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    task.primitive != nullptr ? multiply_with_onednn(task, thread, size_of(out)) : multiply_panels(task, kernel, size_of(out));
  });
  products_.clear();
}

void Products::multiply_panels(const Task& task, PanelKernel kernel, size_t out_bytes) const {
  const Product& product = products_[static_cast<size_t>(task.product)];
  const PackedMatrix& w = *product.w;
  std::array<const std::byte*, kRowsPerTask> x;
  std::array<std::byte*, kRowsPerTask> out;
  for (int64_t i = 0; i < task.rows; ++i) {
    const int64_t row = task.row + i;
    x[i] = product.x + (product.source != nullptr ? product.source[row] : row) * product.x_stride;
  }
  for (int64_t panel = task.panel; panel < task.panel + task.panels; ++panel) {
    const int64_t column = panel * kPanelColumns;
    const int64_t offset = column * static_cast<int64_t>(out_bytes);
    for (int64_t i = 0; i < task.rows; ++i) out[i] = product.out + (task.row + i) * product.out_stride + offset;
    kernel({.x = x.data(),
            .out = out.data(),
            .rows = task.rows,
            .panel = w.panel(panel),
            .depth = w.in(),
            .next = panel + 1 < task.panel + task.panels ? w.panel(panel + 1) : nullptr,
            .bias = product.bias != nullptr ? product.bias + column : nullptr,
            .columns = std::min(kPanelColumns, w.out() - column)});
  }
}

void Products::multiply_with_onednn(const Task& task, int thread, size_t out_bytes) {
  const Product& product = products_[static_cast<size_t>(task.product)];
  const PackedMatrix& w = *product.w;
  const auto rows = static_cast<size_t>(task.rows);
  Dense& dense = dense_[static_cast<size_t>(thread)];

  const size_t x_bytes = static_cast<size_t>(w.in()) * size_of(w.dtype());
  const std::byte* x = product.x + task.row * product.x_stride;
  if (product.source != nullptr || product.x_stride != static_cast<int64_t>(x_bytes)) {
    dense.x.resize(std::max(dense.x.size(), rows * x_bytes));
    for (size_t i = 0; i < rows; ++i) {
      const int64_t row = task.row + static_cast<int64_t>(i);
      const int64_t source = product.source != nullptr ? product.source[row] : row;
      std::memcpy(dense.x.data() + i * x_bytes, product.x + source * product.x_stride, x_bytes);
    }
    x = dense.x.data();
  }

  const int64_t column = task.panel * kPanelColumns;
  const auto columns = static_cast<size_t>(std::min(task.panels * kPanelColumns, w.out() - column));
  const float* bias = product.bias != nullptr ? product.bias + column : nullptr;
  std::byte* out = product.out + task.row * product.out_stride + column * static_cast<int64_t>(out_bytes);
  const size_t row_bytes = columns * out_bytes;
  dense.out.resize(std::max(dense.out.size(), rows * row_bytes));
  OneDnn::multiply(*task.primitive, thread, x, w.panel(task.panel), bias, dense.out.data());
  for (size_t i = 0; i < rows; ++i) {
    std::memcpy(out + static_cast<int64_t>(i) * product.out_stride, dense.out.data() + i * row_bytes, row_bytes);
  }
}

}  // namespace weft::cpu
