// What attention on a CPU has of its own: instruction sets, threads, scratch, and how it is cut into tasks.

#include "conformance/attention_batch.h"
#include "hwy/highway.h"
#include "ops/cpu/attend.h"
#include "ops/cpu/attend_plan.h"

namespace weft {
namespace {

using namespace test;

/// Runs attend with its own memory.
void attend_with(int threads, const Attention& args) {
  Pool pool(threads);
  cpu::AttendScratch scratch;
  cpu::attend(pool, scratch, args);
}

TEST(CpuAttend, EveryInstructionSetIsAsTheReference) {
  const int64_t all = hwy::SupportedTargets();
  for (const int64_t target : {int64_t{HWY_AVX3}, int64_t{HWY_AVX2}, int64_t{0}}) {  // The last leaves the build's baseline.
    if ((all & target) != target) continue;
    hwy::GetChosenTarget().Update(target);
    for_each_case(
        [](Gen& gen) {
          Batch batch(gen, Shape::random(gen));
          batch.add(Batch::random_sequences(gen), 1, 1);
          batch.make_paged();
          attend_with(2, batch.args());
          expect_as_reference(batch.args());
        },
        30);
  }
  hwy::GetChosenTarget().Update(all);
}

TEST(CpuAttend, LongKeyRangesAreCutIntoPartsOfTheirOwn) {
  for_each_case(
      [](Gen& gen) {
        Shape shape = Shape::random(gen);
        shape.heads = shape.kv_heads, shape.blocks = 1;
        Batch batch(gen, shape);
        batch.add({{.keys = gen.in(1500, 4000), .rows = 2}, {.keys = 700, .rows = 1}}, 1, 1);
        batch.make_paged();
        cpu::AttendPlan plan;
        plan.build(batch.args());
        EXPECT_FALSE(plan.split_tiles().empty());
      },
      10);
}

TEST(CpuAttend, TheNumberOfThreadsChangesNoBit) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        std::vector<Batch::Sequence> sequences = Batch::random_sequences(gen);
        sequences.push_back({.keys = 1200, .rows = 3});
        batch.add(sequences, 1, 0);
        batch.make_paged();
        const Attention one = batch.args();
        attend_with(1, one);
        for (int threads : {2, 5}) {
          batch.renew_results();
          attend_with(threads, batch.args());
          EXPECT_TRUE(same_results(one, batch.args())) << threads << " threads";
        }
      },
      20);
}

TEST(CpuAttend, ScratchMayBeUsedAgainForOtherSizes) {
  Pool pool(2);
  cpu::AttendScratch scratch;
  for_each_case(
      [&](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        batch.add(Batch::random_sequences(gen), 1, 0);
        batch.make_paged();
        cpu::attend(pool, scratch, batch.args());
        expect_as_reference(batch.args());
      },
      20);
}

TEST(AttendPlan, TilesCoverEveryQueryOnceAndKeysWithoutGaps) {
  for_each_case([](Gen& gen) {
    Batch batch(gen, Shape::random(gen));
    batch.add(Batch::random_sequences(gen), 1, 2);
    batch.make_paged();
    const Attention& args = batch.args();
    const int64_t group = args.q.size(0) * args.q.size(2) / args.kv_heads();
    cpu::AttendPlan plan;
    plan.build(args);
    int64_t next = 0;
    for (const cpu::QueryTile& tile : plan.tiles()) {
      EXPECT_EQ(tile.row * group + tile.head, next);
      EXPECT_GT(tile.count, 0);
      EXPECT_LE(tile.count, cpu::kTileQueries);
      next += tile.count;
      std::set<int64_t> seen;
      for (int64_t row = tile.row; row <= (next - 1) / group; ++row) {
        EXPECT_EQ(args.seq_of[row], args.seq_of[tile.row]);
        for (int64_t key = args.begin[row]; key < args.end[row]; ++key) seen.insert(key);
      }
      EXPECT_EQ(tile.keys, static_cast<int64_t>(seen.size()));
      EXPECT_GE(tile.parts * tile.part_keys, tile.keys);
    }
    EXPECT_EQ(next, batch.rows() * group);
  });
}

}  // namespace
}  // namespace weft
