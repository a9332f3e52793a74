// Speed of the CPU attention kernels as a share of what the machine gives at the same moment: of its float32 multiply-add rate
// where arithmetic limits ("of_fma"), of its read bandwidth where memory does ("of_read"). Both bounds are measured around
// every case, and everything counts processor time of the best run: the machine may be shared.
//
//   weft_attend_bench [--benchmark_filter=...]     threads: WEFT_THREADS, 2 unless set

#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/attend.h"

namespace {

using namespace weft;

/// Processor time of all threads of this process.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Processor time of the best of a few runs: what others do to the machine only ever makes a run slower.
template <typename Body>
double best_seconds(const Body& body) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double start = cpu_seconds();
    body();
    const double seconds = cpu_seconds() - start;
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

Pool& pool() {
  static Pool pool(std::getenv("WEFT_THREADS") != nullptr ? std::atoi(std::getenv("WEFT_THREADS")) : 2);
  return pool;
}

// --- bounds of the machine ----------------------------------------------------------------------------------------------

// Sixteen chains hide the latency of a multiply-add. They start from different values, or the compiler would keep only one.
__attribute__((target("avx512f"))) float multiply_add_avx512(int64_t rounds) {
  __m512 sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(rounds % (i + 2)));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  float total = 0;
  for (const __m512& sum : sums) total += sum[0];
  return total;
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2(int64_t rounds) {
  __m256 sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(rounds % (i + 2)));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  float total = 0;
  for (const __m256& sum : sums) total += sum[0];
  return total;
}

/// Multiply-adds of float32 per second of processor time.
double multiply_adds_per_second() {
  constexpr int64_t kRounds = 500'000;
  const bool wide = __builtin_cpu_supports("avx512f");
  const double start = cpu_seconds();
  pool().run(pool().threads(),
             [&](int64_t, int) { benchmark::DoNotOptimize(wide ? multiply_add_avx512(kRounds) : multiply_add_avx2(kRounds)); });
  return static_cast<double>(kRounds * 12 * (wide ? 16 : 8) * pool().threads()) / (cpu_seconds() - start);
}

/// Bytes read from memory per second of processor time, while all threads read.
double bytes_per_second() {
  static const Buffer memory = Buffer::host(size_t{256} << 20);
  static const bool touched = (std::fill_n(memory.data(), memory.bytes(), std::byte{1}), true);
  benchmark::DoNotOptimize(touched);
  constexpr int64_t kPieces = 64;
  typedef uint64_t Line __attribute__((vector_size(64)));
  const int64_t lines = static_cast<int64_t>(memory.bytes() / sizeof(Line)) / kPieces;
  const double seconds = best_seconds([&] {
    pool().run(kPieces, [&](int64_t piece, int) {
      const auto* at = reinterpret_cast<const Line*>(memory.data()) + piece * lines;
      Line sums[4] = {};
      for (int64_t i = 0; i < lines; i += 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[j] += at[i + j];
      }
      benchmark::DoNotOptimize(sums);
    });
  });
  return static_cast<double>(memory.bytes()) / seconds;
}

// --- cases --------------------------------------------------------------------------------------------------------------

struct Case {
  DType dtype = DType::bf16;
  int heads = 16, kv_heads = 8, k_dim = 128, v_dim = 128;
  bool latent = false, paged = true;
  int64_t sequences = 1, rows = 1, keys = 4096;  ///< the last `rows` positions of each sequence of `keys` ask
  bool fp8 = false;                              ///< keys and values, instead of `dtype`
  KvFormat format = KvFormat::elements;
  bool invariant = false;

  DType kv_dtype() const { return fp8 ? DType::f8_e4m3 : dtype; }
  /// Elements of a row of keys.
  int64_t k_elements() const {
    return format == KvFormat::fp8_ds_mla ? fp8_ds_mla_row_bytes(v_dim, k_dim - v_dim) : int64_t{kv_heads} * k_dim;
  }
};

