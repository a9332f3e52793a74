#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/packed.h"
#include "ops/cpu/pool.h"

namespace weft::cpu {

/// Some rows times one matrix. Strides are in bytes.
struct Product {
  const PackedMatrix* w = nullptr;
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* source = nullptr;  ///< row i is row source[i] of x, or row i where this is null
  int64_t rows = 0;
  const float* bias = nullptr;  ///< [w.out], or null
  std::byte* out = nullptr;
  int64_t out_stride = 0;
};

/// Multiplies rows by matrices: any number of products in one parallel region, which is cut by rows and by panels, so that one
/// row of one matrix and one row of each of many experts keep all threads busy alike. A row of a result depends on the row
/// and the matrix alone: not on the other rows, nor on the number of threads.
///
/// Thread: the pool's caller.
class Products {
 public:
  explicit Products(Pool& pool) : pool_(pool) {}

  /// Takes a product for the next run. All products of a run have the same types; their results do not overlap.
  void add(const Product& product);
  /// Runs what was added, with results of type `out`, and forgets it.
  void run(DType out);

 private:
  struct Task {
    int32_t product;
    int64_t row, rows, panel, panels;
  };
  void cut(const Product& product, int32_t index, int64_t panels_per_task);
  void run_task(const Task& task, PanelKernel kernel, size_t out_bytes) const;

  Pool& pool_;
  std::vector<Product> products_;  // Kept between runs, so that a steady stream of steps allocates nothing.
  std::vector<Task> tasks_;
};

}  // namespace weft::cpu
