#include "exchange/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/thread_group.h"
#include "exchange/collective_exchange.h"
#include "ops/make_ops.h"
#include "support/prop.h"

namespace weft {
namespace {

using test::Gen;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Ranks of a test: `groups` DCP groups of `dcp` ranks each.
struct Shape {
  int dcp = 1, groups = 1;
  int tp() const { return dcp * groups; }
};

/// An implementation under test.
struct Backend {
  const char* name;
  /// Runs body(exchange, ops) on every rank, each on a thread of its own, and returns when all are done.
  void (*on_all_ranks)(Shape, const ExchangeLimits&, const std::function<void(Exchange&, Ops&)>& body);
};

constexpr Backend kCollective{"Collective",
                              [](Shape shape, const ExchangeLimits& limits, const std::function<void(Exchange&, Ops&)>& body) {
                                ThreadGroup tp_group(shape.tp());
                                std::vector<std::unique_ptr<ThreadGroup>> dcp_groups;
                                for (int g = 0; g < shape.groups; ++g)
                                  dcp_groups.push_back(std::make_unique<ThreadGroup>(shape.dcp));
                                std::vector<std::thread> threads;
                                for (int rank = 0; rank < shape.tp(); ++rank) {
                                  threads.emplace_back([&, rank] {
                                    const auto ops = make_cpu_ops(1);
                                    const auto tp = tp_group.join(rank);
                                    const auto dcp = dcp_groups[static_cast<size_t>(rank / shape.dcp)]->join(rank % shape.dcp);
                                    CollectiveExchange exchange(*dcp, *tp, *ops, limits);
                                    body(exchange, *ops);
                                  });
                                }
                                for (std::thread& thread : threads) thread.join();
                              }};

struct Case {
  Backend backend;
  DType dtype;
  Shape shape;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.backend.name << "_" << to_string(c.dtype) << "_dcp" << c.shape.dcp << "_tp" << c.shape.tp();
}

/// A tensor of a test in the compute dtype, filled from float32.
struct Tensor {
  DType dtype;
  std::vector<std::byte> bytes;
  Tensor(DType type, int64_t count) : dtype(type), bytes(static_cast<size_t>(count) * size_of(type)) {}
  View view(std::initializer_list<int64_t> sizes) { return View(bytes.data(), dtype, sizes); }
};

/// Element i of contiguous or strided storage, seen from its first element.
float load(DType dtype, const void* data, int64_t i) {
  return dtype == DType::f32 ? static_cast<const float*>(data)[i] : static_cast<float>(static_cast<const bf16*>(data)[i]);
}
void store(DType dtype, void* data, int64_t i, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<bf16*>(data)[i] = bf16(value);
  }
}
float rounded(DType dtype, float value) { return dtype == DType::f32 ? value : static_cast<float>(bf16(value)); }
/// The largest relative error of one rounding.
double rounding(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : 0x1p-8; }

class ExchangeTest : public ::testing::TestWithParam<Case> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  Shape shape() const { return GetParam().shape; }
  ExchangeLimits limits() const {
    return {.dtype = dtype(),
            .query_rows = 9,
            .heads = 3,
            .query_dim = 10,
            .partial_dim = 9,
            .context_rows = 11,
            .context_row_dim = 12};
  }
  void on_all_ranks(const std::function<void(Exchange&, Ops&)>& body) const {
    GetParam().backend.on_all_ranks(shape(), limits(), body);
  }
};

/// The operations that are never called in a group of one.
class DcpExchangeTest : public ExchangeTest {};

TEST_P(ExchangeTest, KnowsItsPlace) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    EXPECT_EQ(exchange.tp_size(), shape().tp());
    EXPECT_EQ(exchange.dcp_size(), shape().dcp);
    EXPECT_EQ(exchange.dcp_rank(), exchange.tp_rank() % shape().dcp);
  });
}

/// The value of element i of what a rank sends: exact in bfloat16.
float tag(int tp_rank, int64_t i) { return static_cast<float>(tp_rank * 16 + i % 16) * (i % 3 == 0 ? -1.0f : 1.0f); }
int first_of_group(const Exchange& exchange) { return exchange.tp_rank() - exchange.dcp_rank(); }

