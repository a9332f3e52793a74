#include "ops/cpu/attend_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/allocations.h"
#include "support/prop.h"

namespace weft::cpu {
namespace {

TEST(AttendPlan, WithinItsLimitsItTakesNoMemoryAndStaysBelowItsBound) {
  test::for_each_case([](test::Gen& gen) {
    const int kv_heads = static_cast<int>(gen.pick<int64_t>({1, 2, 8, 16}));
    const AttentionLimits limits{.rows = gen.in(1, 300),
                                 .heads = kv_heads * gen.pick<int64_t>({1, 4, 16, 128}),
                                 .kv_heads = kv_heads,
                                 .k_dim = 8,
                                 .v_dim = 8,
                                 .keys = gen.pick<int64_t>({100, 600, 5000, 200'000}),
                                 .segments = static_cast<int>(gen.in(1, 4))};
    AttendPlan plan;
    plan.reserve(limits);
    const float key = 0;  // never read
    for (int call = 0; call < 4; ++call) {
      // Decodes and chunks of prefill, each over its own number of keys.
      const int64_t rows = gen.in(1, limits.rows), most = gen.in(1, limits.keys / limits.segments);
      std::vector<int32_t> seq_of, begin, end;
      for (int32_t sequence = 0; static_cast<int64_t>(seq_of.size()) < rows; ++sequence) {
        const int64_t n = gen.chance(0.5) ? 1 : gen.in(1, 100), keys = gen.in(0, most);
        for (int64_t i = 0; i < n && static_cast<int64_t>(seq_of.size()) < rows; ++i) {
          seq_of.push_back(sequence);
          begin.push_back(0);
          end.push_back(static_cast<int32_t>(std::min(keys + i, most)));
        }
      }
      const bool paged = limits.segments == 1;
      for (int segment = 1; segment < limits.segments; ++segment)
        for (int64_t row = 0; row < rows; ++row) begin.push_back(begin[row]), end.push_back(end[row]);
      Attention args;
      args.q = ConstView(nullptr, DType::f32, {1, rows, limits.heads, limits.k_dim});
      args.seq_of = seq_of.data();
      args.begin = begin.data();
      args.end = end.data();
      args.segments = limits.segments;
      args.invariant = gen.chance(0.3);
      if (paged) {
        args.paged.kv.k = const_cast<float*>(&key);
        args.paged.kv.kv_heads = kv_heads;
      } else {
        args.rows.k = ConstView(&key, DType::f32, {most, kv_heads, limits.k_dim});
        args.rows.v = ConstView(&key, DType::f32, {most, kv_heads, limits.v_dim});
      }
      const int64_t before = test::allocations_of_this_thread();
      plan.build(args);
      EXPECT_EQ(test::allocations_of_this_thread(), before);
      EXPECT_LE(plan.partials(), AttendPlan::most_partials(limits));
    }
  });
}

}  // namespace
}  // namespace weft::cpu
