#pragma once

#include <cublasLt.h>

#include <vector>

#include "ops/cuda/memory.h"
#include "ops/ops.h"

namespace weft::cuda {

/// A weight matrix [out, in] on the device as it is: row-major, the rows padded with zeros to a multiple of 16 bytes.
class DeviceMatrix final : public Matrix {
 public:
  /// Copies a host matrix [out, in], float32 or bfloat16, any strides, converting to `dtype`.
  DeviceMatrix(const Device& device, UploadRing& ring, ConstView matrix, DType dtype);

  size_t bytes() const override { return storage_.bytes(); }
  const void* data() const { return storage_.data(); }
  int64_t stride() const { return stride_of(in(), dtype()); }

  static int64_t stride_of(int64_t in, DType dtype);
  static size_t bytes_for(int64_t out, int64_t in, DType dtype);

 private:
  Buffer storage_;
};

/// Rows times one matrix by cublasLt: bfloat16 on tensor cores with float32 sums, float32 in full float32 (never TF32). The
/// algorithm is the first that the library proposes for a shape, with a workspace of our own, so equal calls give equal bits.
///
/// Thread: the rank's own. Proposals are kept, a bounded number of them, so that a steady stream of steps asks and allocates
/// nothing.
class CublasProducts {
 public:
  explicit CublasProducts(const Device& device);
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  /// out [T, w.out] = x [T, w.in] w^T, without bias. False, and nothing done, where the library has no algorithm for the shape.
  bool multiply(const DeviceMatrix& w, ConstView x, View out);

 private:
  /// All that an algorithm is chosen by.
  struct Shape {
    int64_t out = 0, rows = 0, in = 0, w_stride = 0, x_stride = 0, out_stride = 0;
    DType dtype = DType::f32, result = DType::f32;
    unsigned x_alignment = 0, out_alignment = 0;
    bool operator==(const Shape&) const = default;
  };
  struct Proposal {
    Shape shape;
    bool found = false;
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct Layouts;
  const Proposal& proposal_for(const Shape& shape, Layouts& layouts);

  const Device& device_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  Buffer workspace_;
  std::vector<Proposal> proposals_;  ///< a table of fixed size, an entry's place follows from its shape
};

}  // namespace weft::cuda
