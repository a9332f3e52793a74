#include "ops/cpu/gather.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/kv_elements.h"

namespace weft::cpu {
namespace {

/// One of the planes: where its rows lie.
struct Rows {
  const std::byte* data;
  int64_t stride;  ///< bytes
  int64_t bytes;   ///< of a row's numbers
  float scale;
};

Rows key_rows(const KvView& kv) {
  return {static_cast<const std::byte*>(kv.k), kv.k_stride * static_cast<int64_t>(size_of(kv.dtype)), kv.k_row_bytes(),
          kv.scales.k};
}
Rows value_rows(const KvView& kv) {
  return {static_cast<const std::byte*>(kv.v), kv.v_stride * static_cast<int64_t>(size_of(kv.dtype)), kv.v_row_bytes(),
          kv.scales.v};
}

// One row: bytes as they are, or `heads` runs of adjacent numbers.
void gather_row(const KvView& kv, const std::byte* row, float scale, View out) {
  auto* target = static_cast<std::byte*>(out.data());
  const auto size = static_cast<int64_t>(size_of(out.dtype()));
  if (out.dtype() == DType::u8) {
    std::memcpy(target, row, static_cast<size_t>(out.size(0)));
  } else if (kv.format == KvFormat::fp8_ds_mla) {
    load_fp8_ds_mla(row, kv.v_dim, kv.k_dim - kv.v_dim, target, out.dtype());
  } else {
    const int64_t dim = out.size(1), head_bytes = dim * static_cast<int64_t>(size_of(kv.dtype));
    for (int64_t head = 0; head < out.size(0); ++head) {
      copy_elements(row + head * head_bytes, kv.dtype, dim, target + head * out.stride(0) * size, out.dtype(), scale);
    }
  }
}

void clear_row(View out) {
  const int64_t heads = out.dtype() == DType::u8 ? 1 : out.size(0), dim = out.size(out.dims() - 1);
  const auto size = static_cast<int64_t>(size_of(out.dtype()));
  for (int64_t head = 0; head < heads; ++head) {
    std::memset(static_cast<std::byte*>(out.data()) + head * out.stride(0) * size, 0, static_cast<size_t>(dim * size));
  }
}

}  // namespace

void gather_rows(Pool& pool, const KvView& kv, const int32_t* slots, View k, View v) {
  const int64_t rows = k.size(0);
  const Rows keys = key_rows(kv), values = value_rows(kv);
  constexpr int64_t kRows = 32;  // of one task: some 10 KiB to copy, well above what taking a task costs
  pool.run((rows + kRows - 1) / kRows, [&](int64_t task, int) {
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      const int64_t slot = slots != nullptr ? slots[row] : row;
      WEFT_CHECK_LT(slot, kv.slots);
      const auto gather = [&](const Rows& from, View out) {
        slot < 0 ? clear_row(out) : gather_row(kv, from.data + slot * from.stride, from.scale, out);
      };
      gather(keys, k.at(row));
      if (!v.empty()) gather(values, v.at(row));
    }
  });
}

}  // namespace weft::cpu
