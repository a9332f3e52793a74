#include "ops/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/row_blocks.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Calls body with a null pointer of the element type, so that a kernel is written once for both.
#define WEFT_WITH_ELEMENT_TYPE(dtype, kernel, ...) \
  ((dtype) == DType::f32 ? kernel(static_cast<float*>(nullptr), __VA_ARGS__) : kernel(static_cast<bf16*>(nullptr), __VA_ARGS__))

template <typename From, typename To>
HWY_INLINE void convert(const From* in, int64_t n, To* out) {
  int64_t i = 0;
  for (; i + kF32Lanes <= n; i += kF32Lanes) store_elements(load_elements(in + i), out + i);
  if (i < n) store_some(load_some(in + i, n - i), n - i, out + i);
}

void widen_row(const bf16* in, int64_t n, float* out) { convert(in, n, out); }
void narrow_row(const float* in, int64_t n, bf16* out) { convert(in, n, out); }

HWY_INLINE F32 sum_of_four(const F32 (&sums)[4]) { return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])); }

/// 1 / sqrt(mean of squares + eps). Four sums side by side, so that one addition need not wait for another.
template <typename T>
HWY_INLINE float inverse_rms(const T* x, int64_t n, float eps) {
  const ElementsF32 d;
  F32 sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * kF32Lanes <= n; i += 4 * kF32Lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32 v = load_elements(x + i + j * kF32Lanes);
      sums[j] = hn::MulAdd(v, v, sums[j]);
    }
  }
  for (; i < n; i += kF32Lanes) {
    const F32 v = n - i >= kF32Lanes ? load_elements(x + i) : load_some(x + i, n - i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  const float squares = hn::GetLane(hn::SumOfLanes(d, sum_of_four(sums)));
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
}

template <typename T>
HWY_INLINE void scale_row(const T* x, const float* weight, float factor, int64_t n, T* out) {
  const F32 scale = hn::Set(ElementsF32(), factor);
  int64_t i = 0;
  for (; i + kF32Lanes <= n; i += kF32Lanes) {
    store_elements(hn::Mul(hn::Mul(load_elements(x + i), scale), load_elements(weight + i)), out + i);
  }
  if (i < n) {
    store_some(hn::Mul(hn::Mul(load_some(x + i, n - i), scale), load_some(weight + i, n - i)), n - i, out + i);
  }
}

/// x += y, rounded to T.
template <typename T>
HWY_INLINE void add_to(T*, const void* from, int64_t n, void* to) {
  const T* y = static_cast<const T*>(from);
  T* x = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + kF32Lanes <= n; i += kF32Lanes) store_elements(hn::Add(load_elements(x + i), load_elements(y + i)), x + i);
  if (i < n) store_some(hn::Add(load_some(x + i, n - i), load_some(y + i, n - i)), n - i, x + i);
}

template <typename T>
HWY_INLINE void norm(T*, const void* from, const float* weight, float eps, int64_t n, void* to) {
  const T* x = static_cast<const T*>(from);
  scale_row(x, weight, inverse_rms(x, n, eps), n, static_cast<T*>(to));
}

/// g / (1 + exp(-g)) * u. Exp is good up to 104; from 88 on the quotient is zero in effect, and stays a number.
HWY_INLINE F32 silu_times(F32 g, F32 u) {
  const ElementsF32 d;
  const F32 e = hn::Exp(d, hn::Clamp(hn::Neg(g), hn::Set(d, -88.0f), hn::Set(d, 88.0f)));
  return hn::Mul(hn::Div(g, hn::Add(hn::Set(d, 1.0f), e)), u);
}

template <typename T>
HWY_INLINE void silu_mul(T*, const void* gate, const void* up, int64_t n, void* to) {
  const T* g = static_cast<const T*>(gate);
  const T* u = static_cast<const T*>(up);
  T* out = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + kF32Lanes <= n; i += kF32Lanes) store_elements(silu_times(load_elements(g + i), load_elements(u + i)), out + i);
  if (i < n) store_some(silu_times(load_some(g + i, n - i), load_some(u + i, n - i)), n - i, out + i);
}

template <typename T>
HWY_INLINE void combine(T*, const ExpertSum& row, int64_t n) {
  const ElementsF32 d;
  const T* shared = static_cast<const T*>(row.shared);
  T* out = static_cast<T*>(row.out);
  for (int64_t i = 0; i < n; i += kF32Lanes) {
    const int64_t some = n - i;
    const bool whole = some >= kF32Lanes;
    F32 sum = hn::Zero(d);
    for (int64_t j = 0; j < row.top_k; ++j) {
      const T* y = reinterpret_cast<const T*>(row.y + row.place[j] * row.y_stride) + i;
      sum = hn::MulAdd(hn::Set(d, row.weights[j]), whole ? load_elements(y) : load_some(y, some), sum);
    }
    if (shared != nullptr) sum = hn::Add(sum, whole ? load_elements(shared + i) : load_some(shared + i, some));
    whole ? store_elements(sum, out + i) : store_some(sum, some, out + i);
  }
}

void add_row(DType dtype, const void* y, int64_t n, void* x) { WEFT_WITH_ELEMENT_TYPE(dtype, add_to, y, n, x); }

void norm_row(DType dtype, const void* x, const float* weight, float eps, int64_t n, void* out) {
  WEFT_WITH_ELEMENT_TYPE(dtype, norm, x, weight, eps, n, out);
}

void silu_mul_row(DType dtype, const void* gate, const void* up, int64_t n, void* out) {
  WEFT_WITH_ELEMENT_TYPE(dtype, silu_mul, gate, up, n, out);
}

