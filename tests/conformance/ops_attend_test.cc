// Attention: against the reference, and its laws.

#include "conformance/attention_batch.h"
#include "conformance/backend.h"
#include "layout/block_layout.h"
#include "layout/shard_layout.h"

namespace weft {
namespace {

using namespace test;

/// One query of one head whose score with key j is j, over keys with the values 1, 2, 4, 8.
struct FourKeys {
  Array<float> q{1}, k{0, 1, 2, 3}, v{1, 2, 4, 8};
  Array<int32_t> seq_of{0};
};

// --- attend -------------------------------------------------------------------------------------------------------------

TEST(Attend, WeighsValuesByTheExponentialOfTheScore) {
  FourKeys four;
  const Array<int32_t> begin{0}, end{4};
  Array<float> out{kNan}, lse{kNan};
  const Attention args{.q = {four.q.data(), DType::f32, {1, 1, 1, 1}},
                       .paged = {},
                       .rows = {.k = {four.k.data(), DType::f32, {4, 1, 1}}, .v = {four.v.data(), DType::f32, {4, 1, 1}}},
                       .seq_of = four.seq_of.data(),
                       .begin = begin.data(),
                       .end = end.data(),
                       .out = {out.data(), DType::f32, {1, 1, 1, 1}},
                       .lse = {lse.data(), DType::f32, {1, 1, 1}}};
  ops().attend(args);
  // (1 + 2 e + 4 e^2 + 8 e^3) / (1 + e + e^2 + e^3) and the natural log of the divisor.
  EXPECT_NEAR(out[0], 6.3052, 5e-5);
  EXPECT_NEAR(lse[0], 3.44019, 5e-6);
}

TEST(Attend, TwoShardsMergeToTheWholeInNaturalLogs) {
  // Two ranks, one token in turn: keys 0, 2 and keys 1, 3. In a cache of blocks of two rows, in blocks 1 and 0.
  FourKeys four;
  Array<float> outs(2, kNan), lses(2, kNan), out{kNan}, lse{kNan};
  const Array<int32_t> begin{0}, end{2}, table{1, kWildBlock};
  for (int rank = 0; rank < 2; ++rank) {
    Array<float> k{kNan, kNan, four.k[static_cast<size_t>(rank)], four.k[static_cast<size_t>(rank + 2)]};
    Array<float> v{kNan, kNan, four.v[static_cast<size_t>(rank)], four.v[static_cast<size_t>(rank + 2)]};
    const KvView kv{.k = k.data(),
                    .v = v.data(),
                    .k_stride = 1,
                    .v_stride = 1,
                    .slots = 4,
                    .k_dim = 1,
                    .v_dim = 1,
                    .block_tokens = 2,
                    .dtype = DType::f32};
    ops().attend({.q = {four.q.data(), DType::f32, {1, 1, 1, 1}},
                  .paged = {.kv = kv, .tables = table.data(), .table_stride = 2},
                  .rows = {},
                  .seq_of = four.seq_of.data(),
                  .begin = begin.data(),
                  .end = end.data(),
                  .out = {&outs[static_cast<size_t>(rank)], DType::f32, {1, 1, 1, 1}},
                  .lse = {&lses[static_cast<size_t>(rank)], DType::f32, {1, 1, 1}}});
  }
  EXPECT_NEAR(outs[0], 3.64239, 5e-6);
  EXPECT_NEAR(lses[0], 2.12693, 5e-6);
  EXPECT_NEAR(outs[1], 7.28478, 5e-6);
  EXPECT_NEAR(lses[1], 3.12693, 5e-6);

  std::vector<Partial> partials;
  for (size_t rank = 0; rank < 2; ++rank) {
    partials.push_back({.out = {&outs[rank], DType::f32, {1, 1, 1}}, .lse = {&lses[rank], DType::f32, {1, 1}}});
  }
  ops().merge(partials, {out.data(), DType::f32, {1, 1, 1}}, {lse.data(), DType::f32, {1, 1}});
  EXPECT_NEAR(out[0], 6.3052, 5e-5);  // With logarithms of base 2 it would be 6.0707.
  EXPECT_NEAR(lse[0], 3.44019, 5e-6);
}

TEST(Attend, RaggedPagedBatchesAreAsTheReference) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        batch.add(Batch::random_sequences(gen), 1, static_cast<int>(gen.in(0, 3)));
        batch.make_paged();
        any_ops(gen).attend(batch.args());
        expect_as_reference(batch.args());
      },
      100);
}

TEST(Attend, RaggedBatchesOverRowsInSegmentsAreAsTheReference) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        batch.add(Batch::random_sequences(gen), static_cast<int>(gen.in(1, 4)), static_cast<int>(gen.in(0, 3)));
        batch.make_rows();
        any_ops(gen).attend(batch.args());
        expect_as_reference(batch.args());
      },
      100);
}