TEST_P(DcpExchangeTest, GathersTheQueriesOfTheGroup) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    for (const bool strided : {false, true}) {
      for (const int64_t rows : {0, 1, 9}) {
        const int64_t heads = 3, dim = 10, pitch = strided ? 37 : heads * dim;
        Tensor q(dtype(), rows * pitch + 1);
        for (int64_t i = 0; i < rows * heads * dim; ++i) {
          store(dtype(), q.bytes.data(), i / (heads * dim) * pitch + i % (heads * dim), tag(exchange.tp_rank(), i));
        }
        const ConstView all = exchange.gather_queries(ConstView(q.bytes.data(), dtype(), {rows, heads, dim}, {pitch, dim, 1}));
        ASSERT_EQ(all.size(0), shape().dcp);
        ASSERT_EQ(all.size(1), rows);
        ASSERT_TRUE(all.is_contiguous());
        for (int peer = 0; peer < shape().dcp; ++peer) {
          for (int64_t i = 0; i < rows * heads * dim; ++i) {
            ASSERT_EQ(load(dtype(), all.data(), peer * rows * heads * dim + i), tag(first_of_group(exchange) + peer, i));
          }
        }
      }
    }
  });
}

TEST_P(DcpExchangeTest, GathersContextRowsInTheDtypeOfTheCache) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    for (const DType stored : {dtype(), DType::bf16}) {
      for (const int64_t rows : {0, 1, 11}) {
        const int64_t dim = 12;
        const View own = exchange.context_buffer(rows, dim, stored);
        for (int64_t i = 0; i < rows * dim; ++i) store(stored, own.data(), i, tag(exchange.tp_rank(), i));
        const ConstView all = exchange.gather_context();
        ASSERT_TRUE(all.dtype() == stored);
        ASSERT_EQ(all.count(), shape().dcp * rows * dim);
        for (int peer = 0; peer < shape().dcp; ++peer) {
          for (int64_t i = 0; i < rows * dim; ++i) {
            ASSERT_EQ(load(stored, all.data(), peer * rows * dim + i), tag(first_of_group(exchange) + peer, i));
          }
        }
      }
    }
  });
}

/// The partial of one head over one shard.
struct HeadPartial {
  std::vector<float> out;
  float lse;
  bool is_empty() const { return !(lse > -kInfinity && lse < kInfinity); }  // NaN compares false
};

/// What shard `from` found for row t and head i of rank `to` of the group: computed, so that all ranks know all partials.
/// Now and then nothing, and then `out` is garbage; for row 0 all shards are empty.
HeadPartial head_partial(DType dtype, uint64_t seed, int from, int to, int64_t t, int64_t i, int64_t dim) {
  Gen gen((((seed * 64 + static_cast<uint64_t>(from)) * 64 + static_cast<uint64_t>(to)) * 64 + static_cast<uint64_t>(t)) * 64 +
          static_cast<uint64_t>(i));
  HeadPartial partial{.out = {}, .lse = static_cast<float>(8 * gen.normal())};
  if (t == 0 || gen.chance(0.3)) partial.lse = gen.pick({-std::numeric_limits<float>::infinity(), kNan});
  if (t > 0 && std::isnan(partial.lse)) partial.lse = std::numeric_limits<float>::infinity();
  for (int64_t d = 0; d < dim; ++d) {
    const auto value = static_cast<float>(gen.normal());
    partial.out.push_back(partial.is_empty() ? kNan : rounded(dtype, value));
  }
  return partial;
}

