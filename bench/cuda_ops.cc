// Times the CUDA operators on GPU 0 and sets each beside its bound: the bytes that it must move over the bandwidth of a copy,
// or its operations over the rate of a large product, both measured here first. Keys and weights are cold: each call reads
// others.
//
//   weft_cuda_ops [WORD]   only the cases whose name has WORD in it

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/make_ops.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

/// What a call must do at least.
struct Work {
  double bytes = 0, flops = 0;
  bool float32 = false;  ///< operations outside the tensor cores
};

class Bench {
 public:
  explicit Bench(std::string word) : ops_(make_cuda_ops(0)), word_(std::move(word)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    noise_.resize(size_t{1} << 22);
    for (bf16& x : noise_) x = bf16(normal(random));
  }

  Ops& ops() { return *ops_; }
  bool wants(const std::string& name) const { return name.find(word_) != std::string::npos; }

  /// Memory of random bfloat16 numbers of size one.
  Buffer random(size_t bytes) {
    Buffer buffer = ops_->allocate(bytes);
    for (size_t at = 0; at < bytes; at += noise_.size() * sizeof(bf16)) {
      const size_t n = std::min(noise_.size() * sizeof(bf16), bytes - at);
      ops_->upload(noise_.data(), View(buffer.data() + at, DType::u8, {static_cast<int64_t>(n)}));
    }
    return buffer;
  }
  template <typename T>
  Buffer upload(const std::vector<T>& host) {
    Buffer buffer = ops_->allocate(host.size() * sizeof(T));
    ops_->upload(host.data(), View(buffer.data(), DType::u8, {static_cast<int64_t>(buffer.bytes())}));
    return buffer;
  }
  /// A matrix of noise.
  std::unique_ptr<Matrix> matrix(int64_t out, int64_t in, DType dtype) {
    const int64_t rows = std::min(out, static_cast<int64_t>(noise_.size()) / in);
    // The rows of noise over and over: strides of 0 are not to be had, so larger matrices are packed from a copy.
    if (rows == out) return ops_->pack(ConstView(noise_.data(), DType::bf16, {out, in}), dtype);
    std::vector<bf16> all(static_cast<size_t>(out * in));
    for (size_t at = 0; at < all.size(); at += noise_.size())
      std::copy_n(noise_.begin(), std::min(noise_.size(), all.size() - at), all.begin() + static_cast<int64_t>(at));
    return ops_->pack(ConstView(all.data(), DType::bf16, {out, in}), dtype);
  }

  /// Microseconds of one call(i): the median of five runs of as many calls as take 30 ms, at least 20, one after the other.
  double time(const std::function<void(int)>& call) {
    for (int i = 0; i < 3; ++i) call(i);
    ops_->synchronize();
    const auto run = [&](int calls) {
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) call(i);
      ops_->synchronize();
      return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
    };
    const int calls = static_cast<int>(std::clamp(30'000 / run(5), 20.0, 2000.0));
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) times.push_back(run(calls));
    std::sort(times.begin(), times.end());
    return times[2];
  }

  void report(const std::string& name, Work work, const std::function<void(int)>& call) {
    if (!wants(name)) return;
    const double us = time(call);
    constexpr double kFloat32Rate = 67e12;  // published
    const double floor = std::max(work.bytes / bandwidth_, work.flops / (work.float32 ? kFloat32Rate : rate_)) * 1e6;
    std::printf("%-44s %10.1f us %8.3f TB/s %8.1f TFLOP/s   bound %8.1f us, %5.3f of it reached\n", name.c_str(), us,
                work.bytes / us * 1e-6, work.flops / us * 1e-6, floor, floor / us);
    std::fflush(stdout);
  }

  void measure_ceilings() {
    constexpr int64_t kFloats = int64_t{1} << 29, kSide = 8192;
    {
      const Buffer in = random(kFloats * 4), out = ops_->allocate(kFloats * 4);
      const double us = time([&](int) {
        ops_->copy(ConstView(in.data(), DType::u64, {kFloats / 2}), View(out.data(), DType::u64, {kFloats / 2}));
      });
      bandwidth_ = 2.0 * kFloats * 4 / us * 1e6;
    }
    const auto w = matrix(kSide, kSide, DType::bf16);
    const Buffer x = random(kSide * kSide * 2), y = ops_->allocate(kSide * kSide * 2);
    const double us = time([&](int) {
      ops_->linear(*w, ConstView(x.data(), DType::bf16, {kSide, kSide}), nullptr, View(y.data(), DType::bf16, {kSide, kSide}));
    });
    rate_ = 2.0 * kSide * kSide * kSide / us * 1e6;
    std::printf("ceilings: copy of 2 GiB %.2f TB/s read and written, product of 8192^3 in bfloat16 %.0f TFLOP/s\n",
                bandwidth_ * 1e-12, rate_ * 1e-12);
    // The copy is a simple kernel of ours; reading alone is faster on this chip (published 4.8 TB/s, seen 4.54).
    bandwidth_ = std::max(bandwidth_, 4.54e12);
  }

