// The CPU operators against the machine's bounds. Bytes a second are those of the weights (or of what an operator reads), to
// be held against Read; operations a second against the peak of the instructions. Arguments: threads first, then rows.

#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/cpu_ops.h"

namespace weft {
namespace {

/// A matrix of small numbers, made without a host copy of its own size.
std::unique_ptr<Matrix> matrix(CpuOps& ops, int64_t out, int64_t in, DType dtype = DType::bf16) {
  std::vector<float> row(static_cast<size_t>(in));
  for (size_t i = 0; i < row.size(); ++i) row[i] = 0.01f * static_cast<float>(i % 7) - 0.03f;
  return ops.pack(ConstView(row.data(), DType::f32, {out, in}, {0, 1}), dtype);
}

/// Rows of activations, zero.
struct Rows {
  Buffer bytes;
  View view;
  Rows(CpuOps& ops, DType dtype, int64_t rows, int64_t width)
      : bytes(ops.allocate(static_cast<size_t>(rows * width) * size_of(dtype))), view(bytes.data(), dtype, {rows, width}) {}
};

/// The same wish for every logit row.
class Sampled {
 public:
  Sampled(CpuOps& ops, View logits, const SamplingRow& row = {})
      : ops_(ops),
        logits_(logits),
        rows_(static_cast<size_t>(logits.size(0)), row),
        logit_row_(rows_.size()),
        ids_(rows_.size()),
        log_probs_(2 * rows_.size()),
        top_ids_(rows_.size() * static_cast<size_t>(row.top_log_probs)),
        top_log_probs_(top_ids_.size()),
        memory_(ops.allocate(ops.sampling_workspace_bytes(logits.size(0), logits.size(1)))) {
    std::iota(logit_row_.begin(), logit_row_.end(), 0);
  }
  /// Each call draws other random numbers.
  void run() {
    for (SamplingRow& row : rows_) ++row.position;
    ops_.sample(args(), workspace(), ids_.data());
  }
  void run_log_probs() {
    ops_.log_probs(args(), workspace(), ids_.data(),
                   {.of_ids = log_probs_.data(),
                    .of_targets = log_probs_.data() + rows_.size(),
                    .max_top = rows_.front().top_log_probs,
                    .top_ids = top_ids_.data(),
                    .top_log_probs = top_log_probs_.data()});
  }

 private:
  SampledLogits args() const {
    return {.logits = logits_,
            .rows = rows_,
            .logit_row = logit_row_.data(),
            .penalty_tokens = {},
            .biases = {},
            .token_masks = {}};
  }
  View workspace() const { return View(memory_.data(), DType::u8, {static_cast<int64_t>(memory_.bytes())}); }

