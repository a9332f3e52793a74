// The CPU kernels for every instruction set that this machine has, not only for the best.

#include <hwy/targets.h>

#include "ops/cpu/cpu_ops.h"
#include "ops/make_ops.h"
#include "ops/uniform.h"
#include "support/prop.h"
#include "support/reference_ops.h"
#include "support/reference_sampling.h"

namespace weft {
namespace {

using test::differences;
using test::for_each_case;
using test::Gen;
using test::Strided;

/// Calls body(name) once for every set of Highway's, with that one chosen.
template <typename Body>
void for_each_instruction_set(Body body) {
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

/// One call of a kernel against the reference: any rows, depth, columns.
void check_kernel(Gen& gen, cpu::PanelKernel kernel, DType dtype, DType result) {
  Pool pool(1);
  const int64_t rows = gen.in(0, 20), depth = gen.in(0, 90), columns = gen.in(1, cpu::kPanelColumns);
  Strided w(gen, dtype, {columns, depth}), x(gen, dtype, {rows, depth}), out(gen, result, {rows, columns});
  Strided bias(gen, DType::f32, {columns});
  const bool with_bias = gen.chance(0.5);
  const cpu::PackedMatrix packed(pool, w.view(), dtype);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (int64_t r = 0; r < rows; ++r) {
    from.push_back(static_cast<const std::byte*>(x.view().rows(r, 1).data()));
    to.push_back(static_cast<std::byte*>(out.view().rows(r, 1).data()));
  }
  kernel({.x = from.data(),
          .out = to.data(),
          .rows = rows,
          .panel = packed.panel(0),
          .depth = depth,
          .bias = with_bias ? bias.view().as<float>() : nullptr,
          .columns = columns});
  const std::vector<double> added = with_bias ? bias.values() : std::vector<double>();
  EXPECT_EQ(differences(out.values(), test::reference_linear(x.values(), w.values(), added, rows, depth, columns, result)), "");
  EXPECT_TRUE(out.gaps_are_untouched());
}

TEST(InstructionSets, HighwayPanels) {
  for_each_instruction_set([] {
    for_each_case([](Gen& gen) {
      const DType dtype = gen.pick({DType::f32, DType::bf16}), result = gen.pick({DType::f32, dtype});
      check_kernel(gen, cpu::highway_panel_kernel(dtype, result), dtype, result);
    });
  });
}

TEST(InstructionSets, Bfloat16PairPanels) {
  if (cpu::avx512_bf16_panel_kernel(DType::f32) == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  for_each_case([](Gen& gen) {
    const DType result = gen.pick({DType::f32, DType::bf16});
    check_kernel(gen, cpu::avx512_bf16_panel_kernel(result), DType::bf16, result);
  });
}

TEST(InstructionSets, TheBestOneIsTold) {
  if (cpu::avx512_bf16_panel_kernel(DType::bf16) != nullptr) {
    EXPECT_EQ(cpu_instruction_set(), "avx512_bf16");
    return;
  }
  for_each_instruction_set([] {
    const int64_t target = hwy::SupportedTargets();
    const std::string name = cpu_instruction_set();
    if (target == HWY_AVX3) {
      EXPECT_EQ(name, "avx512");
    } else if (target == HWY_AVX2) {
      EXPECT_EQ(name, "avx2");
    }
    EXPECT_FALSE(name.empty());
  });
}

TEST(InstructionSets, Elementwise) {
  CpuOps ops(1);
  for_each_instruction_set([&] {
    for_each_case(
        [&](Gen& gen) {
          const DType dtype = gen.pick({DType::f32, DType::bf16});
          const int64_t rows = gen.in(0, 5), width = gen.in(1, 150);
          Strided x(gen, dtype, {rows, 2 * width}, 3), out(gen, dtype, {rows, width}), weight(gen, DType::f32, {2 * width});
          ops.silu_mul(x.view(), out.view());
          EXPECT_EQ(differences(out.values(), test::reference_silu_mul(x.values(), rows, width, dtype)), "");
          const test::Expected norms = test::reference_rms_norm(x.values(), weight.values(), 1e-6, dtype);
          ops.rms_norm(x.view(), weight.view().as<float>(), 1e-6f, x.view());
          EXPECT_EQ(differences(x.values(), norms), "");
          EXPECT_TRUE(x.gaps_are_untouched() && out.gaps_are_untouched());
        },
        100);
  });
}

TEST(InstructionSets, Sampling) {
  CpuOps ops(1);
  for_each_instruction_set([&] {
    for_each_case(
        [&](Gen& gen) {
          test::SamplingBatch batch(gen.in(1, 1300));
          add_any_row(gen, batch);
          const SamplingRow& row = batch.row(0);
          const auto candidates = test::reference_candidates(batch.view(), 0);
          const std::vector<int32_t> ids = batch.sample(ops);
          EXPECT_EQ(ids[0], test::reference_draw(candidates, uniform(row.seed, row.choice, row.position)));
        },
        300);
  });
}

TEST(InstructionSets, RoundingToBfloat16IsExactToTheBit) {
  // Every float32 pattern class: ties to even up and down, the largest, subnormals, infinities, NaN with low payloads.
  std::vector<float> from;
  for (uint32_t high = 0; high < 0x10000; high += 0x3b) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      from.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7f7fffffu}) {
    from.push_back(std::bit_cast<float>(bits));
  }
  const auto n = static_cast<int64_t>(from.size());
  std::vector<bf16> to(from.size());
  CpuOps ops(1);
  for_each_instruction_set([&] {
    ops.copy(ConstView(from.data(), DType::f32, {n}), View(to.data(), DType::bf16, {n}));
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(to[i].bits, bf16(from[i]).bits) << std::hex << std::bit_cast<uint32_t>(from[i]);
    }
  });
}

}  // namespace
}  // namespace weft
