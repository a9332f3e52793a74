#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "conformance/backend.h"
#include "support/prop.h"
#include "support/reference_ops.h"

namespace weft {
namespace {

using test::any_invariant_ops;
using test::any_ops;
using test::Array;
using test::differences;
using test::Expected;
using test::for_each_case;
using test::Gen;
using test::ops;
using test::Strided;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

DType any_dtype(Gen& gen) { return gen.pick({DType::f32, DType::bf16}); }

/// Sizes around where panels, vectors and row blocks end, and 0.
int64_t any_rows(Gen& gen) { return gen.chance(0.15) ? gen.in(90, 200) : gen.in(0, 20); }
int64_t any_width(Gen& gen) { return gen.chance(0.3) ? gen.pick<int64_t>({0, 1, 63, 64, 65, 128}) : gen.in(0, 150); }

Array<float> floats(Gen& gen, int64_t n) {
  Array<float> result(static_cast<size_t>(n));
  for (float& v : result) v = static_cast<float>(gen.normal());
  return result;
}

std::vector<double> doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Elements as their type rounds them.
std::vector<double> rounded(std::span<const double> values, DType dtype) {
  std::vector<double> result;
  for (double v : values) {
    const auto f = static_cast<float>(v);
    result.push_back(dtype == DType::bf16 ? static_cast<float>(bf16(f)) : f);
  }
  return result;
}

std::vector<double> columns_of(std::span<const double> x, int64_t heads, int64_t head, int64_t width) {
  std::vector<double> result;
  for (size_t row = 0; row * static_cast<size_t>(heads * width) < x.size(); ++row) {
    const auto begin = x.begin() + static_cast<int64_t>(row) * heads * width + head * width;
    result.insert(result.end(), begin, begin + width);
  }
  return result;
}

// --- memory -----------------------------------------------------------------------------------------------------------

TEST(Ops, MemoryIsZeroedAndAligned) {
  for (size_t bytes : {size_t{1}, size_t{1000}, size_t{5} << 20}) {
    const Buffer buffer = ops().allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    std::vector<std::byte> content(bytes, std::byte{1});
    ops().download(ConstView(buffer.data(), DType::u8, {static_cast<int64_t>(bytes)}), content.data());
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(content[i], std::byte{0}) << i;
  }
}

TEST(Ops, UploadThenDownloadGivesTheSameAndStridedViewsArrivePacked) {
  const std::vector<int32_t> host = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> all(6), back(4);
  const Buffer device = ops().allocate(6 * sizeof(int32_t));
  const View view(device.data(), DType::i32, {2, 3});
  ops().upload(host.data(), view);
  ops().download(view, all.data());
  EXPECT_EQ(all, host);
  ops().download(view.slice(1, 1, 2), back.data());
  EXPECT_EQ(back, (std::vector<int32_t>{2, 3, 5, 6}));
}

TEST(Ops, UploadsOfAnySizeArriveAndLeaveTheHostFree) {
  // Some of them larger than what a backend may keep in flight, and each overwritten as soon as the call returns.
  constexpr int64_t kBytes = int64_t{11} << 20;
  const Buffer device = ops().allocate(kBytes);
  std::vector<uint8_t> host(kBytes), expected(kBytes), back(kBytes);
  Gen gen(5);
  for (uint8_t& byte : host) byte = static_cast<uint8_t>(gen.bits());
  for (int64_t at = 0; at < kBytes;) {
    const int64_t n = std::min(kBytes - at, gen.chance(0.9) ? gen.in(1, 200'000) : gen.in(1, 5'000'000));
    std::copy_n(host.begin() + at, n, expected.begin() + at);
    ops().upload(host.data() + at, View(device.data() + at, DType::u8, {n}));
    std::fill_n(host.begin() + at, n, uint8_t{0});
    at += n;
  }
  ops().download(ConstView(device.data(), DType::u8, {kBytes}), back.data());
  EXPECT_TRUE(back == expected);
}

TEST(Ops, CopyTakesStridesAndConverts) {
  for_each_case([](Gen& gen) {
    const DType from = any_dtype(gen), to = any_dtype(gen);
    const std::vector<int64_t> sizes = {gen.in(0, 9), gen.in(0, 4), gen.chance(0.1) ? gen.in(0, 9000) : gen.in(0, 70)};
    Strided in(gen, from, sizes), out(gen, to, sizes);
    any_ops(gen).copy(ConstView(in.view()), out.view());
    EXPECT_EQ(out.values(), rounded(in.values(), to));
    EXPECT_TRUE(out.gaps_are_untouched());
  });
}

TEST(Ops, CopyTransposes) {
  const Array<float> in = {1, 2, 3, 4, 5, 6};
  Array<float> out(6);
  ops().copy(ConstView(in.data(), DType::f32, {3, 2}, {1, 3}), View(out.data(), DType::f32, {3, 2}));
  EXPECT_EQ(out, (Array<float>{1, 4, 2, 5, 3, 6}));
}

TEST(Ops, CopyRunsMoveBytes) {
  const Array<char> source = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
  Array<char> target(8, '.');
  auto* to = reinterpret_cast<std::byte*>(target.data());
  const auto* from = reinterpret_cast<const std::byte*>(source.data());
  const std::vector<CopyRun> runs = {{to + 5, from, 3}, {to, from + 6, 2}, {to, from, 0}};
  ops().copy(runs);
  EXPECT_EQ(std::string(target.begin(), target.end()), "gh...abc");
}

// --- products ---------------------------------------------------------------------------------------------------------

TEST(Linear, ByHand) {
  const Array<float> w = {1, 2, 3, 4, 5, 6}, x = {1, 0, -1, 2, 1, 0}, bias = {10, 20};
  Array<float> out(4);
  const auto matrix = ops().pack(ConstView(w.data(), DType::f32, {2, 3}), DType::f32);
  ops().linear(*matrix, ConstView(x.data(), DType::f32, {2, 3}), bias.data(), View(out.data(), DType::f32, {2, 2}));
  EXPECT_EQ(out, (Array<float>{8, 18, 14, 33}));
}

TEST(Linear, IsTheProductForAnyShapeTypeAndNumberOfThreads) {
  for_each_case(
      [](Gen& gen) {
        Ops& backend = any_ops(gen);
        const int64_t rows = any_rows(gen), in = any_width(gen), out = any_width(gen);
        const DType dtype = any_dtype(gen), result = gen.chance(0.3) ? DType::f32 : dtype;
        Strided w(gen, any_dtype(gen), {out, in}), x(gen, dtype, {rows, in}), y(gen, result, {rows, out});
        const Array<float> bias = gen.chance(0.5) ? floats(gen, out) : Array<float>();
        const auto matrix = backend.pack(w.view(), dtype);
        EXPECT_EQ(matrix->bytes(), backend.packed_bytes(out, in, dtype));
        backend.linear(*matrix, x.view(), bias.empty() ? nullptr : bias.data(), y.view());
        const Expected expected =
            test::reference_linear(x.values(), rounded(w.values(), dtype), doubles(bias), rows, in, out, result);
        EXPECT_EQ(differences(y.values(), expected), "");
        EXPECT_TRUE(y.gaps_are_untouched());
      },
      300);
}

TEST(Linear, OfADeepMatrix) {
  for_each_case(
      [](Gen& gen) {
        Ops& backend = any_ops(gen);
        const int64_t rows = gen.pick<int64_t>({1, 5, 8, 97}), in = gen.in(1000, 4100), out = gen.in(1, 140);
        const DType dtype = any_dtype(gen);
        Strided w(gen, dtype, {out, in}), x(gen, dtype, {rows, in}), y(gen, DType::f32, {rows, out});
        backend.linear(*backend.pack(w.view(), dtype), x.view(), nullptr, y.view());
        EXPECT_EQ(differences(y.values(), test::reference_linear(x.values(), w.values(), {}, rows, in, out, DType::f32)), "");
      },
      20);
}

TEST(Linear, OfARowDependsNeitherOnOtherRowsNorOnThreads) {
  for_each_case(
      [](Gen& gen) {
        const int64_t rows = gen.in(1, 110), in = gen.in(1, 300), out = gen.in(1, 200);
        const DType dtype = any_dtype(gen);
        Strided w(gen, dtype, {out, in}), x(gen, dtype, {rows, in});
        Array<float> together(static_cast<size_t>(rows * out)), alone(together);
        Ops &one = any_invariant_ops(gen), &other = any_invariant_ops(gen);
        one.linear(*one.pack(w.view(), dtype), x.view(), nullptr, View(together.data(), DType::f32, {rows, out}));
        const View each(alone.data(), DType::f32, {rows, out});
        const auto matrix = other.pack(w.view(), dtype);
        for (int64_t row = 0; row < rows; ++row) other.linear(*matrix, x.view().rows(row, 1), nullptr, each.rows(row, 1));
        EXPECT_EQ(together, alone);
      },
      40);
}

TEST(Linear, KeepsNaNAndInfinityToTheirRows) {
  for_each_case([](Gen& gen) {
    const int64_t rows = gen.in(1, 14), in = gen.in(1, 70), out = gen.in(1, 70);
    const DType dtype = any_dtype(gen);
    Strided w(gen, dtype, {out, in}), x(gen, dtype, {rows, in}), y(gen, dtype, {rows, out});
    x.set(gen.in(0, rows - 1), gen.in(0, in - 1), gen.pick({kNaN, kInf, -kInf}));
    Ops& backend = any_ops(gen);
    backend.linear(*backend.pack(w.view(), dtype), x.view(), nullptr, y.view());
    EXPECT_EQ(differences(y.values(), test::reference_linear(x.values(), w.values(), {}, rows, in, out, dtype)), "");
  });
}

TEST(HeadLinear, IsOneProductForEachHead) {
  for_each_case([](Gen& gen) {
    Ops& backend = any_ops(gen);
    const int64_t rows = any_rows(gen), heads = gen.in(1, 5), in = any_width(gen), out = any_width(gen);
    const DType dtype = any_dtype(gen);
    Strided x(gen, dtype, {rows, heads, in}), y(gen, dtype, {rows, heads, out});
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::vector<std::vector<double>> w;
    for (int64_t h = 0; h < heads; ++h) {
      Strided matrix(gen, dtype, {out, in});
      w.push_back(matrix.values());
      matrices.push_back(backend.pack(matrix.view(), dtype));
    }
    backend.head_linear(matrices, x.view(), y.view());
    for (int64_t h = 0; h < heads; ++h) {
      EXPECT_EQ(differences(columns_of(y.values(), heads, h, out),
                            test::reference_linear(columns_of(x.values(), heads, h, in), w[static_cast<size_t>(h)], {}, rows,
                                                   in, out, dtype)),
                "");
    }
    EXPECT_TRUE(y.gaps_are_untouched());
  });
}

/// Rows grouped by expert, in memory of its own.
struct Grouping {
  Array<int32_t> source, place, offsets;
  ExpertRows rows() { return {source.data(), place.data(), offsets.data()}; }
  Grouping(int64_t rows, int64_t experts)
      : source(static_cast<size_t>(rows)), place(static_cast<size_t>(rows)), offsets(static_cast<size_t>(experts) + 1) {}
};

/// Ascending ids, as a router gives them.
Array<int32_t> any_choices(Gen& gen, int64_t rows, int experts, int top_k) {
  Array<int32_t> result;
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[static_cast<size_t>(gen.in(0, static_cast<int64_t>(i)))]);
    std::sort(all.begin(), all.begin() + top_k);
    result.insert(result.end(), all.begin(), all.begin() + top_k);
  }
  return result;
}

TEST(GroupByExpert, ByHand) {
  const Array<int32_t> experts = {0, 2, 2, 3, 0, 3};
  Grouping grouping(6, 4);
  ops().group_by_expert(ConstView(experts.data(), DType::i32, {3, 2}), 4, grouping.rows());
  EXPECT_EQ(grouping.offsets, (Array<int32_t>{0, 2, 2, 4, 6}));
  EXPECT_EQ(grouping.source, (Array<int32_t>{0, 2, 0, 1, 1, 2}));
  EXPECT_EQ(grouping.place, (Array<int32_t>{0, 2, 3, 4, 1, 5}));
}

TEST(ExpertLinear, GivesEachRowTheMatrixOfItsExpert) {
  for_each_case([](Gen& gen) {
    Ops& backend = any_ops(gen);
    const int experts = static_cast<int>(gen.in(1, 8)), top_k = static_cast<int>(gen.in(1, experts));
    const int64_t rows = any_rows(gen), in = any_width(gen), out = any_width(gen);
    const DType dtype = any_dtype(gen);
    const bool gather = gen.chance(0.5);
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::vector<std::vector<double>> w;
    for (int e = 0; e < experts; ++e) {
      Strided matrix(gen, dtype, {out, in});
      w.push_back(matrix.values());
      matrices.push_back(backend.pack(matrix.view(), dtype));
    }
    const Array<int32_t> choices = any_choices(gen, rows, experts, top_k);
    Grouping grouping(rows * top_k, experts);
    backend.group_by_expert(ConstView(choices.data(), DType::i32, {rows, top_k}), experts, grouping.rows());
    Strided x(gen, dtype, {gather ? rows : rows * top_k, in}), y(gen, dtype, {rows * top_k, out});
    backend.expert_linear(matrices, x.view(), grouping.rows(), gather, y.view());

    const std::vector<double> all = x.values();
    Expected expected;
    for (size_t t = 0; t < choices.size() / static_cast<size_t>(top_k); ++t) {
      for (size_t j = 0; j < static_cast<size_t>(top_k); ++j) {
        const auto place = static_cast<size_t>(grouping.place[t * static_cast<size_t>(top_k) + j]);
        const size_t row = gather ? t : place;
        const Expected one =
            test::reference_linear(std::span(all).subspan(row * static_cast<size_t>(in), static_cast<size_t>(in)),
                                   w[static_cast<size_t>(choices[t * static_cast<size_t>(top_k) + j])], {}, 1, in, out, dtype);
        expected.values.resize(choices.size() * static_cast<size_t>(out));
        expected.bounds.resize(expected.values.size());
        std::copy(one.values.begin(), one.values.end(), expected.values.begin() + static_cast<int64_t>(place) * out);
        std::copy(one.bounds.begin(), one.bounds.end(), expected.bounds.begin() + static_cast<int64_t>(place) * out);
      }
    }
    EXPECT_EQ(differences(y.values(), expected), "");
    EXPECT_TRUE(y.gaps_are_untouched());
  });
}

TEST(CombineExperts, IsTheWeightedSumOfTheRowsPlaces) {
  for_each_case([](Gen& gen) {
    const int64_t rows = gen.in(0, 20), top_k = gen.in(1, 6), width = gen.in(0, 100);
    const DType dtype = any_dtype(gen);
    Strided y(gen, dtype, {rows * top_k, width}), weights(gen, DType::f32, {rows, top_k}), out(gen, dtype, {rows, width});
    Strided shared(gen, dtype, {rows, width});
    const bool with_shared = gen.chance(0.5);
    Grouping grouping(rows * top_k, 1);
    std::iota(grouping.place.begin(), grouping.place.end(), 0);
    for (size_t i = grouping.place.size(); i > 1; --i) {
      std::swap(grouping.place[i - 1], grouping.place[static_cast<size_t>(gen.in(0, static_cast<int64_t>(i) - 1))]);
    }
    any_ops(gen).combine_experts(y.view(), grouping.rows(), weights.view(),
                                 with_shared ? ConstView(shared.view()) : ConstView(), out.view());
    const std::vector<double> terms = y.values(), factors = weights.values(), rest = shared.values();
    Expected expected;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        double sum = with_shared ? rest[static_cast<size_t>(t * width + i)] : 0, size = std::abs(sum);
        for (int64_t j = 0; j < top_k; ++j) {
          const auto choice = static_cast<size_t>(t * top_k + j);
          const double term = factors[choice] * terms[static_cast<size_t>(grouping.place[choice] * width + i)];
          sum += term;
          size += std::abs(term);
        }
        expected.values.push_back(sum);
        expected.bounds.push_back(8 * size * test::rounding(DType::f32) + std::abs(sum) * test::rounding(dtype));
      }
    }
    EXPECT_EQ(differences(out.values(), expected), "");
    EXPECT_TRUE(out.gaps_are_untouched());
  });
}

