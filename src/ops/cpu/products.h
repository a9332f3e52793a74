#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/onednn.h"
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

/// Who multiplies blocks of many rows.
enum class ManyRows : uint8_t {
  panels,  ///< the panel kernels, which multiply few rows in any case
  onednn,  ///< oneDNN, where it can
};
inline ManyRows fastest_for_many_rows() { return OneDnn::is_faster() ? ManyRows::onednn : ManyRows::panels; }

/// Multiplies rows by matrices: any number of products in one parallel region, which is cut by rows and by panels, so that one
/// row of one matrix and one row of each of many experts keep all threads busy alike. With ManyRows::panels a row of a result
/// depends on the row and the matrix alone: not on the other rows, nor on the number of threads. oneDNN adds up in another
/// order than the panel kernels, so there a row may change in the last place with the rows around it.
///
/// Thread: the pool's caller.
class Products {
 public:
  Products(Pool& pool, ManyRows many_rows);

  /// Takes a product for the next run. All products of a run have the same types; their results do not overlap.
  void add(const Product& product);
  /// Runs what was added, with results of type `out`, and forgets it.
  void run(DType out);

 private:
  struct Task {
    int32_t product;
    int64_t row, rows, panel, panels;
    OneDnn::Primitive* primitive;  // or null: panel kernels
  };
  /// Rows side by side, as oneDNN wants them.
  struct Dense {
    std::vector<std::byte> x, out;
  };
  void cut(const Product& product, int32_t index, int64_t& panels_left, DType out);
  OneDnn::Primitive* primitive_for(const Product& product, const Task& task, DType out);
  void multiply_panels(const Task& task, PanelKernel kernel, size_t out_bytes) const;
  void multiply_with_onednn(const Task& task, int thread, size_t out_bytes);

  Pool& pool_;
  ManyRows many_rows_;
  OneDnn onednn_;
  std::vector<Dense> dense_;       // For each thread.
  std::vector<Product> products_;  // Kept between runs, so that a steady stream of steps allocates nothing.
  std::vector<Task> tasks_;
};

}  // namespace weft::cpu
