#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "hwy/highway.h"
#include "layout/block_layout.h"
#include "layout/shard_layout.h"
#include "ops/cpu/attend.h"
#include "ops/cpu/attend_plan.h"
#include "ops/cpu/gather.h"
#include "ops/cpu/merge.h"
#include "ops/cpu/rope.h"
#include "support/prop.h"
#include "support/reference_attention.h"

namespace weft {
namespace {

using test::element;
using test::for_each_case;
using test::Gen;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kWildBlock = 1'000'000'000;
constexpr double kF32 = 0x1p-24, kBf16 = 0x1p-8;  // unit roundoff

void set(const View& view, double value, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
  const int64_t at = i * view.stride(0) + j * view.stride(1) + k * view.stride(2) + l * view.stride(3);
  if (view.dtype() == DType::bf16) {
    view.as<bf16>()[at] = bf16(static_cast<float>(value));
  } else {
    view.as<float>()[at] = static_cast<float>(value);
  }
}

/// Owns the tensors of a test. Each starts as NaN throughout, holes between rows included.
class Tensors {
 public:
  /// The rows of the last dimension are `hole` elements apart.
  View make(DType dtype, std::vector<int64_t> sizes, int64_t hole = 0) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d > 0; --d) {
      strides[d - 1] = strides[d] * sizes[d] + (d == sizes.size() - 1 ? hole : 0);
    }
    Buffer& bytes = take(dtype, sizes[0] * strides[0]);
    switch (sizes.size()) {
      case 1:
        return View(bytes.data(), dtype, {sizes[0]});
      case 2:
        return View(bytes.data(), dtype, {sizes[0], sizes[1]}, {strides[0], strides[1]});
      case 3:
        return View(bytes.data(), dtype, {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1], strides[2]});
      default:
        return View(bytes.data(), dtype, {sizes[0], sizes[1], sizes[2], sizes[3]},
                    {strides[0], strides[1], strides[2], strides[3]});
    }
  }
  View random(Gen& gen, DType dtype, std::vector<int64_t> sizes, int64_t hole = 0) {
    View view = make(dtype, std::move(sizes), hole);
    fill(gen, view);
    return view;
  }
  static void fill(Gen& gen, const View& view) {
    const auto size = [&](int d) { return d < view.dims() ? view.size(d) : 1; };
    for (int64_t i = 0; i < size(0); ++i) {
      for (int64_t j = 0; j < size(1); ++j) {
        for (int64_t k = 0; k < size(2); ++k) {
          for (int64_t l = 0; l < size(3); ++l) set(view, gen.normal(), i, j, k, l);
        }
      }
    }
  }
  /// Rows of [Dv elements | lse], as partials lie in a send buffer: out [P, T, h, Dv] and lse [P, T, h].
  std::pair<View, View> make_partials(DType dtype, int64_t p, int64_t t, int64_t h, int64_t dv) {
    const int64_t size = static_cast<int64_t>(size_of(dtype)), row = dv + 4 / size, floats = row * size / 4;
    Buffer& bytes = take(dtype, p * t * h * row);
    return {View(bytes.data(), dtype, {p, t, h, dv}, {t * h * row, h * row, row, 1}),
            View(bytes.data() + dv * size, DType::f32, {p, t, h}, {t * h * floats, h * floats, floats})};
  }

 private:
  Buffer& take(DType dtype, int64_t count) {
    buffers_.push_back(Buffer::host(static_cast<size_t>(std::max<int64_t>(1, count)) * size_of(dtype)));
    const View all(buffers_.back().data(), dtype, {count});
    for (int64_t i = 0; i < count; ++i) set(all, kNan, i);
    return buffers_.back();
  }
  std::vector<Buffer> buffers_;
};

/// Sizes of an attention, of any kind that models ask for.
struct Shape {
  DType dtype = DType::f32;
  int blocks = 1, heads = 1, kv_heads = 1, k_dim = 16, v_dim = 16;
  bool latent = false;
  DType kv_dtype = DType::f32;

  static Shape random(Gen& gen) {
    Shape shape;
    shape.dtype = gen.pick({DType::f32, DType::bf16});
    shape.kv_dtype = gen.chance(0.1) ? DType::bf16 : shape.dtype;
    shape.latent = gen.chance(0.3);
    shape.kv_heads = shape.latent ? 1 : static_cast<int>(gen.pick({1, 1, 2, 3}));
    const int group = static_cast<int>(gen.pick({1, 2, 3, 4, 7, 16, 24, 70}));
    shape.blocks = static_cast<int>(gen.pick({1, 1, 2, 3}));
    const int all = shape.kv_heads * group;
    while (all % shape.blocks != 0) --shape.blocks;
    shape.heads = all / shape.blocks;
    shape.k_dim = static_cast<int>(gen.pick({16, 20, 24, 48, 64, 128, 3}));
    shape.v_dim = static_cast<int>(gen.pick({16, 20, 24, 32, 128, 5}));
    if (shape.latent) shape.k_dim = shape.v_dim + static_cast<int>(gen.pick({4, 8, 16}));
    if (shape.latent && gen.chance(0.1)) shape.k_dim = 576, shape.v_dim = 512;
    return shape;
  }
  bool even_rows() const { return dtype == DType::f32 || v_dim % 2 == 0; }
};

