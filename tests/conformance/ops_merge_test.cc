// Joining partial results.

#include "conformance/backend.h"
#include "conformance/tensors.h"

namespace weft {
namespace {

using namespace test;

TEST(Merge, WeighsByTheExponentialOfLse) {
  // Weights 0.62853, 0.23122, 0 and 0.14024; the part without keys holds NaN.
  Array<float> outs{1, 10, kNan, 100}, lses{2, 1, -kInf, 0.5f}, out{kNan}, lse{kNan};
  std::vector<Partial> partials;
  for (size_t i = 0; i < 4; ++i) {
    partials.push_back({.out = {&outs[i], DType::f32, {1, 1, 1}}, .lse = {&lses[i], DType::f32, {1, 1}}});
  }
  ops().merge(partials, {out.data(), DType::f32, {1, 1, 1}}, {lse.data(), DType::f32, {1, 1}});
  EXPECT_NEAR(out[0], 0.62853 + 2.3122 + 14.024, 2e-3);
  EXPECT_NEAR(lse[0], 2.46437, 1e-5);
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
    const ReferenceMerge expected = reference_merge(partials);

    View out = tensors.make(dtype, {rows, heads, dim}, gen.pick({0, 3})), lse = tensors.make(DType::f32, {rows, heads});
    if (gen.chance(0.4)) {  // In place of one of the partials.
      const Partial& target = partials[static_cast<size_t>(gen.in(0, parts - 1))];
      out = View(const_cast<void*>(target.out.data()), dtype, {rows, heads, dim},
                 {target.out.stride(0), target.out.stride(1), 1});
      lse = View(const_cast<void*>(target.lse.data()), DType::f32, {rows, heads}, {target.lse.stride(0), target.lse.stride(1)});
    }
    const bool wants_lse = gen.chance(0.8);
    any_ops(gen).merge(partials, out, wants_lse ? lse : View());

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

}  // namespace
}  // namespace weft
