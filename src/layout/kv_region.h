#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "layout/kv_shape.h"
#include "layout/kv_view.h"

namespace weft {

/// Owns the KV bytes of one rank: every plane of `blocks` blocks, each plane contiguous, row `slot` of a plane at
/// slot * row_bytes. All planes of a block live under the same block id.
///
/// Thread: the rank's own.
class KvRegion {
 public:
  using Allocate = std::function<Buffer(size_t bytes)>;
  /// Takes block_bytes * blocks from `allocate`. Throws what it throws.
  KvRegion(KvShape shape, int64_t blocks, const Allocate& allocate);

  const KvShape& shape() const { return shape_; }
  int64_t blocks() const { return blocks_; }
  /// The attention planes of one layer, whose own scales are these.
  KvView view(int layer, KvScales scales = {}) const;
  /// The whole plane of this role and layer: [rows, row_elements]. Requires: it exists.
  View plane(PlaneRole role, int layer) const;
  std::span<const Plane> planes() const { return planes_; }
  /// The bytes of the first `rows` rows of one block in plane number `index`.
  std::span<std::byte> bytes(size_t index, BlockId block, int64_t rows) const;
  /// Rows of one block in plane number `index`.
  int64_t block_rows(size_t index) const;

 private:
  KvShape shape_;
  int64_t blocks_;
  std::vector<Plane> planes_;
  std::vector<Buffer> buffers_;  ///< one per plane
};

}  // namespace weft