/// A ragged batch over poisoned memory: whatever no row sees is NaN, and table entries that no row needs are wild.
class Batch {
 public:
  Batch(Gen& gen, const Shape& shape) : gen_(gen), shape_(shape) {}

  struct Sequence {
    int64_t keys = 0;  ///< keys in its shard or region, per segment
    int rows = 0;
    enum class Sees { all, causal, window, apart, nothing } sees = Sees::causal;
  };
  static std::vector<Sequence> random_sequences(Gen& gen) {
    std::vector<Sequence> sequences(static_cast<size_t>(gen.in(0, 4)));
    for (Sequence& sequence : sequences) {
      using Sees = Sequence::Sees;
      sequence.keys = gen.chance(0.15) ? gen.in(0, 1) : gen.chance(0.1) ? gen.in(500, 900) : gen.in(0, 150);
      sequence.rows = static_cast<int>(gen.chance(0.6) ? gen.in(1, 4) : gen.in(1, 40));
      sequence.sees = gen.pick({Sees::all, Sees::causal, Sees::causal, Sees::window, Sees::apart, Sees::nothing});
    }
    return sequences;
  }

  void add(const std::vector<Sequence>& sequences, int segments, int padding_rows) {
    sequences_ = sequences;
    args_.segments = segments;
    rows_ = padding_rows;
    for (const Sequence& sequence : sequences) rows_ += sequence.rows;
    ranges_[0].assign(static_cast<size_t>(segments * rows_), 0);
    ranges_[1] = ranges_[0];
    int64_t row = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (int j = 0; j < sequences[i].rows; ++j, ++row) {
        seq_of_.push_back(static_cast<int32_t>(i));
        for (int s = 0; s < segments; ++s) set_range(s, row, see(sequences[i], j));
      }
    }
    seq_of_.resize(static_cast<size_t>(rows_), -12345);  // Padding rows belong to nobody.
    finish_queries();
  }

  void make_paged() {
    const int block_tokens = static_cast<int>(gen_.pick({1, 4, 16}));
    int64_t blocks = gen_.in(1, 5), columns = 1;
    for (const Sequence& sequence : sequences_) {
      blocks += sequence.keys / block_tokens + 1;
      columns = std::max(columns, sequence.keys / block_tokens + 2);
    }
    std::vector<int32_t> ids(static_cast<size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i)
      std::swap(ids[i - 1], ids[static_cast<size_t>(gen_.in(0, static_cast<int64_t>(i) - 1))]);
    tables_.assign(std::max<size_t>(1, sequences_.size()) * static_cast<size_t>(columns), kWildBlock);

    const int64_t hole = gen_.pick({0, 3});
    KvView kv{.slots = blocks * block_tokens,
              .kv_heads = shape_.kv_heads,
              .k_dim = shape_.k_dim,
              .v_dim = shape_.v_dim,
              .block_tokens = block_tokens,
              .dtype = shape_.kv_dtype};
    const View k = tensors_.make(shape_.kv_dtype, {kv.slots, int64_t{kv.kv_heads} * kv.k_dim}, hole);
    const View v = shape_.latent ? k : tensors_.make(shape_.kv_dtype, {kv.slots, int64_t{kv.kv_heads} * kv.v_dim}, hole);
    kv.k = k.data(), kv.v = v.data(), kv.k_stride = k.stride(0), kv.v_stride = v.stride(0);
    args_.paged = {.kv = kv, .tables = tables_.data(), .table_stride = columns};

    size_t next = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      std::set<int64_t> seen = seen_keys(0, static_cast<int32_t>(i));
      for (int64_t key : seen) {
        int32_t& block = tables_[i * static_cast<size_t>(columns) + static_cast<size_t>(key / block_tokens)];
        if (block == kWildBlock) block = ids[next++];
        const int64_t slot = int64_t{block} * block_tokens + key % block_tokens;
        for (int64_t d = 0; d < k.size(1); ++d) set(k, gen_.normal(), slot, d);
        for (int64_t d = 0; d < v.size(1); ++d) set(v, shape_.latent ? element(k, slot, d) : gen_.normal(), slot, d);
      }
    }
  }

  void make_rows() {
    // A region of rows per segment and sequence, with unseen rows between them.
    int64_t rows = 0;
    std::vector<int64_t> bases;
    for (int s = 0; s < args_.segments; ++s) {
      for (const Sequence& sequence : sequences_) {
        bases.push_back(rows);
        rows += sequence.keys + gen_.in(0, 3);
      }
    }
    for (int s = 0; s < args_.segments; ++s) {
      for (int64_t row = 0; row < rows_; ++row) {
        const int32_t sequence = seq_of_[static_cast<size_t>(row)];
        if (sequence < 0) continue;
        const int64_t base = bases[static_cast<size_t>(s) * sequences_.size() + static_cast<size_t>(sequence)];
        set_range(s, row, {range(s, row).begin + base, range(s, row).end + base});
      }
    }
    const View k = tensors_.make(shape_.kv_dtype, {std::max<int64_t>(1, rows), shape_.kv_heads, shape_.k_dim});
    const View v = shape_.latent
                       ? k.slice(2, 0, shape_.v_dim)
                       : tensors_.make(shape_.kv_dtype, {std::max<int64_t>(1, rows), shape_.kv_heads, shape_.v_dim}, 7);
    for (int s = 0; s < args_.segments; ++s) {
      for (size_t i = 0; i < sequences_.size(); ++i) {
        for (int64_t key : seen_keys(s, static_cast<int32_t>(i))) {
          for (int64_t h = 0; h < shape_.kv_heads; ++h) {
            for (int64_t d = 0; d < shape_.k_dim; ++d) set(k, gen_.normal(), key, h, d);
            for (int64_t d = 0; d < shape_.v_dim && !shape_.latent; ++d) set(v, gen_.normal(), key, h, d);
          }
        }
      }
    }
    args_.rows = {.k = k, .v = v};
  }

  Attention& args() { return args_; }
  Tensors& tensors() { return tensors_; }
  const Shape& shape() const { return shape_; }
  int64_t rows() const { return rows_; }

  /// Other storage for the results, so that two runs can be compared.
  void renew_results() {
    if (shape_.even_rows() && gen_.chance(0.5)) {
      std::tie(args_.out, args_.lse) = tensors_.make_partials(shape_.dtype, shape_.blocks, rows_, shape_.heads, shape_.v_dim);
    } else {
      args_.out = tensors_.make(shape_.dtype, {shape_.blocks, rows_, shape_.heads, shape_.v_dim}, gen_.pick({0, 1, 5}));
      args_.lse = tensors_.make(DType::f32, {shape_.blocks, rows_, shape_.heads});
    }
  }

 private:
  Range see(const Sequence& sequence, int row) {
    const int64_t end = std::clamp<int64_t>(sequence.keys - sequence.rows + 1 + row, 0, sequence.keys);
    switch (sequence.sees) {
      case Sequence::Sees::all:
        return {0, sequence.keys};
      case Sequence::Sees::causal:
        return {0, end};
      case Sequence::Sees::window:
        return {std::max<int64_t>(0, end - 9), end};
      case Sequence::Sees::apart: {
        const int64_t begin = gen_.in(0, sequence.keys);
        return {begin, std::min(sequence.keys, begin + gen_.in(0, 20))};
      }
      case Sequence::Sees::nothing:
        break;
    }
    return {3, 3};
  }
  void set_range(int segment, int64_t row, Range keys) {
    ranges_[0][static_cast<size_t>(segment * rows_ + row)] = static_cast<int32_t>(keys.begin);
    ranges_[1][static_cast<size_t>(segment * rows_ + row)] = static_cast<int32_t>(keys.end);
  }
  Range range(int segment, int64_t row) const {
    return {ranges_[0][static_cast<size_t>(segment * rows_ + row)], ranges_[1][static_cast<size_t>(segment * rows_ + row)]};
  }
  std::set<int64_t> seen_keys(int segment, int32_t sequence) const {
    std::set<int64_t> seen;
    for (int64_t row = 0; row < rows_; ++row) {
      if (seq_of_[static_cast<size_t>(row)] != sequence) continue;
      for (int64_t key = range(segment, row).begin; key < range(segment, row).end; ++key) seen.insert(key);
    }
    return seen;
  }
  void finish_queries() {
    args_.q = tensors_.random(gen_, shape_.dtype, {shape_.blocks, rows_, shape_.heads, shape_.k_dim}, gen_.pick({0, 2}));
    args_.scale = static_cast<float>(1 / std::sqrt(shape_.k_dim) * gen_.pick({0.5, 1.0, 3.0}));
    args_.seq_of = seq_of_.data();
    args_.begin = ranges_[0].data();
    args_.end = ranges_[1].data();
    renew_results();
  }

  Gen& gen_;
  Shape shape_;
  Tensors tensors_;
  std::vector<Sequence> sequences_;
  int64_t rows_ = 0;
  std::vector<int32_t> seq_of_, ranges_[2], tables_;
  Attention args_;
};