// --- elementwise ------------------------------------------------------------------------------------------------------

TEST(Embed, TakesRowsOfTheTableAndZerosOutsideIt) {
  const Array<float> table = {1, 2, 3, 4, 5, 6};
  const Array<int32_t> ids = {11, 9, 10, 13, 12};
  Array<float> out(10, -1);
  ops().embed(ids.data(), ConstView(table.data(), DType::f32, {3, 2}), 10, View(out.data(), DType::f32, {5, 2}));
  EXPECT_EQ(out, (Array<float>{3, 4, 0, 0, 1, 2, 0, 0, 5, 6}));
}

TEST(RmsNorm, ByHand) {
  const Array<float> weight = {1, 2};
  Array<float> x = {3, 4};
  const View view(x.data(), DType::f32, {1, 2});
  ops().rms_norm(view, weight.data(), 0.0f, view);  // rms = sqrt(12.5)
  EXPECT_FLOAT_EQ(x[0], 0.84852814f);
  EXPECT_FLOAT_EQ(x[1], 2.2627417f);
}

TEST(RmsNorm, OfRowsAndOfHeads) {
  for_each_case([](Gen& gen) {
    const DType dtype = any_dtype(gen);
    std::vector<int64_t> sizes = {gen.in(0, 40), gen.in(0, 4), gen.in(1, 300)};
    if (gen.chance(0.5)) sizes = {sizes[0], sizes[2]};
    const Array<float> weight = floats(gen, sizes.back());
    Strided x(gen, dtype, sizes, 3), out(gen, dtype, sizes);
    const Expected expected = test::reference_rms_norm(x.values(), doubles(weight), 1e-6, dtype);
    Strided& target = gen.chance(0.5) ? x : out;
    any_ops(gen).rms_norm(x.view(), weight.data(), 1e-6f, target.view());
    EXPECT_EQ(differences(target.values(), expected), "");
    EXPECT_TRUE(target.gaps_are_untouched());
  });
}