TEST(Attend, LongKeyRangesAreSplitAndStayExact) {
  for_each_case(
      [](Gen& gen) {
        Shape shape = Shape::random(gen);
        shape.heads = std::min(shape.heads, 4 * shape.kv_heads), shape.blocks = 1;
        shape.heads = shape.heads / shape.kv_heads * shape.kv_heads;
        Batch batch(gen, shape);
        batch.add({{.keys = gen.in(1500, 4000), .rows = 2}, {.keys = gen.in(1, 50), .rows = 3}, {.keys = 700, .rows = 1}}, 1,
                  1);
        batch.make_paged();
        any_ops(gen).attend(batch.args());
        expect_as_reference(batch.args());
      },
      10);
}

TEST(Attend, LargeScoresNeitherOverflowNorVanish) {
  // Scores of about +-3000, where exp overflows, and a query to which all keys are equally bad.
  for (float sign : {1.0f, -1.0f}) {
    const Array<float> q{sign * 100, sign * 100}, k{30, 0, 29.99f, 0, 30, 0}, v{1, 2, 3};
    const Array<int32_t> seq_of{0}, begin{0}, end{3};
    Array<float> out{kNan}, lse{kNan};
    const Attention args{.q = {q.data(), DType::f32, {1, 1, 1, 2}},
                         .paged = {},
                         .rows = {.k = {k.data(), DType::f32, {3, 1, 2}}, .v = {v.data(), DType::f32, {3, 1, 1}}},
                         .seq_of = seq_of.data(),
                         .begin = begin.data(),
                         .end = end.data(),
                         .out = {out.data(), DType::f32, {1, 1, 1, 1}},
                         .lse = {lse.data(), DType::f32, {1, 1, 1}}};
    ops().attend(args);
    expect_as_reference(args);
  }
}

TEST(Attend, TheSameCallGivesTheSameBits) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        std::vector<Batch::Sequence> sequences = Batch::random_sequences(gen);
        sequences.push_back({.keys = 1200, .rows = 3});
        batch.add(sequences, 1, 0);
        batch.make_paged();
        const Attention first = batch.args();
        Ops& backend = any_ops(gen);
        backend.attend(first);
        batch.renew_results();
        backend.attend(batch.args());
        EXPECT_TRUE(same_results(first, batch.args()));
      },
      20);
}

// --- laws of shards -----------------------------------------------------------------------------------------------------

TEST(Attend, AnyShardingOfTheKeysMergesToTheUnshardedResult) {
  for_each_case([](Gen& gen) {
    const int block_tokens = 4, rows = static_cast<int>(gen.in(1, 4));
    const ShardLayout shard{.ranks = static_cast<int>(gen.in(1, 8)),
                            .interleave = static_cast<int>(gen.pick({1, 2, block_tokens}))};
    const BlockLayout layout{.shard = shard, .block_tokens = block_tokens};
    const int64_t length = gen.in(rows, 200), kv_heads = gen.in(1, 2), heads = kv_heads * gen.in(1, 3), dim = 24;
    const float scale = 0.2f;
    Tensors tensors;
    const View q = tensors.random(gen, DType::f32, {1, rows, heads, dim});
    const View k = tensors.random(gen, DType::f32, {length, kv_heads, dim}),
               v = tensors.random(gen, DType::f32, {length, kv_heads, dim});

    // The last `rows` positions ask, each up to and including itself.
    Array<int32_t> seq_of(static_cast<size_t>(rows), 0), begin = seq_of, end = seq_of;
    for (int i = 0; i < rows; ++i) end[static_cast<size_t>(i)] = static_cast<int32_t>(length - rows + 1 + i);
    Attention whole{.q = q,
                    .paged = {},
                    .rows = {.k = k, .v = v},
                    .seq_of = seq_of.data(),
                    .begin = begin.data(),
                    .end = end.data(),
                    .scale = scale,
                    .out = tensors.make(DType::f32, {1, rows, heads, dim}),
                    .lse = tensors.make(DType::f32, {1, rows, heads})};
    ops().attend(whole);
    expect_as_reference(whole);

    const int64_t blocks = layout.blocks_for(length);
    Array<BlockId> table;
    for (int64_t b = 0; b < blocks; ++b) table.push_back(BlockId{static_cast<int32_t>(blocks - 1 - b)});
    std::vector<Partial> partials;
    for (int rank = 0; rank < shard.ranks; ++rank) {
      const View keys = tensors.make(DType::f32, {blocks * block_tokens, kv_heads * dim});
      const View values = tensors.make(DType::f32, {blocks * block_tokens, kv_heads * dim});
      for (int64_t pos = 0; pos < length; ++pos) {
        const int64_t slot = layout.slot(table, pos, rank);
        if (slot < 0) continue;
        for (int64_t i = 0; i < kv_heads * dim; ++i) {
          set(keys, element(k, pos, i / dim, i % dim), slot, i);
          set(values, element(v, pos, i / dim, i % dim), slot, i);
        }
      }
      Array<int32_t> local_end;
      for (int32_t global : end) local_end.push_back(static_cast<int32_t>(shard.local_count(global, rank)));
      Attention part = whole;
      part.rows = {};
      part.paged = {.kv = {.k = keys.data(),
                           .v = values.data(),
                           .k_stride = keys.stride(0),
                           .v_stride = values.stride(0),
                           .slots = keys.size(0),
                           .kv_heads = static_cast<int>(kv_heads),
                           .k_dim = static_cast<int>(dim),
                           .v_dim = static_cast<int>(dim),
                           .block_tokens = block_tokens,
                           .dtype = DType::f32},
                    .tables = reinterpret_cast<const int32_t*>(table.data()),
                    .table_stride = blocks};
      part.end = local_end.data();
      std::tie(part.out, part.lse) = tensors.make_partials(DType::f32, 1, rows, heads, dim);
      ops().attend(part);
      partials.push_back({.out = part.out.at(0), .lse = part.lse.at(0)});
    }
    Attention merged = whole;
    merged.out = tensors.make(DType::f32, {1, rows, heads, dim});
    merged.lse = tensors.make(DType::f32, {1, rows, heads});
    ops().merge(partials, merged.out.at(0), merged.lse.at(0));
    expect_as_reference(merged);
  });
}