Buffer random_elements(int64_t count, DType dtype) {
  Buffer buffer = Buffer::host(static_cast<size_t>(count) * size_of(dtype));
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-23f - 1;
    if (dtype == DType::f8_e4m3) {
      reinterpret_cast<f8_e4m3*>(buffer.data())[i] = f8_e4m3(value);
    } else if (dtype == DType::bf16) {
      reinterpret_cast<bf16*>(buffer.data())[i] = bf16(value);
    } else {
      reinterpret_cast<float*>(buffer.data())[i] = value;
    }
  }
  return buffer;
}

/// Makes random bytes of fp8_ds_mla rows numbers of size one.
void set_scales(const Case& c, int64_t slots, std::byte* rows) {
  for (int64_t slot = 0; slot < slots; ++slot) {
    std::byte* at = rows + slot * c.k_elements() + c.v_dim;
    for (int d = 0; d < c.v_dim; d += kLatentScaleGroup, at += sizeof(float)) {
      const float scale = 0.9f;
      std::memcpy(at, &scale, sizeof scale);
    }
    for (int d = c.v_dim; d < c.k_dim; ++d, at += sizeof(bf16)) {
      const bf16 value(0.01f * static_cast<float>(d - c.v_dim));
      std::memcpy(at, &value, sizeof value);
    }
  }
}

