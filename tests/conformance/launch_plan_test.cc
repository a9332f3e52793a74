// How calls of the CUDA operators become launches. Host code: it runs without a GPU.

#include "ops/cuda/launch_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/prop.h"

namespace weft::cuda {
namespace {

using test::for_each_case;
using test::Gen;

constexpr DeviceTraits kHopper{.processors = 132, .shared_bytes = 225 << 10};
constexpr DeviceTraits kSmall{.processors = 28, .shared_bytes = 97 << 10};

TEST(PlanTiled, FewRowsHaveSmallTiles) {
  EXPECT_EQ(plan_tiled(1).tile_rows, kFewTileRows);
  EXPECT_EQ(plan_tiled(1).row_tiles, 1);
  EXPECT_EQ(plan_tiled(32).row_tiles, 2);
  EXPECT_EQ(plan_tiled(33).tile_rows, kManyTileRows);
  EXPECT_EQ(plan_tiled(129).row_tiles, 3);
}

TEST(PlanTiled, OfExpertsHasATileForEveryRowHoweverTheyAreDealt) {
  for_each_case([](Gen& gen) {
    const int64_t experts = gen.in(1, 300), rows = gen.chance(0.3) ? gen.in(0, 20) : gen.in(0, 20000);
    std::vector<int64_t> of_expert(static_cast<size_t>(experts));
    const int64_t favourites = gen.in(1, experts);
    for (int64_t i = 0; i < rows; ++i) ++of_expert[static_cast<size_t>(gen.in(0, favourites - 1))];
    const TiledShape shape = plan_tiled_experts(rows, experts);
    int64_t tiles = 0;
    for (const int64_t own : of_expert) tiles += (own + shape.tile_rows - 1) / shape.tile_rows;
    EXPECT_LE(tiles, shape.row_tiles);
  });
}

TEST(PlanAttend, OfLatentDecodeByHand) {
  // 128 heads in four tiles of 32 queries: four blocks, one on each processor, so 33 parts of the keys.
  const AttendSizes sizes{
      .rows = 1, .heads = 128, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .v_is_k = true, .keys = 8192, .paged = true};
  const AttendShape shape = plan_attend(sizes, kHopper);
  EXPECT_EQ(shape.warps, 8);
  EXPECT_EQ(shape.tiles_per_row, 4);
  EXPECT_EQ(shape.columns_per_lane, 16);
  EXPECT_EQ(shape.column_blocks, 1);
  EXPECT_EQ(shape.parts, 33);
  // 32 queries and 32 keys of 580 floats, a float4 of weights for each warp and key, and 512 floats to look past the end.
  EXPECT_EQ(shape.shared_bytes, (64 * 580 + 8 * 32 * 4 + 512) * sizeof(float));
  // A smaller device has room for fewer queries beside the keys.
  EXPECT_EQ(plan_attend(sizes, kSmall).warps, 2);
}

TEST(PlanAttend, ChunksOfPrefillShareKeysAmongRowsAndAreNotSplit) {
  const AttendShape shape =
      plan_attend({.rows = 4096, .heads = 32, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .keys = 4096}, kHopper);
  EXPECT_FALSE(shape.whole_rows);
  EXPECT_EQ(shape.tiles(4096, 4), 512);
  EXPECT_EQ(shape.parts, 1);
  EXPECT_EQ(shape.launch_rows, 4096);
}

TEST(PlanAttend, OfAnInvariantCallTheCutFollowsFromTheRowAlone) {
  AttendSizes sizes{.rows = 1, .heads = 32, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .keys = 100'000, .invariant = true};
  const AttendShape one = plan_attend(sizes, kHopper);
  for_each_case([&](Gen& gen) {
    sizes.rows = gen.in(1, 5000);
    sizes.keys = gen.in(1, 200'000);
    const AttendShape shape = plan_attend(sizes, gen.chance(0.5) ? kHopper : kSmall);
    EXPECT_EQ(shape.cut, one.cut);
    EXPECT_EQ(shape.least_part_keys, one.least_part_keys);
    EXPECT_TRUE(shape.whole_rows);
    // A part for all keys that a row may have.
    const int64_t part_keys = std::max(shape.least_part_keys, (sizes.keys + shape.cut - 1) / shape.cut);
    EXPECT_GE(shape.parts * part_keys, sizes.keys);
  });
}

TEST(PlanAttend, AnyCallFitsTheDeviceCoversItsQueriesAndStaysBelowTheBoundOfItsPartials) {
  for_each_case(
      [](Gen& gen) {
        const int kv_heads = static_cast<int>(gen.pick<int64_t>({1, 1, 2, 8, 16}));
        AttendSizes sizes{.rows = gen.chance(0.5) ? gen.in(1, 9) : gen.in(1, 9000),
                          .heads = kv_heads * static_cast<int>(gen.pick<int64_t>({1, 4, 7, 16, 128})),
                          .kv_heads = kv_heads,
                          .k_dim = static_cast<int>(gen.in(1, 600)),
                          .v_dim = static_cast<int>(gen.chance(0.2) ? gen.in(500, 1300) : gen.in(1, 512)),
                          .keys = gen.pick<int64_t>({1, 100, 5000, 200'000}),
                          .paged = gen.chance(0.5),
                          .invariant = gen.chance(0.3)};
        sizes.v_is_k = sizes.v_dim <= sizes.k_dim && gen.chance(0.5);
        const DeviceTraits& device = gen.chance(0.5) ? kHopper : kSmall;
        const AttendShape shape = plan_attend(sizes, device);
        const int group = sizes.heads / sizes.kv_heads;
        EXPECT_LE(shape.shared_bytes, device.shared_bytes);
        EXPECT_GE(shape.tiles(sizes.rows, group) * shape.queries(), sizes.rows * group);
        EXPECT_GE(shape.column_blocks * shape.columns_per_lane * 32, sizes.v_dim);
        EXPECT_LE(shape.columns_per_lane * 32, kMostColumns);
        EXPECT_GE(shape.launch_rows, 1);
        EXPECT_LE(shape.parts, 65535);
        if (shape.parts > 1) {
          EXPECT_LE(shape.parts * shape.launch_rows * sizes.heads, most_partials(sizes.heads, device));
        }
      },
      1000);
}

TEST(PlanSample, ScratchHoldsAWeightALogitAndAnIdOfEachToken) {
  EXPECT_EQ(sample_scratch_bytes(10), 160u);
  EXPECT_EQ(sample_scratch_bytes(11), 192u);
  EXPECT_EQ(sample_scratch_bytes(11) % 8, 0u);
  EXPECT_EQ(sample_blocks(1), 8);
  EXPECT_EQ(sample_blocks(1000), 128);
}

}  // namespace
}  // namespace weft::cuda