void check_partials(Exchange& exchange, Shape shape, DType dtype, uint64_t seed, int64_t rows, int heads, int64_t dim,
                    bool want_lse) {
  const int group = first_of_group(exchange);
  const Exchange::PartialBuffer buffer = exchange.partial_buffer(rows, heads, dim);
  ASSERT_EQ(buffer.out.size(0), shape.dcp);
  ASSERT_EQ(buffer.out.stride(3), 1);
  for (int to = 0; to < shape.dcp; ++to) {
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < heads; ++i) {
        const HeadPartial partial = head_partial(dtype, seed, exchange.tp_rank(), group + to, t, i, dim);
        const View &out = buffer.out, &lse = buffer.lse;
        for (int64_t d = 0; d < dim; ++d) {
          store(dtype, out.data(), to * out.stride(0) + t * out.stride(1) + i * out.stride(2) + d,
                partial.out[static_cast<size_t>(d)]);
        }
        store(DType::f32, lse.data(), to * lse.stride(0) + t * lse.stride(1) + i * lse.stride(2), partial.lse);
      }
    }
  }
  Tensor out(dtype, rows * heads * dim);
  std::vector<float> lse(static_cast<size_t>(rows * heads), 7);
  exchange.exchange_partials(out.view({rows, heads, dim}), want_lse ? View(lse.data(), DType::f32, {rows, heads}) : View());

  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < heads; ++i) {
      SCOPED_TRACE("row " + std::to_string(t) + " head " + std::to_string(i));
      double largest = -kInfinity, sum = 0;
      std::vector<double> expected(static_cast<size_t>(dim));
      std::vector<HeadPartial> partials;
      for (int from = 0; from < shape.dcp; ++from) {
        partials.push_back(head_partial(dtype, seed, group + from, exchange.tp_rank(), t, i, dim));
        if (!partials.back().is_empty()) largest = std::max(largest, double{partials.back().lse});
      }
      for (const HeadPartial& partial : partials) {
        if (partial.is_empty()) continue;
        const double weight = std::exp(partial.lse - largest);
        sum += weight;
        for (size_t d = 0; d < expected.size(); ++d) expected[d] += weight * partial.out[d];
      }
      const double expected_lse = sum == 0 ? -kInfinity : largest + std::log(sum);
      if (want_lse) {
        const double got = lse[static_cast<size_t>(t * heads + i)];
        if (sum == 0) {
          ASSERT_EQ(got, -kInfinity);
        } else {
          ASSERT_NEAR(got, expected_lse, 1e-6 * (1 + std::abs(expected_lse)));
        }
      }
      for (int64_t d = 0; d < dim; ++d) {
        const double value = sum == 0 ? 0 : expected[static_cast<size_t>(d)] / sum;
        // The result is rounded once to the compute dtype; the arithmetic before is float32 on values of a few units.
        ASSERT_NEAR(load(dtype, out.bytes.data(), (t * heads + i) * dim + d), value, rounding(dtype) * std::abs(value) + 4e-6);
      }
    }
  }
}

TEST_P(DcpExchangeTest, MergesThePartialsOfTheShards) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    uint64_t seed = 1;
    for (const int64_t rows : {0, 1, 9}) {
      for (const int heads : {1, 3}) {
        for (const int64_t dim : {2, 8, 9}) {
          check_partials(exchange, shape(), dtype(), seed++, rows, heads, dim, rows != 1);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(DcpExchangeTest, ViewsOutliveCallsOfOtherMethods) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    const int group = first_of_group(exchange);
    Tensor q(dtype(), 4);
    for (int64_t i = 0; i < 4; ++i) store(dtype(), q.bytes.data(), i, tag(exchange.tp_rank(), i));
    const ConstView queries = exchange.gather_queries(q.view({2, 1, 2}));
    const View own = exchange.context_buffer(2, 3, dtype());
    for (int64_t i = 0; i < 6; ++i) store(dtype(), own.data(), i, tag(exchange.tp_rank(), i + 1));
    const ConstView context = exchange.gather_context();
    check_partials(exchange, shape(), dtype(), 77, 3, 2, 8, true);
    for (int peer = 0; peer < shape().dcp; ++peer) {
      for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(load(dtype(), queries.data(), peer * 4 + i), tag(group + peer, i));
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(load(dtype(), context.data(), peer * 6 + i), tag(group + peer, i + 1));
    }
  });
}

TEST_P(ExchangeTest, ReducesOverTheTensorParallelRanks) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    Tensor data(dtype(), 5);
    for (int64_t i = 0; i < 5; ++i) store(dtype(), data.bytes.data(), i, static_cast<float>(exchange.tp_rank() + i));
    exchange.all_reduce(data.view({5}));
    const int tp = shape().tp();
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(load(dtype(), data.bytes.data(), i), rounded(dtype(), static_cast<float>(tp * (tp - 1) / 2 + tp * i)));
    }
  });
}