/// Errors that rounding allows. A score is a sum of k_dim products in float32, so it is off by at most k_dim roundings of the
/// sum of their sizes; a weight is off by that much relatively; a result by twice that times the largest value, and by one
/// rounding for each key in its sums. In bfloat16 the weights may be rounded once, and the result is.
struct Tolerance {
  double out, lse;
};
Tolerance tolerance(const Attention& args, int64_t keys, double terms, double largest, double out, double lse) {
  const double score = kF32 * (static_cast<double>(args.q.size(3)) + 8) * terms;
  const double sums = kF32 * (static_cast<double>(keys) + 32);
  const double rounding = args.q.dtype() == DType::bf16 ? kBf16 * (largest + std::abs(out)) : 0;
  return {largest * (2 * score + sums) + rounding, score + sums + 4 * kF32 * std::abs(lse)};
}

void expect_as_reference(const Attention& args) {
  const test::ReferenceAttention expected = test::reference_attend(args);
  size_t query = 0;
  for (int64_t p = 0; p < args.q.size(0); ++p) {
    for (int64_t t = 0; t < args.q.size(1); ++t) {
      int64_t keys = 0;
      for (int s = 0; s < args.segments; ++s) {
        keys += args.end[s * args.q.size(1) + t] - args.begin[s * args.q.size(1) + t];
      }
      for (int64_t h = 0; h < args.q.size(2); ++h, ++query) {
        const double lse = expected.lse[query];
        SCOPED_TRACE(testing::Message() << "query " << p << ", " << t << ", " << h << " of " << keys << " keys");
        if (keys == 0) {
          EXPECT_EQ(element(args.lse, p, t, h), -kInf);
        } else {
          const double allowed = tolerance(args, keys, expected.terms[query], expected.largest[query], 0, lse).lse;
          EXPECT_NEAR(element(args.lse, p, t, h), lse, allowed);
        }
        for (int64_t d = 0; d < args.out.size(3); ++d) {
          const double out = expected.out[query * static_cast<size_t>(args.out.size(3)) + static_cast<size_t>(d)];
          const double allowed = tolerance(args, keys, expected.terms[query], expected.largest[query], out, lse).out;
          ASSERT_NEAR(element(args.out, p, t, h, d), out, keys == 0 ? 0 : allowed) << "element " << d;
        }
      }
    }
  }
}

