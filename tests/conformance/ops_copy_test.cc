// Copies of parts of blocks, as copy-on-write makes them: runs of bytes whose size and place are multiples of nothing.

#include <cstring>

#include "conformance/backend.h"
#include "conformance/tensors.h"
#include "layout/kv_region.h"

namespace weft {
namespace {

using namespace test;

KvShape shape_of(Gen& gen) {
  KvShape shape{.layout = {.shard = {.ranks = static_cast<int>(gen.in(1, 3)), .interleave = 1}, .block_tokens = 16},
                .kv_heads = 1,
                .k_dim = 576,
                .v_dim = 512,
                .latent = true,
                .dtype = DType::f8_e4m3,
                .first_layer = 0,
                .last_layer = 2};
  switch (gen.in(0, 3)) {
    case 0:  // 576 bytes
      break;
    case 1:  // 656 bytes
      shape.format = KvFormat::fp8_ds_mla;
      break;
    case 2:  // odd ones: 3 heads of 7 keys and 5 values
      shape.latent = false, shape.kv_heads = 3, shape.k_dim = 7, shape.v_dim = 5;
      break;
    default:  // 1152 bytes, and a replicated plane of 132 beside them
      shape.dtype = DType::bf16;
      shape.extra_planes = {
          {.role = PlaneRole::test_replicated, .layer = 0, .row_elements = 132, .dtype = DType::u8, .replicated = true}};
  }
  return shape;
}

TEST(CopyRuns, TheFirstRowsOfABlockBecomeThoseOfAnother) {
  for_each_case(
      [&](Gen& gen) {
        const KvRegion region(shape_of(gen), 3, [](size_t bytes) {
          return Buffer(take_test_memory(bytes), bytes, [](void* data) { give_back_test_memory(data); });
        });
        const BlockId source{0}, target{2};
        std::vector<CopyRun> runs;
        std::vector<std::vector<std::byte>> expected;
        for (size_t plane = 0; plane < region.planes().size(); ++plane) {
          for (const BlockId block : {source, BlockId{1}, target}) {
            for (std::byte& byte : region.bytes(plane, block, region.block_rows(plane)))
              byte = std::byte{static_cast<uint8_t>(gen.bits())};
          }
          const int64_t rows = gen.in(0, region.block_rows(plane));
          const auto from = region.bytes(plane, source, rows), to = region.bytes(plane, target, rows);
          runs.push_back({.target = to.data(), .source = from.data(), .bytes = from.size()});
          const auto all = region.bytes(plane, target, region.block_rows(plane));
          expected.emplace_back(all.begin(), all.end());
          std::copy(from.begin(), from.end(), expected.back().begin());
        }
        any_ops(gen).copy(runs);
        for (size_t plane = 0; plane < region.planes().size(); ++plane) {
          const auto all = region.bytes(plane, target, region.block_rows(plane));
          EXPECT_EQ(std::memcmp(all.data(), expected[plane].data(), all.size()), 0) << "plane " << plane;
        }
      },
      50);
}

}  // namespace
}  // namespace weft