TEST(AddRmsNorm, NormsTheResidualItHasStored) {
  for_each_case([](Gen& gen) {
    const DType dtype = any_dtype(gen);
    const int64_t rows = gen.in(0, 40), width = gen.in(1, 300);
    const Array<float> weight = floats(gen, width);
    Strided delta(gen, dtype, {rows, width}), residual(gen, dtype, {rows, width}), out(gen, dtype, {rows, width});
    std::vector<double> sum = residual.values();
    const std::vector<double> added = delta.values();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    Strided& target = gen.chance(0.5) ? delta : out;
    any_ops(gen).add_rms_norm(delta.view(), residual.view(), weight.data(), 1e-5f, target.view());
    EXPECT_EQ(residual.values(), rounded(sum, dtype));
    EXPECT_EQ(differences(target.values(), test::reference_rms_norm(residual.values(), doubles(weight), 1e-5, dtype)), "");
    EXPECT_TRUE(target.gaps_are_untouched() && residual.gaps_are_untouched());
  });
}

TEST(Add, RoundsOnce) {
  for_each_case([](Gen& gen) {
    const DType dtype = any_dtype(gen);
    const int64_t rows = gen.in(0, 40), width = gen.in(0, 300);
    Strided x(gen, dtype, {rows, width}), y(gen, dtype, {rows, width});
    std::vector<double> sum = x.values();
    const std::vector<double> added = y.values();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    any_ops(gen).add(y.view(), x.view());
    EXPECT_EQ(x.values(), rounded(sum, dtype));
    EXPECT_TRUE(x.gaps_are_untouched());
  });
}

