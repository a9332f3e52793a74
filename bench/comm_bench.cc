// What it costs that ranks meet: collectives of a thread group, by ranks and size, and a run of the rank team.
//
//   weft_comm_bench [--benchmark_filter=...]
//
// The time is of one call on rank 0. More ranks than cores measures sleeping and waking, not spinning.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "comm/thread_group.h"
#include "engine/rank_team.h"

namespace weft {
namespace {

constexpr int kCalls = 1000;  // in one run of the team, so that starting it does not count

/// Times call(communicator, buffer, bytes); the buffer holds ranks * bytes of zeros.
template <typename Call>
void time_call(benchmark::State& state, Call call) {
  const int ranks = static_cast<int>(state.range(0));
  const int64_t bytes = state.range(1);
  ThreadGroup group(ranks);
  RankTeam team(ranks, [&group] { group.abort(); });
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::vector<std::byte>> in(static_cast<size_t>(ranks)), out(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    communicators.push_back(group.join(rank));
    in[static_cast<size_t>(rank)].resize(static_cast<size_t>(ranks * bytes));
    out[static_cast<size_t>(rank)].resize(static_cast<size_t>(ranks * bytes));
  }
  const RankTeam::Job job = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    for (int i = 0; i < kCalls; ++i) call(*communicators[r], in[r].data(), out[r].data(), bytes);
  };
  for (auto _ : state) team.run(job);
  state.counters["per_call"] =
      benchmark::Counter(kCalls, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void all_gather(benchmark::State& state) {
  time_call(state, [](Communicator& comm, std::byte* in, std::byte* out, int64_t bytes) {
    comm.all_gather(ConstView(in, DType::u8, {bytes}), View(out, DType::u8, {comm.size(), bytes}));
  });
}

void all_to_all(benchmark::State& state) {
  time_call(state, [](Communicator& comm, std::byte* in, std::byte* out, int64_t bytes) {
    comm.all_to_all(ConstView(in, DType::u8, {comm.size(), bytes}), View(out, DType::u8, {comm.size(), bytes}));
  });
}

template <typename T>
void all_reduce_sum(benchmark::State& state) {
  time_call(state, [](Communicator& comm, std::byte* in, std::byte*, int64_t bytes) {
    comm.all_reduce_sum(View(in, dtype_of<T>::value, {bytes / static_cast<int64_t>(sizeof(T))}));
  });
}

void team_run(benchmark::State& state) {
  RankTeam team(static_cast<int>(state.range(0)), [] {});
  const RankTeam::Job job = [](int) {};
  for (auto _ : state) team.run(job);
}

// Real time: what matters is when the last rank is done, whichever thread works.
void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"ranks", "bytes"})->UseRealTime();
  for (const int64_t ranks : {2, 8}) {
    for (const int64_t bytes : {0, 16 << 10, 256 << 10}) bench->Args({ranks, bytes});
  }
}

BENCHMARK(all_gather)->Apply(sizes);
BENCHMARK(all_to_all)->Apply(sizes);
BENCHMARK(all_reduce_sum<float>)->Apply(sizes);
BENCHMARK(all_reduce_sum<bf16>)->Apply(sizes);
BENCHMARK(team_run)->ArgName("ranks")->Arg(2)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
