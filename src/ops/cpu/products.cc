#include "ops/cpu/products.h"

#include <algorithm>
#include <array>

namespace weft::cpu {
namespace {

// Rows that share one pass over the panels. 96 rows of a depth of 1024 to 4096 are 192 to 768 KiB in bfloat16: they stay in a
// core's second-level cache while the panels stream through, and multiply each of them long enough (2 * 96 operations a byte of
// bfloat16) to hide its arrival.
constexpr int64_t kRowsPerTask = 96;

// Fewer bytes a task than this, and taking tasks begins to show; more, and the threads finish at different times.
constexpr size_t kTaskBytes = size_t{256} << 10;

// So many tasks for each thread even out what is left at the end.
constexpr int64_t kTasksPerThread = 4;

}  // namespace

void Products::add(const Product& product) {
  if (product.rows == 0 || product.w->out() == 0) return;
  products_.push_back(product);
}

void Products::cut(const Product& product, int32_t index, int64_t panels_per_task) {
  const int64_t blocks = (product.rows + kRowsPerTask - 1) / kRowsPerTask;
  for (int64_t block = 0, row = 0; block < blocks; ++block) {
    const int64_t rows = (product.rows - row) / (blocks - block);
    for (int64_t panel = 0; panel < product.w->panels(); panel += panels_per_task) {
      const int64_t panels = std::min(panels_per_task, product.w->panels() - panel);
      tasks_.push_back({.product = index, .row = row, .rows = rows, .panel = panel, .panels = panels});
    }
    row += rows;
  }
}

void Products::run(DType out) {
  if (products_.empty()) return;
  int64_t panels = 0;
  for (const Product& product : products_) panels += product.w->panels();
  const auto panel_bytes = std::max(products_.front().w->panel_bytes(), size_t{1});
  const int64_t even = panels / (kTasksPerThread * pool_.threads());
  const int64_t panels_per_task = std::max<int64_t>(1, std::min(static_cast<int64_t>(kTaskBytes / panel_bytes), even));
  tasks_.clear();
  for (size_t i = 0; i < products_.size(); ++i) cut(products_[i], static_cast<int32_t>(i), panels_per_task);

  const PanelKernel kernel = panel_kernel(products_.front().w->dtype(), out);
  pool_.run(static_cast<int64_t>(tasks_.size()),
            [&](int64_t i, int) { run_task(tasks_[static_cast<size_t>(i)], kernel, size_of(out)); });
  products_.clear();
}

void Products::run_task(const Task& task, PanelKernel kernel, size_t out_bytes) const {
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
            .bias = product.bias != nullptr ? product.bias + column : nullptr,
            .columns = std::min(kPanelColumns, w.out() - column)});
  }
}

}  // namespace weft::cpu
