#include "ops/cpu/attend_tile.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::cpu {
namespace {

template <typename T>
void write_scaled(const float* in, int64_t stride, int64_t count, float factor, void* out) {
  T* target = static_cast<T*>(out);
  for (int64_t i = 0; i < count; ++i) target[i] = T(in[i * stride] * factor);
}

template <typename V>
auto* bytes_of(const V& view, int64_t i, int64_t j, int64_t k) {
  using Byte = std::conditional_t<std::is_same_v<V, View>, std::byte, const std::byte>;
  const int64_t at = i * view.stride(0) + j * view.stride(1) + k * view.stride(2);
  return static_cast<Byte*>(view.data()) + at * static_cast<int64_t>(size_of(view.dtype()));
}

}  // namespace

TileView::TileView(const Attention& args, const QueryTile& tile, int kv_head)
    : args_(args),
      tile_(tile),
      kv_head_(kv_head),
      heads_(args.q.size(2)),
      group_(args.q.size(0) * heads_ / args.kv_heads()),
      k_dim_(args.q.size(3)),
      v_dim_(args.out.size(3)) {
  const KvView& kv = args.paged.kv;
  if (kv.k != nullptr) {
    kv_dtype_ = kv.dtype;
    kv_format_ = kv.format;
    if (kv_dtype_ == DType::f8_e4m3 && kv_format_ == KvFormat::elements) scales_ = kv.scales;
    const int64_t size = static_cast<int64_t>(size_of(kv_dtype_));
    k_head_bytes_ = kv.k_dim * size;
    v_head_bytes_ = kv.v_dim * size;
    keys_ = static_cast<const std::byte*>(kv.k) + kv_head * k_head_bytes_;
    values_ = static_cast<const std::byte*>(kv.v) + kv_head * v_head_bytes_;
    k_stride_ = kv.k_stride * size;
    v_stride_ = kv.v_stride * size;
    // A tile without keys may be padding, whose sequence is nobody's.
    if (tile.keys > 0) table_ = args.paged.tables + args.seq_of[tile.row] * args.paged.table_stride;
  } else {
    const ConstView &k = args.rows.k, &v = args.rows.v;
    kv_dtype_ = k.dtype();
    if (kv_dtype_ == DType::f8_e4m3) scales_ = args.rows.scales;
    const int64_t size = static_cast<int64_t>(size_of(kv_dtype_));
    k_head_bytes_ = k.stride(1) * size;
    v_head_bytes_ = v.stride(1) * size;
    keys_ = static_cast<const std::byte*>(k.data()) + kv_head * k_head_bytes_;
    values_ = static_cast<const std::byte*>(v.data()) + kv_head * v_head_bytes_;
    k_stride_ = k.stride(0) * size;
    v_stride_ = v.stride(0) * size;
  }
}

float TileView::base2_scale() const {
  return static_cast<float>(double{args_.scale} * double{scales_.k} * std::numbers::log2e);
}

int64_t TileView::k_bytes() const {
  if (kv_format_ == KvFormat::fp8_ds_mla) return fp8_ds_mla_row_bytes(v_dim_, k_dim_ - v_dim_);
  return k_dim_ * static_cast<int64_t>(size_of(kv_dtype_));
}

TileView::Place TileView::place(int i) const {
  const int64_t head = (kv_head_ + i / tile_.count) * group_ + (tile_.head + i % tile_.count) % group_;
  return {head / heads_, row(i), head % heads_};
}

const void* TileView::query(int i) const {
  const Place at = place(i);
  return bytes_of(args_.q, at.block, at.row, at.head);
}

SeenKeys TileView::range(int segment, int i) const {
  const int64_t at = segment * args_.q.size(1) + row(i);
  return {args_.begin[at], args_.end[at]};
}

void TileView::locate(int64_t first, int64_t count, KeyRows& rows) const {
  rows.count = count;
  if (table_ == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      rows.keys[i] = keys_ + (first + i) * k_stride_;
      rows.values[i] = values_ + (first + i) * v_stride_;
    }
  } else {
    const int64_t block_tokens = args_.paged.kv.block_tokens;
    int64_t block = first / block_tokens, offset = first % block_tokens;
    for (int64_t i = 0; i < count; ++block, offset = 0) {
      const int64_t slot = table_[block] * block_tokens + offset;
      const int64_t run = std::min(count - i, block_tokens - offset);
      for (int64_t j = 0; j < run; ++j, ++i) {
        rows.keys[i] = keys_ + (slot + j) * k_stride_;
        rows.values[i] = values_ + (slot + j) * v_stride_;
      }
    }
  }
  std::fill(rows.keys + count, rows.keys + kTileKeys, rows.keys[count - 1]);
  std::fill(rows.values + count, rows.values + kTileKeys, rows.values[count - 1]);
}

void TileView::write(int i, const float* result, int64_t stride, float max, float sum) const {
  const Place at = place(i);
  const auto write_row = args_.out.dtype() == DType::bf16 ? write_scaled<bf16> : write_scaled<float>;
  write_row(result, stride, v_dim_, sum > 0 ? scales_.v / sum : 0.0f, bytes_of(args_.out, at.block, at.row, at.head));
  *reinterpret_cast<float*>(bytes_of(args_.lse, at.block, at.row, at.head)) =
      sum > 0 ? static_cast<float>(max * std::numbers::ln2 + std::log(static_cast<double>(sum))) : -HUGE_VALF;
}

}  // namespace weft::cpu
