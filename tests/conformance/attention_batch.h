#pragma once

#include <cstring>
#include <numeric>
#include <set>
#include <tuple>

#include "conformance/tensors.h"
#include "layout/even_cut.h"
#include "ops/ops.h"

namespace weft::test {

constexpr int32_t kWildBlock = 1'000'000'000;

/// Sizes of an attention, of any kind that models ask for.
struct Shape {
  DType dtype = DType::f32;
  int blocks = 1, heads = 1, kv_heads = 1, k_dim = 16, v_dim = 16;
  bool latent = false;
  DType kv_dtype = DType::f32;
  KvFormat format = KvFormat::elements;
  KvScales scales = {};

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
    if (gen.chance(0.3)) shape.make_fp8(gen);
    return shape;
  }
  /// Keys and values in fp8: with scales of the layer, or in rows where there is a latent.
  void make_fp8(Gen& gen) {
    kv_dtype = DType::f8_e4m3;
    scales.k = static_cast<float>(gen.pick({0.25, 1.0, 4.0, 0.013}));
    scales.v = latent ? scales.k : static_cast<float>(gen.pick({0.25, 1.0, 4.0, 0.017}));
    if (!latent || gen.chance(0.5)) return;
    format = KvFormat::fp8_ds_mla;
    v_dim = static_cast<int>(gen.pick({128, 256, 512}));
    k_dim = v_dim + static_cast<int>(gen.pick({4, 16, 64}));
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

    const bool mixed = shape_.format == KvFormat::fp8_ds_mla;
    const int64_t hole = mixed ? gen_.pick({0, 4}) : gen_.pick({0, 3});
    KvView kv{.slots = blocks * block_tokens,
              .kv_heads = shape_.kv_heads,
              .k_dim = shape_.k_dim,
              .v_dim = shape_.v_dim,
              .block_tokens = block_tokens,
              .dtype = shape_.kv_dtype,
              .format = shape_.format,
              .scales = shape_.scales};
    const View k = tensors_.make(shape_.kv_dtype, {kv.slots, mixed ? kv.k_row_bytes() : int64_t{kv.kv_heads} * kv.k_dim}, hole);
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
        if (mixed) {
          fill_mixed_row(static_cast<std::byte*>(kv.k) + slot * kv.k_stride);
          continue;
        }
        for (int64_t d = 0; d < k.size(1); ++d) set(k, stored_normal(shape_.scales.k), slot, d);
        if (shape_.latent) continue;
        for (int64_t d = 0; d < v.size(1); ++d) set(v, stored_normal(shape_.scales.v), slot, d);
      }
    }
  }

  /// Rows are of elements, also where the shape has rows with scales in them.
  void make_rows() {
    shape_.format = KvFormat::elements;
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
            for (int64_t d = 0; d < shape_.k_dim; ++d) set(k, stored_normal(shape_.scales.k), key, h, d);
            for (int64_t d = 0; d < shape_.v_dim && !shape_.latent; ++d) set(v, stored_normal(shape_.scales.v), key, h, d);
          }
        }
      }
    }
    args_.rows = {.k = k, .v = v, .scales = shape_.scales};
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
  /// What stands for a number of size one.
  double stored_normal(float scale) { return shape_.kv_dtype == DType::f8_e4m3 ? gen_.normal() / scale : gen_.normal(); }

  void fill_mixed_row(std::byte* row) {
    for (int d = 0; d < shape_.v_dim; ++d) *row++ = std::byte{f8_e4m3(static_cast<float>(60 * gen_.normal())).bits};
    for (int d = 0; d < shape_.v_dim; d += kLatentScaleGroup, row += sizeof(float)) {
      const auto scale = static_cast<float>(gen_.pick({0.003, 0.01, 0.05}));
      std::memcpy(row, &scale, sizeof scale);
    }
    for (int d = shape_.v_dim; d < shape_.k_dim; ++d, row += sizeof(bf16)) {
      const bf16 value(static_cast<float>(gen_.normal()));
      std::memcpy(row, &value, sizeof value);
    }
  }

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
  Array<int32_t> seq_of_, ranges_[2], tables_;
  Attention args_;
};

/// Errors that rounding allows. A score is a sum of k_dim products in float32, so it is off by at most k_dim roundings of the
/// sum of their sizes; a weight is off by that much relatively; a result by twice that times the largest value, and by one
/// rounding for each key in its sums. In bfloat16 the weights may be rounded once, and the result is; so may be the numbers of
/// rows with scales in them.
struct Tolerance {
  double out, lse;
};
inline Tolerance tolerance(const Attention& args, int64_t keys, double terms, double largest, double out, double lse) {
  const bool bf16 = args.q.dtype() == DType::bf16, mixed = args.paged.kv.format == KvFormat::fp8_ds_mla;
  const double score = (kF32 * (static_cast<double>(args.q.size(3)) + 8) + (bf16 && mixed ? kBf16 : 0)) * terms;
  const double sums = kF32 * (static_cast<double>(keys) + 32);
  const double rounding = bf16 ? kBf16 * ((mixed ? 2 : 1) * largest + std::abs(out)) : 0;
  return {largest * (2 * score + sums) + rounding, score + sums + 4 * kF32 * std::abs(lse)};
}

inline void expect_as_reference(const Attention& args) {
  const ReferenceAttention expected = reference_attend(args);
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

inline bool same_results(const Attention& a, const Attention& b) {
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

}  // namespace weft::test
