#include "ops/cpu/gather.h"

#include <algorithm>
#include <cstring>

namespace weft::cpu {
namespace {

template <typename In, typename Out>
void convert(const void* in, int64_t count, void* out) {
  const In* from = static_cast<const In*>(in);
  Out* to = static_cast<Out*>(out);
  for (int64_t i = 0; i < count; ++i) to[i] = Out(static_cast<float>(from[i]));
}

// One row of one plane: `heads` runs of adjacent elements.
void gather_row(const std::byte* row, DType dtype, View out) {
  for (int64_t head = 0; head < out.size(0); ++head) {
    const int64_t dim = out.size(1);
    auto* target = static_cast<std::byte*>(out.data()) + head * out.stride(0) * static_cast<int64_t>(size_of(out.dtype()));
    if (row == nullptr) {
      std::memset(target, 0, static_cast<size_t>(dim) * size_of(out.dtype()));
    } else {
      copy_elements(row + head * dim * static_cast<int64_t>(size_of(dtype)), dtype, dim, target, out.dtype());
    }
  }
}

const std::byte* row_of(const void* plane, int64_t stride, DType dtype, int32_t slot) {
  if (slot < 0) return nullptr;
  return static_cast<const std::byte*>(plane) + slot * stride * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

void copy_elements(const void* in, DType in_dtype, int64_t count, void* out, DType out_dtype) {
  if (in_dtype == out_dtype) {
    std::memcpy(out, in, static_cast<size_t>(count) * size_of(in_dtype));
  } else if (in_dtype == DType::f32 && out_dtype == DType::bf16) {
    convert<float, bf16>(in, count, out);
  } else {
    WEFT_CHECK(in_dtype == DType::bf16 && out_dtype == DType::f32) << to_string(in_dtype) << " to " << to_string(out_dtype);
    convert<bf16, float>(in, count, out);
  }
}

void gather_rows(Pool& pool, const KvView& kv, const int32_t* slots, View k, View v) {
  WEFT_CHECK_EQ(k.size(1), kv.kv_heads);
  WEFT_CHECK_EQ(k.size(2), kv.k_dim);
  WEFT_CHECK_EQ(k.stride(2), 1);
  if (!v.empty()) {
    WEFT_CHECK_EQ(v.size(0), k.size(0));
    WEFT_CHECK_EQ(v.size(1), kv.kv_heads);
    WEFT_CHECK_EQ(v.size(2), kv.v_dim);
    WEFT_CHECK_EQ(v.stride(2), 1);
  }
  constexpr int64_t kRows = 32;  // of one task: some 10 KiB to copy, well above what taking a task costs
  const int64_t rows = k.size(0);
  pool.run((rows + kRows - 1) / kRows, [&](int64_t task, int) {
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      WEFT_CHECK_LT(slots[row], kv.slots);
      gather_row(row_of(kv.k, kv.k_stride, kv.dtype, slots[row]), kv.dtype, k.at(row));
      if (!v.empty()) gather_row(row_of(kv.v, kv.v_stride, kv.dtype, slots[row]), kv.dtype, v.at(row));
    }
  });
}

}  // namespace weft::cpu