/// Runs attend with its own memory.
void attend_with(int threads, const Attention& args) {
  Pool pool(threads);
  cpu::AttendScratch scratch;
  cpu::attend(pool, scratch, args);
}

bool same_results(const Attention& a, const Attention& b) {
  for (int64_t p = 0; p < a.q.size(0); ++p) {
    for (int64_t t = 0; t < a.q.size(1); ++t) {
      for (int64_t h = 0; h < a.q.size(2); ++h) {
        if (element(a.lse, p, t, h) != element(b.lse, p, t, h)) return false;
        for (int64_t d = 0; d < a.out.size(3); ++d) {
          if (element(a.out, p, t, h, d) != element(b.out, p, t, h, d)) return false;
        }
      }
    }
  }
  return true;
}

/// One query of one head whose score with key j is j, over keys with the values 1, 2, 4, 8.
struct FourKeys {
  std::vector<float> q{1}, k{0, 1, 2, 3}, v{1, 2, 4, 8};
  std::vector<int32_t> seq_of{0};
};

// --- attend -------------------------------------------------------------------------------------------------------------

TEST(Attend, WeighsValuesByTheExponentialOfTheScore) {
  FourKeys four;
  const int32_t begin = 0, end = 4;
  float out = kNan, lse = kNan;
  const Attention args{.q = {four.q.data(), DType::f32, {1, 1, 1, 1}},
                       .paged = {},
                       .rows = {.k = {four.k.data(), DType::f32, {4, 1, 1}}, .v = {four.v.data(), DType::f32, {4, 1, 1}}},
                       .seq_of = four.seq_of.data(),
                       .begin = &begin,
                       .end = &end,
                       .out = {&out, DType::f32, {1, 1, 1, 1}},
                       .lse = {&lse, DType::f32, {1, 1, 1}}};
  attend_with(1, args);
  // (1 + 2 e + 4 e^2 + 8 e^3) / (1 + e + e^2 + e^3) and the natural log of the divisor.
  EXPECT_NEAR(out, 6.3052, 5e-5);
  EXPECT_NEAR(lse, 3.44019, 5e-6);
}

TEST(Attend, TwoShardsMergeToTheWholeInNaturalLogs) {
  // Two ranks, one token in turn: keys 0, 2 and keys 1, 3. In a cache of blocks of two rows, in blocks 1 and 0.
  FourKeys four;
  std::vector<float> outs(2, kNan), lses(2, kNan);
  const int32_t begin = 0, end = 2;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<float> k{kNan, kNan, four.k[static_cast<size_t>(rank)], four.k[static_cast<size_t>(rank + 2)]};
    std::vector<float> v{kNan, kNan, four.v[static_cast<size_t>(rank)], four.v[static_cast<size_t>(rank + 2)]};
    const int32_t table[] = {1, kWildBlock};
    const KvView kv{.k = k.data(),
                    .v = v.data(),
                    .k_stride = 1,
                    .v_stride = 1,
                    .slots = 4,
                    .k_dim = 1,
                    .v_dim = 1,
                    .block_tokens = 2,
                    .dtype = DType::f32};
    attend_with(1, {.q = {four.q.data(), DType::f32, {1, 1, 1, 1}},
                    .paged = {.kv = kv, .tables = table, .table_stride = 2},
                    .rows = {},
                    .seq_of = four.seq_of.data(),
                    .begin = &begin,
                    .end = &end,
                    .out = {&outs[static_cast<size_t>(rank)], DType::f32, {1, 1, 1, 1}},
                    .lse = {&lses[static_cast<size_t>(rank)], DType::f32, {1, 1, 1}}});
  }
  EXPECT_NEAR(outs[0], 3.64239, 5e-6);
  EXPECT_NEAR(lses[0], 2.12693, 5e-6);
  EXPECT_NEAR(outs[1], 7.28478, 5e-6);
  EXPECT_NEAR(lses[1], 3.12693, 5e-6);

  Pool pool(1);
  float out = kNan, lse = kNan;
  std::vector<Partial> partials;
  for (size_t rank = 0; rank < 2; ++rank) {
    partials.push_back({.out = {&outs[rank], DType::f32, {1, 1, 1}}, .lse = {&lses[rank], DType::f32, {1, 1}}});
  }
  cpu::merge(pool, partials, {&out, DType::f32, {1, 1, 1}}, {&lse, DType::f32, {1, 1}});
  EXPECT_NEAR(out, 6.3052, 5e-5);  // With logarithms of base 2 it would be 6.0707.
  EXPECT_NEAR(lse, 3.44019, 5e-6);
}