  CpuOps& ops_;
  View logits_;
  std::vector<SamplingRow> rows_;
  std::vector<int32_t> logit_row_, ids_;
  std::vector<float> log_probs_;
  std::vector<int32_t> top_ids_;
  std::vector<float> top_log_probs_;
  Buffer memory_;
};

void report(benchmark::State& state, double bytes, double operations) {
  const auto steps = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(steps * bytes * 1e-9, benchmark::Counter::kIsRate);
  if (operations > 0) state.counters["GFLOP/s"] = benchmark::Counter(steps * operations * 1e-9, benchmark::Counter::kIsRate);
}

/// The memory bound: all threads read 512 MiB on huge pages.
void Read(benchmark::State& state) {
  CpuOps ops(static_cast<int>(state.range(0)));
  constexpr int64_t kBytes = int64_t{512} << 20, kPart = int64_t{256} << 10;
  const Buffer memory = ops.allocate(kBytes);
  std::fill_n(memory.data(), kBytes, std::byte{1});
  const auto* words = reinterpret_cast<const uint64_t*>(memory.data());
  for (auto _ : state) {
    ops.pool().run(kBytes / kPart, [&](int64_t part, int) {
      constexpr int64_t kWords = kPart / 8;
      using Vector [[gnu::vector_size(64)]] = uint64_t;
      Vector sums[4] = {};
      const auto* at = reinterpret_cast<const Vector*>(words + part * kWords);
      for (int64_t i = 0; i < kWords / 8; i += 4) {
        for (int j = 0; j < 4; ++j) sums[j] ^= at[i + j];
      }
      benchmark::DoNotOptimize(sums);
    });
  }
  report(state, kBytes, 0);
}
BENCHMARK(Read)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

/// One product, its weights larger than the caches: as many different matrices as make 256 MiB, in turn.
void Linear(benchmark::State& state, int64_t out, int64_t in, DType dtype) {
  CpuOps ops(static_cast<int>(state.range(0)));
  const int64_t rows = state.range(1);
  const auto bytes = static_cast<double>(ops.packed_bytes(out, in, dtype));
  std::vector<std::unique_ptr<Matrix>> matrices;
  for (double total = 0; total < 0x1p28; total += bytes) matrices.push_back(matrix(ops, out, in, dtype));
  Rows x(ops, dtype, rows, in), y(ops, dtype, rows, out);
  size_t turn = 0;
  for (auto _ : state) ops.linear(*matrices[turn++ % matrices.size()], x.view, nullptr, y.view);
  report(state, bytes, 2.0 * static_cast<double>(rows * out * in));
}
void LinearSizes(benchmark::internal::Benchmark* b) {
  for (int64_t threads : {1, 2}) {
    for (int64_t rows : {1, 2, 4, 8, 16, 64, 512}) b->Args({threads, rows});
  }
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(Linear, 1024x1024, 1024, 1024, DType::bf16)->Apply(LinearSizes);
BENCHMARK_CAPTURE(Linear, 6144x1024, 6144, 1024, DType::bf16)->Apply(LinearSizes);
BENCHMARK_CAPTURE(Linear, 1024x3072, 1024, 3072, DType::bf16)->Apply(LinearSizes);
BENCHMARK_CAPTURE(Linear, float32_1024x3072, 1024, 3072, DType::f32)->Apply(LinearSizes);

/// Eight experts of 64' gate and up, one row: a decode step of a mixture.
void ExpertLinear(benchmark::State& state) {
  CpuOps ops(static_cast<int>(state.range(0)));
  constexpr int kExperts = 64, kTopK = 8;
  constexpr int64_t kIn = 2048, kOut = 1024;
  std::vector<std::unique_ptr<Matrix>> experts;
  for (int e = 0; e < kExperts; ++e) experts.push_back(matrix(ops, kOut, kIn));
  Rows x(ops, DType::bf16, 1, kIn), y(ops, DType::bf16, kTopK, kOut);
  std::vector<int32_t> chosen(kTopK), source(kTopK), place(kTopK), offsets(kExperts + 1);
  const ExpertRows rows{source.data(), place.data(), offsets.data()};
  int32_t turn = 0;
  for (auto _ : state) {
    for (int32_t j = 0; j < kTopK; ++j) chosen[static_cast<size_t>(j)] = (turn + j * 8) % kExperts;
    ++turn;
    ops.group_by_expert(ConstView(chosen.data(), DType::i32, {1, kTopK}), kExperts, rows);
    ops.expert_linear(experts, x.view, rows, true, y.view);
  }
  report(state, static_cast<double>(kTopK * ops.packed_bytes(kOut, kIn, DType::bf16)), 0);
}
BENCHMARK(ExpertLinear)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// Everything but attention of a step of Qwen3-0.6B: how much of the bound is left when the operators follow each other.
void StepWithoutAttention(benchmark::State& state) {
  CpuOps ops(static_cast<int>(state.range(0)));
  const int64_t rows = state.range(1);
  constexpr int64_t kHidden = 1024, kWidth = 3072, kQkv = 4096, kAttention = 2048, kVocabulary = 151936;
  constexpr int kLayers = 28;
  struct Layer {
    std::unique_ptr<Matrix> qkv, o, gate_up, down;
  };
  std::vector<Layer> layers;
  double bytes = 0;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back({matrix(ops, kQkv, kHidden), matrix(ops, kHidden, kAttention), matrix(ops, 2 * kWidth, kHidden),
                      matrix(ops, kHidden, kWidth)});
    const Layer& layer = layers.back();
    bytes += static_cast<double>(layer.qkv->bytes() + layer.o->bytes() + layer.gate_up->bytes() + layer.down->bytes());
  }
  const auto head = matrix(ops, kVocabulary, kHidden);
  const int64_t logit_rows = rows <= 16 ? rows : 1;
  const double operations =
      static_cast<double>(rows) * bytes + static_cast<double>(logit_rows) * static_cast<double>(head->bytes());
  bytes += static_cast<double>(head->bytes());

  const std::vector<float> weight(kHidden, 1.0f);
  Rows x(ops, DType::bf16, rows, kHidden), normed(ops, DType::bf16, rows, kHidden), qkv(ops, DType::bf16, rows, kQkv);
  Rows gate_up(ops, DType::bf16, rows, 2 * kWidth), inner(ops, DType::bf16, rows, kWidth);
  Rows logits(ops, DType::f32, logit_rows, kVocabulary);
  Sampled sampled(ops, logits.view);
  for (auto _ : state) {
    ops.rms_norm(x.view, weight.data(), 1e-6f, normed.view);
    for (const Layer& layer : layers) {
      ops.linear(*layer.qkv, normed.view, nullptr, qkv.view);
      const View heads = qkv.view.slice(1, 0, kAttention).split_last(16);
      ops.rms_norm(heads, weight.data(), 1e-6f, heads);
      ops.linear(*layer.o, qkv.view.slice(1, 0, kAttention), nullptr, normed.view);
      ops.add_rms_norm(normed.view, x.view, weight.data(), 1e-6f, normed.view);
      ops.linear(*layer.gate_up, normed.view, nullptr, gate_up.view);
      ops.silu_mul(gate_up.view, inner.view);
      ops.linear(*layer.down, inner.view, nullptr, normed.view);
      ops.add_rms_norm(normed.view, x.view, weight.data(), 1e-6f, normed.view);
    }
    ops.linear(*head, normed.view.rows(rows - logit_rows, logit_rows), nullptr, logits.view);
    sampled.run();
  }
  report(state, bytes, operations);
}
BENCHMARK(StepWithoutAttention)->ArgsProduct({{1, 2}, {1, 4, 16, 512}})->UseRealTime()->Unit(benchmark::kMillisecond);

void Elementwise(benchmark::State& state) {
  CpuOps ops(2);
  const int64_t rows = state.range(0);
  constexpr int64_t kHidden = 1024, kWidth = 3072;
  const std::vector<float> weight(kHidden, 1.0f);
  Rows x(ops, DType::bf16, rows, kHidden), y(ops, DType::bf16, rows, kHidden);
  Rows gate_up(ops, DType::bf16, rows, 2 * kWidth), inner(ops, DType::bf16, rows, kWidth);
  for (auto _ : state) {
    ops.add_rms_norm(y.view, x.view, weight.data(), 1e-6f, y.view);
    ops.silu_mul(gate_up.view, inner.view);
  }
  report(state, static_cast<double>(4 * x.view.bytes() + 3 * inner.view.bytes()), 0);
}
BENCHMARK(Elementwise)->Arg(1)->Arg(16)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// What serving asks of a vocabulary of 151,936: greedy, all tokens by temperature, the usual cuts, and log probabilities.
void Sampling(benchmark::State& state) {
  constexpr std::array<SamplingRow, 5> kRows = {{{},
                                                 {.temperature = 1},
                                                 {.temperature = 0.8f, .top_p = 0.95f},
                                                 {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f},
                                                 {.temperature = 0.8f, .min_p = 0.05f}}};
  CpuOps ops(2);
  Rows logits(ops, DType::f32, state.range(1), 151936);
  // Spread as a language model's are: most tokens far below the few that fit.
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  for (int64_t i = 0; i < logits.view.count(); ++i)
    logits.view.as<float>()[i] = normal(random) + (i % 151936 < 40 ? 0.25f * static_cast<float>(40 - i % 151936) + 8 : 0);
  Sampled sampled(ops, logits.view, kRows[static_cast<size_t>(state.range(0))]);
  for (auto _ : state) sampled.run();
  report(state, static_cast<double>(logits.view.bytes()), 0);
}
BENCHMARK(Sampling)->ArgsProduct({{0, 1, 2, 3, 4}, {1, 16}})->UseRealTime()->Unit(benchmark::kMicrosecond);

void LogProbabilities(benchmark::State& state) {
  CpuOps ops(2);
  Rows logits(ops, DType::f32, state.range(0), 151936);
  Sampled sampled(ops, logits.view, {.top_log_probs = 20});
  for (auto _ : state) sampled.run_log_probs();
  report(state, static_cast<double>(logits.view.bytes()), 0);
}
BENCHMARK(LogProbabilities)->Arg(1)->Arg(16)->UseRealTime()->Unit(benchmark::kMicrosecond);

void Route(benchmark::State& state) {
  CpuOps ops(2);
  Rows logits(ops, DType::f32, state.range(0), 256), weights(ops, DType::f32, state.range(0), 8);
  Rows experts(ops, DType::i32, state.range(0), 8);
  const Routing routing{.scores = Routing::Scores::sigmoid,
                        .group_rank = Routing::GroupRank::top2_sum,
                        .top_k = 8,
                        .n_group = 8,
                        .topk_group = 4};
  for (auto _ : state) ops.route(logits.view, routing, experts.view, weights.view);
}
BENCHMARK(Route)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// What a parallel region costs.
void EmptyRegion(benchmark::State& state) {
  CpuOps ops(2);
  for (auto _ : state) ops.pool().run(2, [](int64_t task, int) { benchmark::DoNotOptimize(task); });
}
BENCHMARK(EmptyRegion)->UseRealTime();

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