TEST_P(ExchangeTest, ReducesAddsAndNormalises) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    const int tp = shape().tp();
    const int64_t rows = 3, hidden = 20;
    const double eps = 1e-5;
    const auto summand = [this](int rank, int64_t i) {
      return rounded(dtype(), std::sin(static_cast<float>(rank * 1000 + i)));
    };
    const auto old_residual = [this](int64_t i) { return rounded(dtype(), std::cos(static_cast<float>(i))); };
    std::vector<float> weight;
    for (int64_t i = 0; i < hidden; ++i) weight.push_back(0.5f + 0.1f * static_cast<float>(i));
    Tensor partial(dtype(), rows * hidden), residual(dtype(), rows * hidden), out(dtype(), rows * hidden);
    for (int64_t i = 0; i < rows * hidden; ++i) {
      store(dtype(), partial.bytes.data(), i, summand(exchange.tp_rank(), i));
      store(dtype(), residual.bytes.data(), i, old_residual(i));
    }
    exchange.all_reduce_norm(partial.view({rows, hidden}), residual.view({rows, hidden}), weight.data(),
                             static_cast<float>(eps), out.view({rows, hidden}));
    // Values up to tp + 1, rounded to the compute dtype as sum, residual and result; the additions round to float32.
    const double bound = (tp + 1) * (3 * rounding(dtype()) + tp * 0x1p-24);
    for (int64_t t = 0; t < rows; ++t) {
      double squares = 0;
      std::vector<double> expected;
      for (int64_t i = t * hidden; i < (t + 1) * hidden; ++i) {
        double value = old_residual(i);
        for (int rank = 0; rank < tp; ++rank) value += summand(rank, i);
        ASSERT_NEAR(load(dtype(), residual.bytes.data(), i), value, bound);
        expected.push_back(value);
        squares += value * value;
      }
      const double rms = std::sqrt(squares / hidden + eps);
      for (int64_t i = 0; i < hidden; ++i) {
        const double value = expected[static_cast<size_t>(i)] / rms * weight[static_cast<size_t>(i)];
        ASSERT_NEAR(load(dtype(), out.bytes.data(), t * hidden + i), value, bound / std::min(rms, 1.0) * 4);
      }
    }
  });
}

TEST_P(ExchangeTest, GathersSlicesOfTheLastDimension) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    const int64_t rows = 2, dim = 5;
    std::vector<float> in, out(static_cast<size_t>(shape().tp() * rows * dim));
    for (int64_t i = 0; i < rows * dim; ++i) in.push_back(tag(exchange.tp_rank(), i));
    exchange.all_gather_tp(ConstView(in.data(), DType::f32, {rows, dim}),
                           View(out.data(), DType::f32, {shape().tp(), rows, dim}));
    for (int rank = 0; rank < shape().tp(); ++rank) {
      for (int64_t i = 0; i < rows * dim; ++i) EXPECT_EQ(out[static_cast<size_t>(rank * rows * dim + i)], tag(rank, i));
    }
  });
}

TEST_P(ExchangeTest, CountsWhatARankReceives) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    const auto element = static_cast<int64_t>(size_of(dtype()));
    const int64_t dcp = exchange.dcp_size(), tp = exchange.tp_size();
    const auto expect = [&](ExchangeCounters::Operation operation, int64_t calls, int64_t bytes) {
      const ExchangeCounters::Counts& counts = exchange.counters().of[operation];
      EXPECT_EQ(counts.calls.value(), calls) << ExchangeCounters::kNames[operation];
      EXPECT_EQ(counts.bytes.value(), bytes) << ExchangeCounters::kNames[operation];
      EXPECT_EQ(counts.nanoseconds.value() > 0, calls > 0) << ExchangeCounters::kNames[operation];
    };
    Tensor data(dtype(), 4 * 6), gathered(dtype(), tp * 4 * 6);
    exchange.all_reduce(data.view({4, 6}));
    exchange.all_reduce(data.view({2, 6}));
    exchange.all_gather_tp(data.view({4, 6}), gathered.view({tp, 4, 6}));
    if (dcp > 1) {
      Tensor q(dtype(), 5 * 3 * 10);
      exchange.gather_queries(q.view({5, 3, 10}));
      exchange.context_buffer(7, 12, DType::u8);
      exchange.gather_context();
      exchange.partial_buffer(5, 3, 9);
      Tensor out(dtype(), 5 * 3 * 9);
      std::vector<float> lse(5 * 3);
      exchange.exchange_partials(out.view({5, 3, 9}), View(lse.data(), DType::f32, {5, 3}));
    }
    // Of a group of one rank nothing is counted. A sum takes each element's other parts in, and its sum's back.
    expect(ExchangeCounters::all_reduce, tp > 1 ? 2 : 0,
           2 * (tp - 1) * 4 * 6 * element / tp + 2 * (tp - 1) * 2 * 6 * element / tp);
    expect(ExchangeCounters::gather_logits, tp > 1 ? 1 : 0, (tp - 1) * 4 * 6 * element);
    expect(ExchangeCounters::gather_queries, dcp > 1 ? 1 : 0, (dcp - 1) * 5 * 3 * 10 * element);
    expect(ExchangeCounters::gather_context, dcp > 1 ? 1 : 0, (dcp - 1) * 7 * 12);
    // A head's row is 9 elements, padded to whole floats, and its lse: 40 bytes in float32, 24 in bfloat16.
    expect(ExchangeCounters::exchange_partials, dcp > 1 ? 1 : 0, (dcp - 1) * 5 * 3 * (element == 4 ? 40 : 24));
    EXPECT_EQ(exchange.counters().merge_nanoseconds.value() > 0, dcp > 1);
    int64_t sum = 0;
    for (const ExchangeCounters::Counts& counts : exchange.counters().of) sum += counts.nanoseconds.value();
    EXPECT_EQ(exchange.counters().nanoseconds(), sum);
  });
}