void combine_row(DType dtype, const ExpertSum& row, int64_t n) { WEFT_WITH_ELEMENT_TYPE(dtype, combine, row, n); }

}  // namespace
}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

HWY_EXPORT(widen_row);
HWY_EXPORT(narrow_row);
HWY_EXPORT(add_row);
HWY_EXPORT(norm_row);
HWY_EXPORT(silu_mul_row);
HWY_EXPORT(combine_row);

/// n neighbours of type `from` to n neighbours of type `to`: equal types, or float32 <-> bfloat16.
void copy_row(DType from, const void* in, int64_t n, DType to, void* out) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n) * size_of(from));
  } else if (from == DType::bf16) {
    HWY_DYNAMIC_DISPATCH(widen_row)(static_cast<const bf16*>(in), n, static_cast<float*>(out));
  } else {
    HWY_DYNAMIC_DISPATCH(narrow_row)(static_cast<const float*>(in), n, static_cast<bf16*>(out));
  }
}

}  // namespace

void copy(Pool& pool, ConstView in, View out) {
  if (in.count() == 0) return;
  const auto in_size = static_cast<int64_t>(size_of(in.dtype())), out_size = static_cast<int64_t>(size_of(out.dtype()));
  if (in.is_contiguous() && out.is_contiguous()) {
    const int64_t count = in.count();
    pool.run((count + kElementsPerTask - 1) / kElementsPerTask, [&](int64_t task, int) {
      const int64_t begin = task * kElementsPerTask;
      copy_row(in.dtype(), static_cast<const std::byte*>(in.data()) + begin * in_size,
               std::min(kElementsPerTask, count - begin), out.dtype(), static_cast<std::byte*>(out.data()) + begin * out_size);
    });
    return;
  }
  const int last = in.dims() - 1;
  const int64_t n = in.size(last), in_step = in.stride(last), out_step = out.stride(last);
  const bool neighbours = n == 1 || (in_step == 1 && out_step == 1);
  for_each_row(pool, row_count(in), n, [&](int64_t row) {
    const std::byte* from = row_at(in, row);
    std::byte* to = row_at(out, row);
    if (neighbours) return copy_row(in.dtype(), from, n, out.dtype(), to);
    for (int64_t i = 0; i < n; ++i) {
      copy_row(in.dtype(), from + i * in_step * in_size, 1, out.dtype(), to + i * out_step * out_size);
    }
  });
}

void embed(Pool& pool, const int32_t* ids, ConstView table, int64_t first_row, View out) {
  const int64_t width = out.size(1);
  for_each_row(pool, out.size(0), width, [&](int64_t t) {
    const int64_t row = ids[t] - first_row;
    std::byte* to = row_at(out, t);
    if (row >= 0 && row < table.size(0)) {
      copy_row(table.dtype(), row_at(table, row), width, out.dtype(), to);
    } else {
      std::memset(to, 0, static_cast<size_t>(width) * size_of(out.dtype()));
    }
  });
}

void rms_norm(Pool& pool, ConstView x, const float* weight, float eps, View out) {
  const int64_t n = x.size(x.dims() - 1);
  const auto row_kernel = HWY_DYNAMIC_DISPATCH(norm_row);
  for_each_row(pool, row_count(x), n,
               [&](int64_t row) { row_kernel(x.dtype(), row_at(x, row), weight, eps, n, row_at(out, row)); });
}

void add_rms_norm(Pool& pool, ConstView delta, View residual, const float* weight, float eps, View out) {
  const int64_t n = residual.size(1);
  const auto add_kernel = HWY_DYNAMIC_DISPATCH(add_row);
  const auto norm_kernel = HWY_DYNAMIC_DISPATCH(norm_row);
  for_each_row(pool, residual.size(0), n, [&](int64_t row) {
    add_kernel(residual.dtype(), row_at(delta, row), n, row_at(residual, row));
    norm_kernel(residual.dtype(), row_at(residual, row), weight, eps, n, row_at(out, row));
  });
}

void add(Pool& pool, ConstView y, View x) {
  const auto row_kernel = HWY_DYNAMIC_DISPATCH(add_row);
  for_each_row(pool, x.size(0), x.size(1),
               [&](int64_t row) { row_kernel(x.dtype(), row_at(y, row), x.size(1), row_at(x, row)); });
}

void silu_mul(Pool& pool, ConstView gate_up, View out) {
  const int64_t n = out.size(1);
  const int64_t up = n * static_cast<int64_t>(size_of(out.dtype()));
  const auto row_kernel = HWY_DYNAMIC_DISPATCH(silu_mul_row);
  for_each_row(pool, out.size(0), n, [&](int64_t row) {
    const std::byte* gate = row_at(gate_up, row);
    row_kernel(out.dtype(), gate, gate + up, n, row_at(out, row));
  });
}

void combine_experts(Pool& pool, ConstView y, const int32_t* place, ConstView weights, ConstView shared, View out) {
  const int64_t n = out.size(1), top_k = weights.size(1);
  const auto row_kernel = HWY_DYNAMIC_DISPATCH(combine_row);
  for_each_row(pool, out.size(0), n * (top_k + 1), [&](int64_t t) {
    row_kernel(out.dtype(),
               {.y = static_cast<const std::byte*>(y.data()),
                .y_stride = y.stride(0) * static_cast<int64_t>(size_of(y.dtype())),
                .place = place + t * top_k,
                .weights = reinterpret_cast<const float*>(row_at(weights, t)),
                .top_k = top_k,
                .shared = shared.empty() ? nullptr : row_at(shared, t),
                .out = row_at(out, t)},
               n);
  });
}

}  // namespace weft::cpu
#endif