 private:
  std::unique_ptr<Ops> ops_;
  std::string word_;
  std::vector<bf16> noise_;
  double bandwidth_ = 1, rate_ = 1;  ///< bytes and operations of a second
};

/// Decode of `sequences` rows over `keys` keys each, pages dealt at random over a pool of 1 GiB or more.
void time_attend(Bench& bench, const std::string& kind, int sequences, int64_t keys) {
  const bool latent = kind.starts_with("mla"), mixed = kind == "mla-fp8";
  const std::string name = "attend " + kind + " b" + std::to_string(sequences) + " keys " + std::to_string(keys);
  if (!bench.wants(name)) return;
  constexpr int kBlock = 64;
  KvView kv{.kv_heads = latent ? 1 : 8,
            .k_dim = latent ? 576 : 128,
            .v_dim = latent ? 512 : 128,
            .block_tokens = kBlock,
            .dtype = mixed ? DType::f8_e4m3 : DType::bf16,
            .format = mixed ? KvFormat::fp8_ds_mla : KvFormat::elements};
  const int64_t heads = latent ? 128 : 32, row_bytes = kv.k_row_bytes() + (latent ? 0 : kv.v_row_bytes());
  const int64_t pages = std::max((int64_t{1} << 30) / row_bytes, 2 * sequences * keys) / kBlock;
  kv.slots = pages * kBlock;
  kv.k_stride = mixed ? kv.k_row_bytes() : int64_t{kv.kv_heads} * kv.k_dim;
  kv.v_stride = latent ? kv.k_stride : int64_t{kv.kv_heads} * kv.v_dim;
  // Noise as fp8 rows has scales of any size: numbers, but no NaN that matters for time.
  const Buffer plane_k = bench.random(static_cast<size_t>(kv.slots * kv.k_row_bytes()));
  const Buffer plane_v = latent ? Buffer() : bench.random(static_cast<size_t>(kv.slots * kv.v_row_bytes()));
  kv.k = plane_k.data();
  kv.v = latent ? plane_k.data() : plane_v.data();

  const int64_t columns = keys / kBlock, each = columns * sequences;
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  const int64_t variants = pages / each;
  const Buffer tables = bench.upload(order);
  std::vector<int32_t> seq_of(static_cast<size_t>(sequences)), begin(seq_of), end(seq_of.size(), static_cast<int32_t>(keys));
  std::iota(seq_of.begin(), seq_of.end(), 0);
  const Buffer seq = bench.upload(seq_of), from = bench.upload(begin), to = bench.upload(end);
  const Buffer q = bench.random(static_cast<size_t>(sequences * heads * kv.k_dim) * 2);
  const Buffer out = bench.ops().allocate(static_cast<size_t>(sequences * heads * kv.v_dim) * 2);
  const Buffer lse = bench.ops().allocate(static_cast<size_t>(sequences * heads) * 4);
  const auto tokens = static_cast<double>(sequences * keys);
  bench.report(name,
               {.bytes = tokens * static_cast<double>(row_bytes),
                .flops = tokens * static_cast<double>(heads) * 2 * (kv.k_dim + kv.v_dim)},
               [&](int i) {
                 bench.ops().attend({.q = ConstView(q.data(), DType::bf16, {1, sequences, heads, kv.k_dim}),
                                     .paged = {.kv = kv,
                                               .tables = reinterpret_cast<const int32_t*>(tables.data()) + i % variants * each,
                                               .table_stride = columns},
                                     .rows = {},
                                     .seq_of = reinterpret_cast<const int32_t*>(seq.data()),
                                     .begin = reinterpret_cast<const int32_t*>(from.data()),
                                     .end = reinterpret_cast<const int32_t*>(to.data()),
                                     .scale = static_cast<float>(1 / std::sqrt(192.0)),
                                     .out = View(out.data(), DType::bf16, {1, sequences, heads, kv.v_dim}),
                                     .lse = View(lse.data(), DType::f32, {1, sequences, heads})});
               });
}

void time_linear(Bench& bench, int64_t rows, int64_t out, int64_t in, DType dtype) {
  const std::string name = "linear " + std::string(to_string(dtype)) + " " + std::to_string(rows) + " x " + std::to_string(in) +
                           " -> " + std::to_string(out);
  if (!bench.wants(name)) return;
  const auto size = static_cast<int64_t>(size_of(dtype));
  // As many copies of the weights as do not fit into the cache together.
  const int64_t copies = std::clamp<int64_t>((int64_t{256} << 20) / (out * in * size), 1, 8);
  std::vector<std::unique_ptr<Matrix>> w;
  for (int64_t i = 0; i < copies; ++i) w.push_back(bench.matrix(out, in, dtype));
  const Buffer x = bench.random(static_cast<size_t>(rows * in * size)),
               y = bench.ops().allocate(static_cast<size_t>(rows * out * size));
  bench.report(name,
               {.bytes = static_cast<double>((out * in + rows * (in + out)) * size),
                .flops = 2.0 * static_cast<double>(rows * out * in),
                .float32 = dtype == DType::f32},
               [&](int i) {
                 bench.ops().linear(*w[static_cast<size_t>(i % copies)], ConstView(x.data(), dtype, {rows, in}), nullptr,
                                    View(y.data(), dtype, {rows, out}));
               });
}