TEST(Attend, RaggedPagedBatchesAreAsTheReference) {
  for_each_case(
      [](Gen& gen) {
        Batch batch(gen, Shape::random(gen));
        batch.add(Batch::random_sequences(gen), 1, static_cast<int>(gen.in(0, 3)));
        batch.make_paged();
        attend_with(static_cast<int>(gen.in(1, 3)), batch.args());
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
        attend_with(static_cast<int>(gen.in(1, 3)), batch.args());
        expect_as_reference(batch.args());
      },
      100);
}

TEST(Attend, EveryInstructionSetIsAsTheReference) {
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
        cpu::AttendPlan plan;
        plan.build(batch.args());
        EXPECT_FALSE(plan.split_tiles().empty());
        attend_with(2, batch.args());
        expect_as_reference(batch.args());
      },
      10);
}

TEST(Attend, TheNumberOfThreadsChangesNoBit) {
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

TEST(Attend, ScratchMayBeUsedAgainForOtherSizes) {
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

TEST(Attend, LargeScoresNeitherOverflowNorVanish) {
  // Scores of about +-3000, where exp overflows, and a query to which all keys are equally bad.
  for (float sign : {1.0f, -1.0f}) {
    const std::vector<float> q{sign * 100, sign * 100}, k{30, 0, 29.99f, 0, 30, 0}, v{1, 2, 3};
    const int32_t seq_of = 0, begin = 0, end = 3;
    float out = kNan, lse = kNan;
    const Attention args{.q = {q.data(), DType::f32, {1, 1, 1, 2}},
                         .paged = {},
                         .rows = {.k = {k.data(), DType::f32, {3, 1, 2}}, .v = {v.data(), DType::f32, {3, 1, 1}}},
                         .seq_of = &seq_of,
                         .begin = &begin,
                         .end = &end,
                         .out = {&out, DType::f32, {1, 1, 1, 1}},
                         .lse = {&lse, DType::f32, {1, 1, 1}}};
    attend_with(1, args);
    expect_as_reference(args);
  }
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
    std::vector<int32_t> seq_of(static_cast<size_t>(rows), 0), begin = seq_of, end = seq_of;
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
    attend_with(1, whole);
    expect_as_reference(whole);

    const int64_t blocks = layout.blocks_for(length);
    std::vector<BlockId> table;
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
      std::vector<int32_t> local_end;
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
      attend_with(1, part);
      partials.push_back({.out = part.out.at(0), .lse = part.lse.at(0)});
    }
    Pool pool(1);
    Attention merged = whole;
    merged.out = tensors.make(DType::f32, {1, rows, heads, dim});
    merged.lse = tensors.make(DType::f32, {1, rows, heads});
    cpu::merge(pool, partials, merged.out.at(0), merged.lse.at(0));
    expect_as_reference(merged);
  });
}

TEST(Attend, OneKeyAgainstFourThousandMergesExactly) {
  Gen gen(7);
  Tensors tensors;
  const int64_t keys = 4096, dim = 64;
  const View q = tensors.random(gen, DType::f32, {1, 1, 2, dim}), k = tensors.random(gen, DType::f32, {keys, 1, dim}),
             v = tensors.random(gen, DType::f32, {keys, 1, dim});
  const int32_t seq_of = 0, cuts[] = {0, 1, static_cast<int32_t>(keys)};
  Attention whole{.q = q,
                  .paged = {},
                  .rows = {.k = k, .v = v},
                  .seq_of = &seq_of,
                  .begin = &cuts[0],
                  .end = &cuts[2],
                  .scale = 0.125f,
                  .out = tensors.make(DType::f32, {1, 1, 2, dim}),
                  .lse = tensors.make(DType::f32, {1, 1, 2})};
  std::vector<Partial> partials;
  for (int i = 0; i < 2; ++i) {
    Attention part = whole;
    part.begin = &cuts[i], part.end = &cuts[i + 1];
    std::tie(part.out, part.lse) = tensors.make_partials(DType::f32, 1, 1, 2, dim);
    attend_with(1, part);
    expect_as_reference(part);
    partials.push_back({.out = part.out.at(0), .lse = part.lse.at(0)});
  }
  Pool pool(1);
  cpu::merge(pool, partials, whole.out.at(0), whole.lse.at(0));
  expect_as_reference(whole);
}

TEST(Attend, RowsOfAVerifyStepLocaliseAfterExpansion) {
  // Ten tokens on two ranks, three query rows at the end: rank 1 holds 4, 4 and 5 of the keys they see, not 3, 4 and 5.
  const ShardLayout shard{.ranks = 2, .interleave = 1};
  std::vector<int64_t> counts;
  for (int64_t pos : {7, 8, 9}) counts.push_back(shard.visible_keys(pos, ShardLayout::kNoWindow, 1).end);
  EXPECT_EQ(counts, (std::vector<int64_t>{4, 4, 5}));
}

// --- how work is cut ----------------------------------------------------------------------------------------------------

