#include "ops/cpu/rope.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/kv_elements.h"

namespace weft::cpu {
namespace {

// Rotates the first `rotary` elements of one head and copies the rest. `in` may be `out`: a pair is read before it is written.
template <typename T>
void rotate_head(const T* in, const float* cos, const float* sin, int rotary, bool interleaved, int64_t dim, T* out) {
  const int half = rotary / 2;
  const int step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    const float x = static_cast<float>(in[i * step]), y = static_cast<float>(in[i * step + apart]);
    out[i * step] = T(x * cos[i] - y * sin[i]);
    out[i * step + apart] = T(y * cos[i] + x * sin[i]);
  }
  if (in != out) std::copy(in + rotary, in + dim, out + rotary);
}

// All heads of one row: in, out [heads, D].
template <typename T>
void rotate_row(ConstView in, const float* cos, const float* sin, const RopeAppend& args, View out) {
  for (int64_t head = 0; head < in.size(0); ++head) {
    rotate_head(static_cast<const T*>(in.data()) + head * in.stride(0), cos, sin, args.rotary, args.interleaved, in.size(1),
                static_cast<T*>(out.data()) + head * out.stride(0));
  }
}

// Row [heads, dim] to `target`, heads adjacent.
void store_heads(ConstView row, void* target, DType dtype, float scale) {
  const int64_t in_size = static_cast<int64_t>(size_of(row.dtype())), out_size = static_cast<int64_t>(size_of(dtype));
  for (int64_t head = 0; head < row.size(0); ++head) {
    copy_elements(static_cast<const std::byte*>(row.data()) + head * row.stride(0) * in_size, row.dtype(), row.size(1),
                  static_cast<std::byte*>(target) + head * row.size(1) * out_size, dtype, scale);
  }
}

void append_row(const RopeAppend& args, int64_t row) {
  const KvView& kv = args.kv;
  const int64_t slot = args.slots[row], size = static_cast<int64_t>(size_of(kv.dtype));
  if (slot < 0) return;
  WEFT_CHECK_LT(slot, kv.slots) << "row " << row;
  auto* key = static_cast<std::byte*>(kv.k) + slot * kv.k_stride * size;
  if (kv.format == KvFormat::fp8_ds_mla) {
    store_fp8_ds_mla(args.latent.at(row).data(), kv.v_dim, args.k_out.at(row).data(), kv.k_dim - kv.v_dim, args.q.dtype(), key);
  } else if (kv.is_latent()) {
    store_heads(args.latent.at(row), key, kv.dtype, kv.scales.v);
    store_heads(args.k_out.at(row), key + kv.v_dim * size, kv.dtype, kv.scales.k);
  } else {
    store_heads(args.k_out.at(row), key, kv.dtype, kv.scales.k);
    store_heads(args.v.at(row), static_cast<std::byte*>(kv.v) + slot * kv.v_stride * size, kv.dtype, kv.scales.v);
  }
}

}  // namespace

void rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) {
  const int64_t rows = cos.size(0), pairs = static_cast<int64_t>(inv_freq.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = positions[row] * inv_freq[static_cast<size_t>(i)];
      cos.as<float>()[row * cos.stride(0) + i * cos.stride(1)] = static_cast<float>(factor * std::cos(angle));
      sin.as<float>()[row * sin.stride(0) + i * sin.stride(1)] = static_cast<float>(factor * std::sin(angle));
    }
  }
}

void rope_append(Pool& pool, const RopeAppend& args) {
  const int64_t rows = args.q.size(0);
  constexpr int64_t kRows = 8;  // of one task
  const auto rotate = args.q.dtype() == DType::bf16 ? rotate_row<bf16> : rotate_row<float>;
  pool.run((rows + kRows - 1) / kRows, [&](int64_t task, int) {
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      const float* cos = args.cos.as<float>() + row * args.cos.stride(0);
      const float* sin = args.sin.as<float>() + row * args.sin.stride(0);
      rotate(args.q.at(row), cos, sin, args, args.q_out.at(row));
      rotate(args.k.at(row), cos, sin, args, args.k_out.at(row));
      append_row(args, row);
    }
  });
}

}  // namespace weft::cpu
