#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace weft {

/// One layer's KV rows on one rank, as kernels see them. Row `slot` of the keys starts at `k + slot * k_stride` elements and
/// holds [kv_heads, k_dim]; the values likewise. In MLA there is one row per token, [latent | rope]: `v` equals `k`, the
/// strides are equal and v_dim (the latent) is less than k_dim (latent + rope).
struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;  ///< elements from one slot to the next
  int64_t slots = 0;                   ///< rows in the planes
  int kv_heads = 1, k_dim = 0, v_dim = 0;
  int block_tokens = 16;  ///< rows of one block on this rank
  DType dtype = DType::bf16;

  bool is_latent() const { return k == v; }
};

}  // namespace weft