TEST(AttendPlan, TilesCoverEveryQueryOnceAndKeysWithoutGaps) {
  for_each_case([](Gen& gen) {
    Batch batch(gen, Shape::random(gen));
    batch.add(Batch::random_sequences(gen), 1, 2);
    batch.make_paged();
    const Attention& args = batch.args();
    const int64_t group = args.q.size(0) * args.q.size(2) / cpu::kv_heads_of(args);
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

// --- merge --------------------------------------------------------------------------------------------------------------

TEST(Merge, WeighsByTheExponentialOfLse) {
  // Weights 0.62853, 0.23122, 0 and 0.14024; the part without keys holds NaN.
  std::vector<float> outs{1, 10, kNan, 100}, lses{2, 1, -kInf, 0.5f};
  std::vector<Partial> partials;
  for (size_t i = 0; i < 4; ++i) {
    partials.push_back({.out = {&outs[i], DType::f32, {1, 1, 1}}, .lse = {&lses[i], DType::f32, {1, 1}}});
  }
  Pool pool(1);
  float out = kNan, lse = kNan;
  cpu::merge(pool, partials, {&out, DType::f32, {1, 1, 1}}, {&lse, DType::f32, {1, 1}});
  EXPECT_NEAR(out, 0.62853 + 2.3122 + 14.024, 2e-3);
  EXPECT_NEAR(lse, 2.46437, 1e-5);
}

TEST(Merge, PartsOfAnyNumberStrideAndStateAreAsTheReference) {
  for_each_case([](Gen& gen) {
    const DType dtype = gen.pick({DType::f32, DType::bf16});
    const int64_t rows = gen.in(0, 9), heads = gen.in(1, 5), dim = gen.pick({1, 6, 16, 20, 128, 530});
    const int parts = static_cast<int>(gen.chance(0.1) ? gen.in(60, 90) : gen.in(1, 6));
    Tensors tensors;
    std::vector<Partial> partials;
    for (int i = 0; i < parts; ++i) {
      View out = tensors.random(gen, dtype, {rows, heads, dim}, gen.pick({0, 0, 2, 5}));
      View lse = tensors.random(gen, DType::f32, {rows, heads}, gen.pick({0, 1}));
      if (dim % 2 == 0 && gen.chance(0.3)) {
        const auto [sent_out, sent_lse] = tensors.make_partials(dtype, 1, rows, heads, dim);
        if (rows > 0) out = sent_out.at(0), lse = sent_lse.at(0);
      }
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          const float none = gen.pick({-kInf, kInf, kNan});
          const bool empty = gen.chance(0.25);
          set(lse, empty ? none : 5 * gen.normal(), t, h);
          for (int64_t d = 0; d < dim; ++d) set(out, empty ? gen.pick({kNan, kInf, 3.0f}) : gen.normal(), t, h, d);
        }
      }
      partials.push_back({.out = out, .lse = lse});
    }
    const test::ReferenceMerge expected = test::reference_merge(partials);

    View out = tensors.make(dtype, {rows, heads, dim}, gen.pick({0, 3})), lse = tensors.make(DType::f32, {rows, heads});
    if (gen.chance(0.4)) {  // In place of one of the partials.
      const Partial& target = partials[static_cast<size_t>(gen.in(0, parts - 1))];
      out = View(const_cast<void*>(target.out.data()), dtype, {rows, heads, dim},
                 {target.out.stride(0), target.out.stride(1), 1});
      lse = View(const_cast<void*>(target.lse.data()), DType::f32, {rows, heads}, {target.lse.stride(0), target.lse.stride(1)});
    }
    const bool wants_lse = gen.chance(0.8);
    Pool pool(static_cast<int>(gen.in(1, 3)));
    cpu::merge(pool, partials, out, wants_lse ? lse : View());

    const double unit = dtype == DType::bf16 ? kBf16 : 0;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const size_t at = static_cast<size_t>(t * heads + h);
        const double total = expected.lse[at];
        if (wants_lse && std::isinf(total)) {
          EXPECT_EQ(element(lse, t, h), total);
        } else if (wants_lse) {
          EXPECT_NEAR(element(lse, t, h), total, kF32 * (std::abs(total) + 1));
        }
        for (int64_t d = 0; d < dim; ++d) {
          const double value = expected.out[at * static_cast<size_t>(dim) + static_cast<size_t>(d)];
          // Values are a few units large; weights, products and sums are rounded once each.
          ASSERT_NEAR(element(out, t, h, d), value, kF32 * 16 * (3 + parts) + 1.01 * unit * std::abs(value));
        }
      }
    }
  });
}

// --- rotation and append ------------------------------------------------------------------------------------------------

TEST(RopeTable, IsTheFactorTimesCosineAndSineOfTheAngle) {
  const int32_t positions[] = {0, 1, 1'000'000};
  const double inv_freq[] = {1.0, 0.01};
  float cos[6], sin[6];
  cpu::rope_table(positions, inv_freq, 2.0, {cos, DType::f32, {3, 2}}, {sin, DType::f32, {3, 2}});
  EXPECT_EQ(cos[0], 2.0f);
  EXPECT_EQ(sin[0], 0.0f);
  EXPECT_NEAR(cos[2], 2 * 0.5403023, 1e-6);
  EXPECT_NEAR(sin[3], 2 * 0.0099998333, 1e-8);
  EXPECT_NEAR(sin[4], 2 * -0.3499935, 1e-6);  // sin(1e6): wrong from the second digit if the angle is a float
}