TEST(SiluMul, IsGateOverOnePlusExpTimesUp) {
  for_each_case([](Gen& gen) {
    const DType dtype = any_dtype(gen);
    const int64_t rows = gen.in(0, 20), width = gen.in(0, 200);
    Strided gate_up(gen, dtype, {rows, 2 * width}, gen.pick({0.1, 2.0, 20.0})), out(gen, dtype, {rows, width});
    any_ops(gen).silu_mul(gate_up.view(), out.view());
    EXPECT_EQ(differences(out.values(), test::reference_silu_mul(gate_up.values(), rows, width, dtype)), "");
    EXPECT_TRUE(out.gaps_are_untouched());
  });
}

TEST(SiluMul, OfTheExtremes) {
  const Array<float> gate_up = {kInf, kNaN, 200, -200, 0, 1, 1, 1, 1, kInf};
  Array<float> out(5);
  ops().silu_mul(ConstView(gate_up.data(), DType::f32, {1, 10}), View(out.data(), DType::f32, {1, 5}));
  EXPECT_EQ(out[0], kInf);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 200);
  EXPECT_LE(std::abs(out[3]), 1e-30f);
  EXPECT_TRUE(std::isnan(out[4]));
}

// --- routing ----------------------------------------------------------------------------------------------------------

struct Routed {
  Array<int32_t> experts;
  Array<float> weights;
};

