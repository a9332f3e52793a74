#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace weft {

/// How a row of the cache holds its numbers.
enum class KvFormat : uint8_t {
  /// One element of the plane's dtype each. In float8_e4m3: stored = saturating_cast(x / scale), read = stored * scale, with
  /// one scale for the keys and one for the values of a layer.
  elements,
  /// Latent rows that carry their scales: [latent e4m3 | a float32 scale for every 128 latents | rope part bfloat16]. The
  /// plane's dtype is float8_e4m3, and its row_elements count bytes.
  fp8_ds_mla,
};

/// Latents of a fp8_ds_mla row that share a scale.
constexpr int kLatentScaleGroup = 128;

/// Bytes of a fp8_ds_mla row. Requires: the latent is a multiple of kLatentScaleGroup.
constexpr int64_t fp8_ds_mla_row_bytes(int64_t latent, int64_t rope) {
  return latent + latent / kLatentScaleGroup * int64_t{sizeof(float)} + rope * int64_t{sizeof(bf16)};
}

/// What the stored float8_e4m3 keys and values of a layer are multiplied with. Unused by other dtypes.
struct KvScales {
  float k = 1, v = 1;
};

/// One layer's KV rows on one rank, as kernels see them. Row `slot` of the keys starts at `k + slot * k_stride` elements and
/// holds [kv_heads, k_dim]; the values likewise. In MLA there is one row per token, [latent | rope]: `v` equals `k`, the
/// strides and scales are equal and v_dim (the latent) is less than k_dim (latent + rope).
struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;  ///< elements from one slot to the next
  int64_t slots = 0;                   ///< rows in the planes
  int kv_heads = 1, k_dim = 0, v_dim = 0;
  int block_tokens = 16;  ///< rows of one block on this rank
  DType dtype = DType::bf16;
  KvFormat format = KvFormat::elements;
  KvScales scales = {};

  constexpr bool is_latent() const { return k == v; }
  /// Bytes that the numbers of one row take.
  constexpr int64_t k_row_bytes() const {
    if (format == KvFormat::fp8_ds_mla) return fp8_ds_mla_row_bytes(v_dim, k_dim - v_dim);
    return int64_t{kv_heads} * k_dim * static_cast<int64_t>(size_of(dtype));
  }
  constexpr int64_t v_row_bytes() const { return int64_t{kv_heads} * v_dim * static_cast<int64_t>(size_of(dtype)); }
};

}  // namespace weft