TEST(RopeAppend, TurnsBothPairingsByHand) {
  // Position 1, frequency pi / 2: (x, y) becomes (-y, x).
  Pool pool(1);
  for (bool interleaved : {false, true}) {
    float cos[2] = {0, 0}, sin[2] = {1, 1};
    std::vector<float> q{1, 2, 3, 4, 5}, k{10, 20, 30, 40, 50}, v{7}, plane_k(10, -1), plane_v(2, -1);
    const int32_t slot = 1;
    const View q_view(q.data(), DType::f32, {1, 1, 5}), k_view(k.data(), DType::f32, {1, 1, 5});
    cpu::rope_append(pool, {.cos = {cos, DType::f32, {1, 2}},
                            .sin = {sin, DType::f32, {1, 2}},
                            .rotary = 4,
                            .interleaved = interleaved,
                            .q = q_view,
                            .q_out = q_view,
                            .k = k_view,
                            .v = {v.data(), DType::f32, {1, 1, 1}},
                            .latent = {},
                            .k_out = k_view,
                            .slots = &slot,
                            .kv = {.k = plane_k.data(),
                                   .v = plane_v.data(),
                                   .k_stride = 5,
                                   .v_stride = 1,
                                   .slots = 2,
                                   .k_dim = 5,
                                   .v_dim = 1,
                                   .dtype = DType::f32}});
    EXPECT_EQ(q, interleaved ? (std::vector<float>{-2, 1, -4, 3, 5}) : (std::vector<float>{-3, -4, 1, 2, 5}));
    EXPECT_EQ(k, interleaved ? (std::vector<float>{-20, 10, -40, 30, 50}) : (std::vector<float>{-30, -40, 10, 20, 50}));
    EXPECT_EQ((std::vector<float>(plane_k.begin() + 5, plane_k.end())), k);
    EXPECT_EQ((std::vector<float>(plane_k.begin(), plane_k.begin() + 5)), std::vector<float>(5, -1));
    EXPECT_EQ(plane_v, (std::vector<float>{-1, 7}));
  }
}

TEST(RopeAppend, EveryQueryIsProducedAndOnlyOwnedRowsAreWritten) {
  for_each_case([](Gen& gen) {
    const DType dtype = gen.pick({DType::f32, DType::bf16});
    const bool latent = gen.chance(0.4), interleaved = gen.chance(0.5), in_place = gen.chance(0.5);
    const int64_t rows = gen.in(0, 40), heads = gen.in(1, 4), kv_heads = latent ? 1 : gen.in(1, 3);
    const int pairs = static_cast<int>(gen.pick({1, 4, 16}));
    const int64_t dim = 2 * pairs + gen.pick({0, 8, 3}), k_dim = latent ? 2 * pairs : dim, v_dim = gen.pick({4, 16, 10});
    Tensors tensors;
    const View q = tensors.random(gen, dtype, {rows, heads, dim}, gen.pick({0, 3}));
    const View k = tensors.random(gen, dtype, {rows, kv_heads, k_dim}, gen.pick({0, 2}));
    const View v = tensors.random(gen, dtype, {rows, kv_heads, v_dim}, gen.pick({0, 1}));
    const View q_out = in_place ? q : tensors.make(dtype, {rows, heads, dim}, 1);
    const View k_out = in_place ? k : tensors.make(dtype, {rows, kv_heads, k_dim});

    std::vector<double> inv_freq;
    for (int i = 0; i < pairs; ++i) inv_freq.push_back(std::pow(10.0, -i));
    std::vector<int32_t> positions, slots;
    const int64_t total_slots = 2 * rows + 3;
    for (int64_t t = 0; t < rows; ++t) {
      positions.push_back(static_cast<int32_t>(gen.in(0, 100'000)));
      slots.push_back(gen.chance(0.5) ? -1 : static_cast<int32_t>(2 * t + gen.in(0, 1)));
    }
    const double factor = gen.pick({1.0, 1.3});
    const View cos = tensors.make(DType::f32, {rows, pairs}), sin = tensors.make(DType::f32, {rows, pairs});
    cpu::rope_table(positions.data(), inv_freq, factor, cos, sin);

    // What each head must become, taken before anything is turned in place.
    const auto turned = [&](const View& view) {
      std::vector<double> all;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t h = 0; h < view.size(1); ++h) {
          std::vector<double> head;
          for (int64_t d = 0; d < view.size(2); ++d) head.push_back(element(view, t, h, d));
          const auto out = test::reference_rotate(head, positions[static_cast<size_t>(t)], inv_freq, factor, interleaved);
          all.insert(all.end(), out.begin(), out.end());
        }
      }
      return all;
    };
    const std::vector<double> expected_q = turned(q), expected_k = turned(k);

    const int64_t cache_k = latent ? v_dim + k_dim : k_dim;
    const View plane_k = tensors.make(dtype, {total_slots, kv_heads * cache_k}, 2);
    const View plane_v = latent ? plane_k : tensors.make(dtype, {total_slots, kv_heads * v_dim});
    const auto bytes = [](const View& plane) {
      const auto* begin = static_cast<const unsigned char*>(plane.data());
      return std::vector<unsigned char>(begin,
                                        begin + static_cast<size_t>(plane.size(0) * plane.stride(0)) * size_of(plane.dtype()));
    };
    std::vector<unsigned char> canary_k = bytes(plane_k), canary_v = bytes(plane_v);
    const KvView kv{.k = plane_k.data(),
                    .v = plane_v.data(),
                    .k_stride = plane_k.stride(0),
                    .v_stride = plane_v.stride(0),
                    .slots = total_slots,
                    .kv_heads = static_cast<int>(kv_heads),
                    .k_dim = static_cast<int>(cache_k),
                    .v_dim = static_cast<int>(v_dim),
                    .dtype = dtype};
    Pool pool(static_cast<int>(gen.in(1, 3)));
    cpu::rope_append(pool, {.cos = cos,
                            .sin = sin,
                            .rotary = 2 * pairs,
                            .interleaved = interleaved,
                            .q = q,
                            .q_out = q_out,
                            .k = k,
                            .v = latent ? View() : v,
                            .latent = latent ? v : View(),
                            .k_out = k_out,
                            .slots = slots.data(),
                            .kv = kv});

    const double unit = dtype == DType::bf16 ? kBf16 : 8 * kF32;
    const auto expect_turned = [&](const View& out, const std::vector<double>& expected) {
      size_t at = 0;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t h = 0; h < out.size(1); ++h) {
          for (int64_t d = 0; d < out.size(2); ++d, ++at) {
            ASSERT_NEAR(element(out, t, h, d), expected[at], 1.01 * unit * std::abs(expected[at]) + 32 * kF32)
                << t << ", " << h;
          }
        }
      }
    };
    expect_turned(q_out, expected_q);
    expect_turned(k_out, expected_k);

    // The owned rows hold exactly k_out and v; after putting the old bytes back, nothing else has changed.
    const auto restore = [](const View& plane, int64_t slot, const std::vector<unsigned char>& old) {
      const size_t row = static_cast<size_t>(plane.stride(0)) * size_of(plane.dtype());
      const size_t used = static_cast<size_t>(plane.size(1)) * size_of(plane.dtype()), at = static_cast<size_t>(slot) * row;
      std::memcpy(static_cast<unsigned char*>(plane.data()) + at, old.data() + at, used);
    };
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      for (int64_t h = 0; h < kv_heads; ++h) {
        for (int64_t d = 0; d < k_dim; ++d) {
          EXPECT_EQ(element(plane_k, slot, h * cache_k + (latent ? v_dim : 0) + d), element(k_out, t, h, d));
        }
        for (int64_t d = 0; d < v_dim; ++d) EXPECT_EQ(element(plane_v, slot, h * v_dim + d), element(v, t, h, d));
      }
      restore(plane_k, slot, canary_k);
      if (!latent) restore(plane_v, slot, canary_v);
    }
    EXPECT_EQ(bytes(plane_k), canary_k);
    EXPECT_EQ(bytes(plane_v), canary_v);
  });
}