Routed route(Ops& backend, const Array<float>& logits, int64_t rows, int64_t experts, const Routing& routing) {
  Routed result{.experts = Array<int32_t>(static_cast<size_t>(rows * routing.top_k)),
                .weights = Array<float>(static_cast<size_t>(rows * routing.top_k))};
  backend.route(ConstView(logits.data(), DType::f32, {rows, experts}), routing,
                View(result.experts.data(), DType::i32, {rows, routing.top_k}),
                View(result.weights.data(), DType::f32, {rows, routing.top_k}));
  return result;
}

TEST(Route, TiesGoToTheLowerIdAndExpertsAscend) {
  const Routed routed = route(ops(), Array<float>{1, 3, 2, 2, 3}, 1, 5, {.top_k = 3, .normalize = true});
  EXPECT_EQ(routed.experts, (Array<int32_t>{1, 2, 4}));
  EXPECT_FLOAT_EQ(routed.weights[0], routed.weights[2]);
  EXPECT_FLOAT_EQ(routed.weights[0] + routed.weights[1] + routed.weights[2], 1);
}

TEST(Route, NaNIsNeverChosenBeforeANumber) {
  for (Routing::Scores scores : {Routing::Scores::softmax, Routing::Scores::sigmoid}) {
    const Routed routed = route(ops(), Array<float>{kNaN, -kInf, kNaN, -5, kNaN}, 1, 5, {.scores = scores, .top_k = 3});
    EXPECT_EQ(routed.experts, (Array<int32_t>{0, 1, 3}));
    EXPECT_TRUE(std::isnan(routed.weights[0]));
    EXPECT_EQ(routed.weights[1], 0);
    EXPECT_GT(routed.weights[2], 0);
  }
}

