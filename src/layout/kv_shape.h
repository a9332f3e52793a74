#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "layout/block_layout.h"
#include "layout/kv_view.h"

namespace weft {

/// What a plane of a block holds. Together with the global layer id this is the key of a plane everywhere.
enum class PlaneRole : uint8_t { key, value, latent, test_replicated };

/// One plane: a row per token for one layer. Sharded planes hold the rank's own tokens, replicated planes hold all tokens of
/// the virtual block on every rank.
struct Plane {
  PlaneRole role = PlaneRole::key;
  int layer = 0;             ///< global layer id
  int64_t row_elements = 0;  ///< kv_heads * head_dim, or latent + rope; bytes of a fp8_ds_mla row
  DType dtype = DType::bf16;
  bool replicated = false;

  int64_t row_bytes() const { return row_elements * static_cast<int64_t>(size_of(dtype)); }
};

/// The KV of one token in all layers on one rank, and what follows from it: bytes of a block, and how many tokens fit.
struct KvShape {
  BlockLayout layout;
  int kv_heads = 1;          ///< KV heads of this rank; 1 for MLA
  int k_dim = 0, v_dim = 0;  ///< elements of a key and of a value; MLA: latent + rope and latent
  bool latent = false;       ///< MLA: one row serves as key and value
  DType dtype = DType::bf16;
  KvFormat format = KvFormat::elements;
  float scale = 0;                       ///< of every layer's float8_e4m3 keys and values; 0: each layer's own
  int first_layer = 0, last_layer = 0;   ///< layers [first, last) have planes here
  std::vector<Plane> extra_planes = {};  ///< planes beside those of attention, e.g. replicated ones

  /// Requires: fp8_ds_mla only for latents that are a multiple of kLatentScaleGroup, in float8_e4m3.
  std::vector<Plane> planes() const;
  /// Bytes of one token's keys and values in one layer.
  int64_t row_bytes() const;
  /// Bytes of one virtual block on one rank, all planes.
  int64_t block_bytes() const;
  /// Bytes on one rank for one token of a sequence, on average: block_bytes / virtual_tokens.
  double token_bytes() const;
};

/// How many tokens fit. The only place where capacity is computed: banner, inspect, admission and metrics all use it.
struct KvCapacity {
  int64_t blocks = 0;  ///< virtual blocks, the same on every rank of the group
  int64_t tokens = 0;  ///< blocks * virtual_tokens: the longest sequence that can run when it runs alone

  /// What `bytes_per_rank` of KV memory hold.
  static KvCapacity from_bytes(const KvShape& shape, int64_t bytes_per_rank);
  static KvCapacity from_blocks(const KvShape& shape, int64_t blocks);
};

}  // namespace weft
