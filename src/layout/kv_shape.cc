#include "layout/kv_shape.h"

#include "base/check.h"

namespace weft {

std::vector<Plane> KvShape::planes() const {
  std::vector<Plane> out;
  const int64_t latent_row = format == KvFormat::fp8_ds_mla ? fp8_ds_mla_row_bytes(v_dim, k_dim - v_dim) : k_dim;
  if (format == KvFormat::fp8_ds_mla) {
    WEFT_CHECK(latent && dtype == DType::f8_e4m3 && v_dim % kLatentScaleGroup == 0)
        << "fp8_ds_mla rows of " << v_dim << " values in " << to_string(dtype);
  }
  for (int layer = first_layer; layer < last_layer; ++layer) {
    if (latent) {
      out.push_back({.role = PlaneRole::latent, .layer = layer, .row_elements = latent_row, .dtype = dtype});
    } else {
      out.push_back({.role = PlaneRole::key, .layer = layer, .row_elements = int64_t{kv_heads} * k_dim, .dtype = dtype});
      out.push_back({.role = PlaneRole::value, .layer = layer, .row_elements = int64_t{kv_heads} * v_dim, .dtype = dtype});
    }
  }
  out.insert(out.end(), extra_planes.begin(), extra_planes.end());
  return out;
}

int64_t KvShape::row_bytes() const {
  KvShape one_layer = *this;
  one_layer.last_layer = first_layer + 1;
  one_layer.extra_planes.clear();
  int64_t bytes = 0;
  for (const Plane& plane : one_layer.planes()) bytes += plane.row_bytes();
  return bytes;
}

int64_t KvShape::block_bytes() const {
  int64_t bytes = 0;
  for (const Plane& plane : planes())
    bytes += plane.row_bytes() * (plane.replicated ? layout.virtual_tokens() : layout.block_tokens);
  return bytes;
}

double KvShape::token_bytes() const {
  return static_cast<double>(block_bytes()) / static_cast<double>(layout.virtual_tokens());
}

KvCapacity KvCapacity::from_bytes(const KvShape& shape, int64_t bytes_per_rank) {
  const int64_t block = shape.block_bytes();
  WEFT_CHECK_GT(block, 0);
  return from_blocks(shape, bytes_per_rank > 0 ? bytes_per_rank / block : 0);
}

KvCapacity KvCapacity::from_blocks(const KvShape& shape, int64_t blocks) {
  return {.blocks = blocks, .tokens = blocks * shape.layout.virtual_tokens()};
}

}  // namespace weft