TEST(Route, ABiasChoosesButDoesNotWeigh) {
  const Array<float> bias = {0, 0, 5};
  const Routed routed = route(ops(), Array<float>{0, 1, -1}, 1, 3,
                              {.scores = Routing::Scores::sigmoid, .top_k = 1, .scale = 2, .bias = bias.data()});
  EXPECT_EQ(routed.experts[0], 2);
  EXPECT_FLOAT_EQ(routed.weights[0], 2 / (1 + std::exp(1.0f)));
}

TEST(Route, GroupsAreRankedByTheirBestOrByTheirTwoBest) {
  const Array<float> logits = {3, -9, 2, 2};
  Routing routing{.scores = Routing::Scores::sigmoid, .top_k = 1, .n_group = 2, .topk_group = 1};
  EXPECT_EQ(route(ops(), logits, 1, 4, routing).experts[0], 0);
  routing.group_rank = Routing::GroupRank::top2_sum;
  EXPECT_EQ(route(ops(), logits, 1, 4, routing).experts[0], 2);
}

TEST(Route, AgreesWithSortingInFloat64) {
  for_each_case([](Gen& gen) {
    const int groups = static_cast<int>(gen.in(1, 6)), size = static_cast<int>(gen.in(1, 12));
    const int64_t rows = gen.in(0, 30);
    const bool ties = gen.chance(0.5), strange = gen.chance(0.3);
    Array<float> logits(static_cast<size_t>(rows * groups * size));
    for (float& l : logits) {
      l = static_cast<float>(ties ? static_cast<double>(gen.in(-2, 2)) : gen.normal());
      if (strange && gen.chance(0.1)) l = gen.pick({kNaN, -kInf});
    }
    const Array<float> bias = floats(gen, groups * size);
    const Routing routing{.scores = gen.pick({Routing::Scores::softmax, Routing::Scores::sigmoid}),
                          .group_rank = gen.pick({Routing::GroupRank::best, Routing::GroupRank::top2_sum}),
                          .top_k = static_cast<int>(gen.in(1, groups * size)),
                          .n_group = groups,
                          .topk_group = static_cast<int>(gen.in(1, groups)),
                          .normalize = gen.chance(0.5),
                          .scale = 1.5f,
                          .bias = gen.chance(0.5) ? bias.data() : nullptr};
    const Routed routed = route(any_ops(gen), logits, rows, groups * size, routing);
    const auto width = static_cast<size_t>(groups * size), top_k = static_cast<size_t>(routing.top_k);
    for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
      const auto want = test::reference_route(doubles(std::span(logits).subspan(t * width, width)), routing);
      Expected expected{.values = want.weights, .bounds = {}};
      for (double w : want.weights) expected.bounds.push_back(1e-6 * std::abs(w) + 1e-18);
      EXPECT_EQ(std::vector<int32_t>(routed.experts.begin() + static_cast<int64_t>(t * top_k),
                                     routed.experts.begin() + static_cast<int64_t>((t + 1) * top_k)),
                want.experts);
      EXPECT_EQ(differences(doubles(std::span(routed.weights).subspan(t * top_k, top_k)), expected), "");
    }
  });
}

}  // namespace
}  // namespace weft