// --- gather -------------------------------------------------------------------------------------------------------------

TEST(GatherRows, CopiesSlotsAndGivesZerosForPadding) {
  for_each_case(
      [](Gen& gen) {
        const DType dtype = gen.pick({DType::f32, DType::bf16}), out_dtype = gen.pick({DType::f32, DType::bf16});
        const bool latent = gen.chance(0.4);
        const int64_t slots = gen.in(1, 50), kv_heads = latent ? 1 : gen.in(1, 3), k_dim = gen.pick({8, 20}),
                      rows = gen.in(0, 90);
        const int64_t v_dim = latent ? k_dim - 4 : gen.pick({4, 16});
        Tensors tensors;
        const View k = tensors.random(gen, dtype, {slots, kv_heads, k_dim});
        const View v = latent ? k : tensors.random(gen, dtype, {slots, kv_heads, v_dim});
        const KvView kv{.k = k.data(),
                        .v = v.data(),
                        .k_stride = k.stride(0),
                        .v_stride = v.stride(0),
                        .slots = slots,
                        .kv_heads = static_cast<int>(kv_heads),
                        .k_dim = static_cast<int>(k_dim),
                        .v_dim = static_cast<int>(v_dim),
                        .dtype = dtype};
        std::vector<int32_t> wanted;
        for (int64_t i = 0; i < rows; ++i) wanted.push_back(static_cast<int32_t>(gen.in(-1, slots - 1)));
        const View k_out = tensors.make(out_dtype, {rows, kv_heads, k_dim}, gen.pick({0, 4}));
        const View v_out = latent ? View() : tensors.make(out_dtype, {rows, kv_heads, v_dim});
        Pool pool(2);
        cpu::gather_rows(pool, kv, wanted.data(), k_out, v_out);
        const double unit = out_dtype == DType::bf16 ? kBf16 : 0;
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t slot = wanted[static_cast<size_t>(i)];
          for (int64_t h = 0; h < kv_heads; ++h) {
            for (int64_t d = 0; d < k_dim; ++d) {
              const double value = slot < 0 ? 0 : element(k, slot, h, d);
              ASSERT_NEAR(element(k_out, i, h, d), value, unit * std::abs(value));
            }
            for (int64_t d = 0; d < v_dim && !latent; ++d) {
              const double value = slot < 0 ? 0 : element(v, slot, h, d);
              ASSERT_NEAR(element(v_out, i, h, d), value, unit * std::abs(value));
            }
          }
        }
      },
      50);
}

}  // namespace
}  // namespace weft
