#include "layout/kv_region.h"

#include "base/check.h"

namespace weft {

KvRegion::KvRegion(KvShape shape, int64_t blocks, const Allocate& allocate)
    : shape_(std::move(shape)), blocks_(blocks), planes_(shape_.planes()) {
  buffers_.reserve(planes_.size());
  for (size_t i = 0; i < planes_.size(); ++i)
    buffers_.push_back(allocate(static_cast<size_t>(planes_[i].row_bytes() * block_rows(i) * blocks_)));
}

int64_t KvRegion::block_rows(size_t index) const {
  return planes_[index].replicated ? shape_.layout.virtual_tokens() : shape_.layout.block_tokens;
}

View KvRegion::plane(PlaneRole role, int layer) const {
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (planes_[i].role == role && planes_[i].layer == layer)
      return View(buffers_[i].data(), planes_[i].dtype, {blocks_ * block_rows(i), planes_[i].row_elements});
  }
  WEFT_CHECK(false) << "no plane of role " << static_cast<int>(role) << " in layer " << layer;
  return {};
}

KvView KvRegion::view(int layer, KvScales scales) const {
  const View k = plane(shape_.latent ? PlaneRole::latent : PlaneRole::key, layer);
  const View v = shape_.latent ? k : plane(PlaneRole::value, layer);
  return {.k = k.data(),
          .v = v.data(),
          .k_stride = k.size(1),
          .v_stride = v.size(1),
          .slots = k.size(0),
          .kv_heads = shape_.kv_heads,
          .k_dim = shape_.k_dim,
          .v_dim = shape_.v_dim,
          .block_tokens = shape_.layout.block_tokens,
          .dtype = shape_.dtype,
          .format = shape_.format,
          .scales = shape_.scale > 0 ? KvScales{.k = shape_.scale, .v = shape_.scale} : scales};
}

std::span<std::byte> KvRegion::bytes(size_t index, BlockId block, int64_t rows) const {
  const int64_t id = static_cast<int32_t>(block);
  WEFT_CHECK(id >= 0 && id < blocks_ && rows >= 0 && rows <= block_rows(index)) << "block " << id << ", rows " << rows;
  const int64_t row_bytes = planes_[index].row_bytes();
  return {buffers_[index].data() + id * block_rows(index) * row_bytes, static_cast<size_t>(rows * row_bytes)};
}

}  // namespace weft