TEST_P(ExchangeTest, AbortWakesTheRanksOfBothGroups) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    if (exchange.tp_rank() == 0) {
      exchange.abort();
      return;
    }
    float value = 0;
    EXPECT_THROW(exchange.all_reduce(View(&value, DType::f32, {1})), SystemError);
    if (shape().dcp == 1 || first_of_group(exchange) != 0) return;
    exchange.context_buffer(1, 1, dtype());
    EXPECT_THROW(exchange.gather_context(), SystemError);
  });
}

TEST_P(ExchangeTest, TakesTheBytesThatTheLimitsPromise) {
  on_all_ranks([this](Exchange& exchange, Ops&) {
    const auto* collective = dynamic_cast<CollectiveExchange*>(&exchange);
    if (collective == nullptr) return;
    EXPECT_EQ(collective->allocated_bytes(), limits().bytes(shape().dcp));
  });
}

TEST(ExchangeLimits, CountBytesByHand) {
  // Queries 2 * 3 heads of 4 elements, a partial row of 6 elements and a float32, twice; context rows once and twice.
  const ExchangeLimits limits{.dtype = DType::bf16,
                              .query_rows = 3,
                              .heads = 1,
                              .query_dim = 4,
                              .partial_dim = 6,
                              .context_rows = 5,
                              .context_row_dim = 7};
  EXPECT_EQ(limits.bytes(2), 6 * 8 + 2 * 6 * (12 + 4) + 5 * 14 + 2 * 5 * 14);
  EXPECT_EQ(limits.bytes(1), 0);
}

TEST(ExchangeDeathTest, CallsBeyondTheLimitsDie) {
  ThreadGroup tp_group(2), dcp_group(2);
  const auto tp = tp_group.join(0), dcp = dcp_group.join(0);
  const auto ops = make_cpu_ops(1);
  CollectiveExchange exchange(*dcp, *tp, *ops,
                              {.dtype = DType::f32,
                               .query_rows = 2,
                               .heads = 1,
                               .query_dim = 4,
                               .partial_dim = 4,
                               .context_rows = 2,
                               .context_row_dim = 4});
  std::vector<float> q(12);
  EXPECT_DEATH(exchange.gather_queries(ConstView(q.data(), DType::f32, {3, 1, 4})), "96 vs 64.*queries beyond the limits");
  EXPECT_DEATH(exchange.partial_buffer(2, 1, 5), "96 vs 80.*partials beyond the limits");
  EXPECT_DEATH(exchange.context_buffer(2, 5, DType::f32), "40 vs 32.*context rows beyond the limits");
}

std::vector<Case> cases_from(int smallest_dcp) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (int dcp = smallest_dcp; dcp <= 8; ++dcp) {
      cases.push_back({kCollective, dtype, {.dcp = dcp, .groups = 1}});
      if (dcp <= 4) cases.push_back({kCollective, dtype, {.dcp = dcp, .groups = 2}});
    }
    cases.push_back({kCollective, dtype, {.dcp = 3, .groups = 3}});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest, ::testing::ValuesIn(cases_from(1)), ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Ranks, DcpExchangeTest, ::testing::ValuesIn(cases_from(2)), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace weft
