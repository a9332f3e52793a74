// KvShape, KvCapacity and KvRegion: bytes of a token, how many tokens fit, and where they lie.

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "layout/kv_region.h"
#include "layout/kv_shape.h"
#include "support/prop.h"

namespace weft {
namespace {

/// MLA with 61 layers, latent 512 and rope 64, as the 671B models have it.
KvShape deepseek(int ranks) {
  return {.layout = {.shard = {.ranks = ranks, .interleave = 1}, .block_tokens = 64},
          .kv_heads = 1,
          .k_dim = 576,
          .v_dim = 512,
          .latent = true,
          .dtype = DType::bf16,
          .first_layer = 0,
          .last_layer = 61};
}

/// Two layers of grouped-query attention with a replicated plane beside them.
KvShape small(int ranks) {
  return {.layout = {.shard = {.ranks = ranks, .interleave = 2}, .block_tokens = 4},
          .kv_heads = 3,
          .k_dim = 8,
          .v_dim = 6,
          .latent = false,
          .dtype = DType::f32,
          .first_layer = 5,
          .last_layer = 7,
          .extra_planes = {
              {.role = PlaneRole::test_replicated, .layer = 5, .row_elements = 10, .dtype = DType::u8, .replicated = true}}};
}

TEST(KvShape, ATokenOfA671bModelTakes70272Bytes) {
  EXPECT_EQ(deepseek(1).block_bytes(), 70272 * 64);
  EXPECT_EQ(deepseek(1).token_bytes(), 70272);
  EXPECT_EQ(deepseek(8).block_bytes(), 70272 * 64) << "a block has the same bytes on a rank whatever W is";
  EXPECT_EQ(deepseek(8).token_bytes(), 70272.0 / 8);
}

TEST(KvShape, KeysAndValuesHaveTheirOwnWidth) {
  const KvShape shape = small(2);
  EXPECT_EQ(shape.planes().size(), 5U);
  // Two layers of 3 heads of 8 + 6 floats for the rank's 4 tokens; 10 bytes for all 8 tokens of the virtual block.
  EXPECT_EQ(shape.block_bytes(), 2 * 3 * (8 + 6) * 4 * 4 + 10 * 8);
}

TEST(KvShape, Fp8RowsTake576And656Bytes) {
  KvShape shape = deepseek(1);
  shape.dtype = DType::f8_e4m3;
  EXPECT_EQ(shape.token_bytes(), 61 * 576);
  shape.format = KvFormat::fp8_ds_mla;
  EXPECT_EQ(shape.row_bytes(), 656);
  EXPECT_EQ(shape.token_bytes(), 61 * 656) << "512 latents, 4 scales and 64 bfloat16";
  EXPECT_EQ(fp8_ds_mla_row_bytes(128, 4), 128 + 4 + 8);
  KvShape grouped = small(2);
  grouped.dtype = DType::f8_e4m3;
  EXPECT_EQ(grouped.row_bytes(), 3 * (8 + 6));
  EXPECT_EQ(grouped.block_bytes(), 2 * 3 * (8 + 6) * 1 * 4 + 10 * 8);
}

TEST(KvShapeDeathTest, RowsWithScalesNeedALatentOfWholeGroups) {
  KvShape shape = deepseek(1);
  shape.dtype = DType::f8_e4m3;
  shape.format = KvFormat::fp8_ds_mla;
  shape.v_dim = 500;
  EXPECT_DEATH(shape.planes(), "fp8_ds_mla rows of 500 values");
  shape = small(1);
  shape.format = KvFormat::fp8_ds_mla;
  EXPECT_DEATH(shape.planes(), "fp8_ds_mla rows of 6 values in float32");
}

TEST(KvCapacity, Fp8HoldsTwiceTheTokens) {
  constexpr int64_t kBudget = int64_t{40} << 30;
  KvShape shape = deepseek(4);
  const int64_t tokens = KvCapacity::from_bytes(shape, kBudget).tokens;
  shape.dtype = DType::f8_e4m3;
  EXPECT_NEAR(static_cast<double>(KvCapacity::from_bytes(shape, kBudget).tokens), 2.0 * static_cast<double>(tokens), 512);
}

TEST(KvCapacity, GrowsWithTheRanks) {
  constexpr int64_t kBudget = int64_t{40} << 30;
  const KvCapacity one = KvCapacity::from_bytes(deepseek(1), kBudget);
  EXPECT_EQ(one.blocks, kBudget / (70272 * 64));
  EXPECT_EQ(one.tokens, one.blocks * 64);
  for (const int ranks : {2, 3, 4, 8}) {
    const KvCapacity woven = KvCapacity::from_bytes(deepseek(ranks), kBudget);
    EXPECT_EQ(woven.blocks, one.blocks);
    EXPECT_EQ(woven.tokens, ranks * one.tokens);
  }
}

TEST(KvCapacity, IsTheLargestNumberOfWholeBlocks) {
  test::for_each_case([](test::Gen& gen) {
    const KvShape shape = small(static_cast<int>(gen.in(1, 9)));
    const int64_t bytes = gen.in(0, 100'000);
    const KvCapacity capacity = KvCapacity::from_bytes(shape, bytes);
    EXPECT_LE(capacity.blocks * shape.block_bytes(), bytes);
    EXPECT_GT((capacity.blocks + 1) * shape.block_bytes(), bytes);
    EXPECT_EQ(KvCapacity::from_blocks(shape, capacity.blocks).tokens, capacity.tokens);
  });
  EXPECT_EQ(KvCapacity::from_bytes(small(2), -5).tokens, 0) << "nothing left after the weights";
}

TEST(KvRegion, TakesExactlyTheBytesOfItsBlocks) {
  for (const int ranks : {1, 2, 3}) {
    const KvShape shape = small(ranks);
    size_t taken = 0;
    const KvRegion region(shape, 7, [&](size_t bytes) {
      taken += bytes;
      return Buffer::host(bytes);
    });
    EXPECT_EQ(taken, static_cast<size_t>(7 * shape.block_bytes()));
    EXPECT_EQ(region.blocks(), 7);
  }
}

TEST(KvRegion, ViewsOfGroupedQueryAttention) {
  const KvRegion region(small(2), 7, Buffer::host);
  const KvView view = region.view(6);
  EXPECT_FALSE(view.is_latent());
  EXPECT_EQ(view.k_stride, 24);
  EXPECT_EQ(view.v_stride, 18);
  EXPECT_EQ(view.slots, 28);
  EXPECT_EQ(view.kv_heads, 3);
  EXPECT_EQ(view.k_dim, 8);
  EXPECT_EQ(view.v_dim, 6);
  EXPECT_EQ(view.block_tokens, 4);
  EXPECT_EQ(view.k, region.plane(PlaneRole::key, 6).data());
  EXPECT_EQ(view.v, region.plane(PlaneRole::value, 6).data());
  EXPECT_EQ(region.plane(PlaneRole::test_replicated, 5).size(0), 7 * 8);
}

TEST(KvRegion, InMlaOneRowIsKeyAndValue) {
  KvShape shape = deepseek(4);
  shape.last_layer = 2;
  const KvRegion region(shape, 3, Buffer::host);
  const KvView view = region.view(1);
  EXPECT_TRUE(view.is_latent());
  EXPECT_EQ(view.k_stride, 576);
  EXPECT_EQ(view.v_stride, 576);
  EXPECT_EQ(view.slots, 3 * 64);
}

TEST(KvRegion, ViewsCarryFormatAndScales) {
  KvShape shape = deepseek(4);
  shape.last_layer = 2;
  shape.dtype = DType::f8_e4m3;
  const KvRegion plain(shape, 3, Buffer::host);
  EXPECT_EQ(plain.view(1).format, KvFormat::elements);
  EXPECT_EQ(plain.view(1).scales.k, 1.0f);
  EXPECT_EQ(plain.view(1, {.k = 0.5f, .v = 0.25f}).scales.v, 0.25f);
  EXPECT_EQ(plain.view(1).k_row_bytes(), 576);
  shape.scale = 4;
  const KvRegion scaled(shape, 3, Buffer::host);
  EXPECT_EQ(scaled.view(1, {.k = 0.5f, .v = 0.25f}).scales.k, 4.0f) << "one scale for all layers instead of their own";
  EXPECT_EQ(scaled.view(1, {.k = 0.5f, .v = 0.25f}).scales.v, 4.0f);
  shape.format = KvFormat::fp8_ds_mla;
  const KvRegion mixed(shape, 3, Buffer::host);
  const KvView view = mixed.view(0);
  EXPECT_EQ(view.format, KvFormat::fp8_ds_mla);
  EXPECT_EQ(view.k_stride, 656);
  EXPECT_EQ(view.k_row_bytes(), 656);
  EXPECT_EQ(view.k_dim, 576);
  EXPECT_EQ(mixed.bytes(0, BlockId{1}, 3).size(), 3U * 656);
}

TEST(KvRegion, BytesOfBlocksCoverEveryPlaneWithoutOverlap) {
  const KvShape shape = small(3);
  const KvRegion region(shape, 4, Buffer::host);
  std::set<const std::byte*> seen;
  size_t total = 0;
  for (size_t plane = 0; plane < region.planes().size(); ++plane)
    for (int block = 0; block < 4; ++block) {
      const auto bytes = region.bytes(plane, BlockId{block}, region.block_rows(plane));
      for (const std::byte& byte : bytes) seen.insert(&byte);
      total += bytes.size();
    }
  EXPECT_EQ(seen.size(), total);
  EXPECT_EQ(total, static_cast<size_t>(4 * shape.block_bytes()));
}

TEST(KvRegion, TheRowOfASlotLiesInTheBytesOfItsBlock) {
  const KvRegion region(small(2), 4, Buffer::host);
  const View keys = region.plane(PlaneRole::key, 5);
  // Slot 9 is row 1 of block 2; plane 0 holds the keys of layer 5.
  const auto block = region.bytes(0, BlockId{2}, 4);
  EXPECT_EQ(static_cast<const std::byte*>(keys.rows(9, 1).data()), block.data() + 1 * 24 * 4);
}

TEST(KvRegionDeathTest, RefusesWhatItDoesNotHold) {
  const KvRegion region(small(2), 4, Buffer::host);
  EXPECT_DEATH(region.view(0), "no plane of role 0 in layer 0");
  EXPECT_DEATH(region.bytes(0, BlockId{4}, 1), "block 4");
  EXPECT_DEATH(region.bytes(0, BlockId{0}, 5), "rows 5");
}

}  // namespace
}  // namespace weft