/// One rank's share of the routed experts of a layer: 256 of them, 8 chosen, intermediate size 2048 over 8 ranks.
void time_experts(Bench& bench, int64_t tokens) {
  const std::string name = "experts 256 x [512, 7168], tokens " + std::to_string(tokens);
  if (!bench.wants(name)) return;
  constexpr int64_t kExperts = 256, kTopK = 8, kHidden = 7168, kOut = 512;
  std::vector<std::unique_ptr<Matrix>> w;
  for (int64_t e = 0; e < kExperts; ++e) w.push_back(bench.matrix(kOut, kHidden, DType::bf16));
  std::vector<int32_t> chosen;
  std::mt19937 random(3);
  std::vector<bool> touched(kExperts);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    std::sort(all.begin(), all.begin() + kTopK);
    chosen.insert(chosen.end(), all.begin(), all.begin() + kTopK);
    for (int64_t j = 0; j < kTopK; ++j) touched[static_cast<size_t>(all[static_cast<size_t>(j)])] = true;
  }
  const int64_t rows = tokens * kTopK;
  const Buffer experts = bench.upload(chosen), x = bench.random(static_cast<size_t>(tokens * kHidden) * 2);
  const Buffer y = bench.ops().allocate(static_cast<size_t>(rows * kOut) * 2);
  const Buffer source = bench.ops().allocate(static_cast<size_t>(rows) * 4),
               place = bench.ops().allocate(static_cast<size_t>(rows) * 4), offsets = bench.ops().allocate((kExperts + 1) * 4);
  const ExpertRows grouped{.source = reinterpret_cast<int32_t*>(source.data()),
                           .place = reinterpret_cast<int32_t*>(place.data()),
                           .offsets = reinterpret_cast<int32_t*>(offsets.data())};
  bench.ops().group_by_expert(ConstView(experts.data(), DType::i32, {tokens, kTopK}), kExperts, grouped);
  const auto used = static_cast<double>(std::count(touched.begin(), touched.end(), true));
  bench.report(name, {.bytes = used * kOut * kHidden * 2, .flops = 2.0 * static_cast<double>(rows * kOut * kHidden)}, [&](int) {
    bench.ops().expert_linear(w, ConstView(x.data(), DType::bf16, {tokens, kHidden}), grouped, true,
                              View(y.data(), DType::bf16, {rows, kOut}));
  });
}

void time_sample(Bench& bench, int64_t rows, const std::string& how, const SamplingRow& wanted) {
  const std::string name = "sample " + how + " x " + std::to_string(rows) + " of 151936";
  if (!bench.wants(name)) return;
  constexpr int64_t kVocab = 151936;
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(rows * kVocab));
  for (float& x : logits) x = normal(random);
  std::vector<SamplingRow> all(static_cast<size_t>(rows), wanted);
  std::vector<int32_t> which(static_cast<size_t>(rows));
  std::iota(which.begin(), which.end(), 0);
  const Buffer x = bench.upload(logits), sampling = bench.upload(all), row = bench.upload(which);
  const Buffer ids = bench.ops().allocate(static_cast<size_t>(rows) * 4);
  const size_t bytes = bench.ops().sampling_workspace_bytes(rows, kVocab);
  const Buffer work = bench.ops().allocate(bytes);
  bench.report(name, {.bytes = static_cast<double>(rows * kVocab * 4)}, [&](int) {
    bench.ops().sample({.logits = ConstView(x.data(), DType::f32, {rows, kVocab}),
                        .rows = {reinterpret_cast<const SamplingRow*>(sampling.data()), static_cast<size_t>(rows)},
                        .logit_row = reinterpret_cast<const int32_t*>(row.data()),
                        .penalty_tokens = {},
                        .biases = {},
                        .token_masks = {}},
                       View(work.data(), DType::u8, {static_cast<int64_t>(bytes)}), reinterpret_cast<int32_t*>(ids.data()));
  });
}

int run(const std::string& word) {
  Bench bench(word);
  bench.measure_ceilings();
  for (const std::string kind : {"mla", "mla-fp8", "gqa"})
    for (const int64_t keys : {1024, 8192})
      for (const int sequences : {1, 8, 32}) time_attend(bench, kind, sequences, keys);
  for (const int64_t rows : {1, 32, 128, 4096}) {
    time_linear(bench, rows, 2112, 7168, DType::bf16);
    time_linear(bench, rows, 7168, 16384, DType::bf16);
  }
  time_linear(bench, 4096, 4096, 4096, DType::f32);
  for (const int64_t tokens : {1, 32, 1024}) time_experts(bench, tokens);
  for (const int64_t rows : {1, 32}) {
    time_sample(bench, rows, "greedy", {});
    time_sample(bench, rows, "temperature", {.seed = 1, .temperature = 1});
    time_sample(bench, rows, "top_k top_p", {.seed = 1, .temperature = 1, .top_k = 50, .top_p = 0.9f});
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
