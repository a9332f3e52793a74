#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "support/prop.h"
#include "support/reference_attention.h"
#include "support/test_memory.h"

namespace weft::test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kF32 = 0x1p-24, kBf16 = 0x1p-8;  // unit roundoff

inline void set(const View& view, double value, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
  const int64_t at = i * view.stride(0) + j * view.stride(1) + k * view.stride(2) + l * view.stride(3);
  if (view.dtype() == DType::f8_e4m3) {
    view.as<f8_e4m3>()[at] = f8_e4m3(static_cast<float>(value));
  } else if (view.dtype() == DType::bf16) {
    view.as<bf16>()[at] = bf16(static_cast<float>(value));
  } else {
    view.as<float>()[at] = static_cast<float>(value);
  }
}

/// Owns the tensors of a test. Each starts as NaN throughout, holes between rows included.
class Tensors {
 public:
  /// The rows of the last dimension are `hole` elements apart.
  View make(DType dtype, std::vector<int64_t> sizes, int64_t hole = 0) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d > 0; --d) {
      strides[d - 1] = strides[d] * sizes[d] + (d == sizes.size() - 1 ? hole : 0);
    }
    Array<std::byte>& bytes = take(dtype, sizes[0] * strides[0]);
    switch (sizes.size()) {
      case 1:
        return View(bytes.data(), dtype, {sizes[0]});
      case 2:
        return View(bytes.data(), dtype, {sizes[0], sizes[1]}, {strides[0], strides[1]});
      case 3:
        return View(bytes.data(), dtype, {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1], strides[2]});
      default:
        return View(bytes.data(), dtype, {sizes[0], sizes[1], sizes[2], sizes[3]},
                    {strides[0], strides[1], strides[2], strides[3]});
    }
  }
  View random(Gen& gen, DType dtype, std::vector<int64_t> sizes, int64_t hole = 0) {
    View view = make(dtype, std::move(sizes), hole);
    fill(gen, view);
    return view;
  }
  static void fill(Gen& gen, const View& view) {
    const auto size = [&](int d) { return d < view.dims() ? view.size(d) : 1; };
    for (int64_t i = 0; i < size(0); ++i) {
      for (int64_t j = 0; j < size(1); ++j) {
        for (int64_t k = 0; k < size(2); ++k) {
          for (int64_t l = 0; l < size(3); ++l) set(view, gen.normal(), i, j, k, l);
        }
      }
    }
  }
  /// Rows of [Dv elements | lse], as partials lie in a send buffer: out [P, T, h, Dv] and lse [P, T, h].
  std::pair<View, View> make_partials(DType dtype, int64_t p, int64_t t, int64_t h, int64_t dv) {
    const int64_t size = static_cast<int64_t>(size_of(dtype)), row = dv + 4 / size, floats = row * size / 4;
    Array<std::byte>& bytes = take(dtype, p * t * h * row);
    return {View(bytes.data(), dtype, {p, t, h, dv}, {t * h * row, h * row, row, 1}),
            View(bytes.data() + dv * size, DType::f32, {p, t, h}, {t * h * floats, h * floats, floats})};
  }

 private:
  Array<std::byte>& take(DType dtype, int64_t count) {
    buffers_.emplace_back(static_cast<size_t>(std::max<int64_t>(1, count)) * size_of(dtype));
    const View all(buffers_.back().data(), dtype, {count});
    for (int64_t i = 0; i < count; ++i) set(all, kNan, i);
    return buffers_.back();
  }
  std::vector<Array<std::byte>> buffers_;
};

}  // namespace weft::test