TEST(Attend, OneKeyAgainstFourThousandMergesExactly) {
  Gen gen(7);
  Tensors tensors;
  const int64_t keys = 4096, dim = 64;
  const View q = tensors.random(gen, DType::f32, {1, 1, 2, dim}), k = tensors.random(gen, DType::f32, {keys, 1, dim}),
             v = tensors.random(gen, DType::f32, {keys, 1, dim});
  const Array<int32_t> seq_of{0}, cuts{0, 1, static_cast<int32_t>(keys)};
  Attention whole{.q = q,
                  .paged = {},
                  .rows = {.k = k, .v = v},
                  .seq_of = seq_of.data(),
                  .begin = cuts.data(),
                  .end = cuts.data() + 2,
                  .scale = 0.125f,
                  .out = tensors.make(DType::f32, {1, 1, 2, dim}),
                  .lse = tensors.make(DType::f32, {1, 1, 2})};
  std::vector<Partial> partials;
  for (int i = 0; i < 2; ++i) {
    Attention part = whole;
    part.begin = cuts.data() + i, part.end = cuts.data() + i + 1;
    std::tie(part.out, part.lse) = tensors.make_partials(DType::f32, 1, 1, 2, dim);
    ops().attend(part);
    expect_as_reference(part);
    partials.push_back({.out = part.out.at(0), .lse = part.lse.at(0)});
  }
  ops().merge(partials, whole.out.at(0), whole.lse.at(0));
  expect_as_reference(whole);
}

TEST(Attend, RowsOfAVerifyStepLocaliseAfterExpansion) {
  // Ten tokens on two ranks, three query rows at the end: rank 1 holds 4, 4 and 5 of the keys they see, not 3, 4 and 5.
  const ShardLayout shard{.ranks = 2, .interleave = 1};
  std::vector<int64_t> counts;
  for (int64_t pos : {7, 8, 9}) counts.push_back(shard.visible_keys(pos, ShardLayout::kNoWindow, 1).end);
  EXPECT_EQ(counts, (std::vector<int64_t>{4, 4, 5}));
}

// --- invariance ---------------------------------------------------------------------------------------------------------

/// The call for the rows [begin, begin + count) alone, with results of its own.
Attention part_of(const Attention& whole, int64_t begin, int64_t count, Tensors& tensors) {
  Attention part = whole;
  part.q = whole.q.slice(1, begin, count);
  part.seq_of += begin, part.begin += begin, part.end += begin;
  part.out = tensors.make(whole.out.dtype(), {whole.q.size(0), count, whole.q.size(2), whole.out.size(3)});
  part.lse = tensors.make(DType::f32, {whole.q.size(0), count, whole.q.size(2)});
  return part;
}

TEST(Attend, InvariantRowsHaveTheSameBitsInAnyBatch) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        std::vector<Batch::Sequence> sequences = Batch::random_sequences(gen);
        sequences.push_back({.keys = gen.in(600, 2000), .rows = static_cast<int>(gen.in(1, 5))});
        if (gen.chance(0.3)) sequences.push_back({.keys = 700, .rows = 40});
        batch.add(sequences, 1, static_cast<int>(gen.in(0, 1)));
        batch.make_paged();
        batch.args().invariant = true;
        const Attention& whole = batch.args();
        ops().attend(whole);
        expect_as_reference(whole);
        for (int64_t begin = 0; begin < batch.rows();) {
          const int64_t count = gen.chance(0.5) ? 1 : std::min(batch.rows() - begin, gen.in(1, 7));
          const Attention part = part_of(whole, begin, count, batch.tensors());
          any_ops(gen).attend(part);
          Attention same = whole;
          same.q = part.q, same.out = whole.out.slice(1, begin, count), same.lse = whole.lse.slice(1, begin, count);
          ASSERT_TRUE(same_results(part, same)) << "rows " << begin << " to " << begin + count;
          begin += count;
        }
      },
      30);
}

}  // namespace
}  // namespace weft