void attend(benchmark::State& state, const Case& c) {
  const int64_t rows = c.sequences * c.rows, slots = (c.sequences * c.keys + 15) / 16 * 16;
  const Buffer q = random_elements(rows * c.heads * c.k_dim, c.dtype);
  const Buffer k = random_elements(slots * c.k_elements(), c.kv_dtype());
  const Buffer v = c.latent ? Buffer() : random_elements(slots * c.kv_heads * c.v_dim, c.kv_dtype());
  if (c.format == KvFormat::fp8_ds_mla) set_scales(c, slots, k.data());
  const Buffer out = Buffer::host(static_cast<size_t>(rows * c.heads * c.v_dim) * size_of(c.dtype));
  const Buffer lse = Buffer::host(static_cast<size_t>(rows * c.heads) * sizeof(float));
  void* values = c.latent ? k.data() : v.data();

  const int64_t columns = c.keys / 16;
  std::vector<int32_t> table(static_cast<size_t>(c.sequences * columns)), seq_of, begin, end;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  double visits = 0;
  for (int64_t s = 0; s < c.sequences; ++s) {
    for (int64_t row = 0; row < c.rows; ++row) {
      const int64_t base = c.paged ? 0 : s * c.keys;
      seq_of.push_back(static_cast<int32_t>(s));
      begin.push_back(static_cast<int32_t>(base));
      end.push_back(static_cast<int32_t>(base + c.keys - c.rows + 1 + row));
      visits += end.back() - begin.back();
    }
  }

  Attention args{.q = {q.data(), c.dtype, {1, rows, c.heads, c.k_dim}},
                 .paged = {},
                 .rows = {},
                 .seq_of = seq_of.data(),
                 .begin = begin.data(),
                 .end = end.data(),
                 .scale = 1 / std::sqrt(static_cast<float>(c.k_dim)),
                 .invariant = c.invariant,
                 .out = {out.data(), c.dtype, {1, rows, c.heads, c.v_dim}},
                 .lse = {lse.data(), DType::f32, {1, rows, c.heads}}};
  const int64_t v_stride = c.latent ? c.k_elements() : int64_t{c.kv_heads} * c.v_dim;
  if (c.paged) {
    args.paged = {.kv = {.k = k.data(),
                         .v = values,
                         .k_stride = c.k_elements(),
                         .v_stride = v_stride,
                         .slots = slots,
                         .kv_heads = c.kv_heads,
                         .k_dim = c.k_dim,
                         .v_dim = c.v_dim,
                         .dtype = c.kv_dtype(),
                         .format = c.format},
                  .tables = table.data(),
                  .table_stride = columns};
  } else {
    args.rows = {.k = {k.data(), c.kv_dtype(), {slots, c.kv_heads, c.k_dim}},
                 .v = {values, c.kv_dtype(), {slots, c.kv_heads, c.v_dim}, {v_stride, c.latent ? c.k_dim : c.v_dim, 1}}};
  }

  cpu::AttendScratch scratch;
  cpu::attend(pool(), scratch, args);
  const double flops_before = multiply_adds_per_second(), reads_before = bytes_per_second();
  double seconds = 1e9;
  for (auto _ : state) {
    const double start = cpu_seconds();
    cpu::attend(pool(), scratch, args);
    seconds = std::min(seconds, cpu_seconds() - start);
  }
  const double flops = std::max(flops_before, multiply_adds_per_second()), reads = std::max(reads_before, bytes_per_second());

  const double work = visits * c.heads * (c.k_dim + c.v_dim);
  const double bytes = static_cast<double>(c.sequences * c.keys * (c.k_elements() + (c.latent ? 0 : c.kv_heads * c.v_dim))) *
                       static_cast<double>(size_of(c.kv_dtype()));
  state.counters["of_fma"] = work / seconds / flops;
  state.counters["of_read"] = bytes / seconds / reads;
  state.counters["fma_bound_GFLOP/s"] = 2e-9 * flops;
  state.counters["read_bound_GB/s"] = 1e-9 * reads;
  state.counters["cpu_us"] = 1e6 * seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const auto add = [](const char* name, const Case& c) {
    benchmark::RegisterBenchmark(name, [c](benchmark::State& state) { attend(state, c); })->UseRealTime()->MinTime(0.3);
  };
  add("gqa_prefill/512", {.rows = 512, .keys = 512});
  add("gqa_prefill/4096", {.rows = 4096});
  add("gqa_prefill_rows/4096", {.paged = false, .rows = 4096});
  add("gqa_prefill_f32/4096", {.dtype = DType::f32, .rows = 4096});
  add("gqa_chunk_256_of_4096", {.rows = 256});
  add("gqa_decode/1x512", {.keys = 512});
  add("gqa_decode/1x4096", {});
  add("gqa_decode/4x4096", {.sequences = 4});
  add("gqa_decode/16x4096", {.sequences = 16});
  add("gqa_decode_32_of_8/4x4096", {.heads = 32, .sequences = 4});
  add("gqa_decode_64_of_8/4x4096", {.heads = 64, .sequences = 4});
  add("gqa_verify_4_rows/4x4096", {.sequences = 4, .rows = 4});
  add("gqa_decode_f32/4x4096", {.dtype = DType::f32, .sequences = 4});
  add("gqa_decode_invariant/4x4096", {.sequences = 4, .invariant = true});
  add("gqa_decode_fp8/1x4096", {.fp8 = true});
  add("gqa_decode_fp8/4x4096", {.sequences = 4, .fp8 = true});
  add("gqa_decode_32_of_8_fp8/4x4096", {.heads = 32, .sequences = 4, .fp8 = true});
  add("gqa_decode_64_of_8_fp8/4x4096", {.heads = 64, .sequences = 4, .fp8 = true});
  add("gqa_verify_4_rows_fp8/4x4096", {.sequences = 4, .rows = 4, .fp8 = true});
  add("gqa_decode_f32_fp8/4x4096", {.dtype = DType::f32, .sequences = 4, .fp8 = true});
  add("gqa_chunk_256_of_4096_fp8", {.rows = 256, .fp8 = true});
  const Case mla{.heads = 16, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .latent = true};
  for (int64_t sequences : {1, 4, 16}) {
    Case c = mla;
    c.sequences = sequences;
    const std::string size = std::to_string(sequences) + "x4096";
    for (const int heads : {16, 128}) {
      if (heads == 128 && sequences > 1) continue;
      c.heads = heads;
      const std::string name = heads == 16 ? "mla_decode" : "mla_decode_128_heads";
      c.fp8 = false, c.format = KvFormat::elements;
      add((name + "/" + size).c_str(), c);
      c.fp8 = true;
      add((name + "_fp8/" + size).c_str(), c);
      c.format = KvFormat::fp8_ds_mla;
      add((name + "_fp8_ds_mla/" + size).c_str(), c);
    }
  }
  add("mla_prefill/512", {.heads = 16, .kv_heads = 16, .k_dim = 192, .v_dim = 128, .paged = false, .rows = 512, .keys = 512});
  add("mla_prefill/4096", {.heads = 16, .kv_heads = 16, .k_dim = 192, .v_dim = 128, .paged = false, .rows = 4096});
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
