// ShardLayout as a plain value inside a kernel: every member function must answer there as it does on the host. A program of
// its own, so that a GPU machine needs the CUDA toolkit and nothing else. Exit: 0 passed, 1 failed, 77 no GPU.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "layout/shard_layout.h"

namespace weft {
namespace {

/// What a layout says about one position, seen by one rank.
struct Answers {
  int owner;
  int64_t local_index, local_count, padded_count, position;
  Range visible, window;
};

constexpr int64_t kWindow = 37;

constexpr Answers ask(const ShardLayout& layout, int64_t pos, int rank) {
  return {.owner = layout.owner(pos),
          .local_index = layout.local_index(pos),
          .local_count = layout.local_count(pos, rank),
          .padded_count = layout.padded_count(pos),
          .position = layout.position(rank, pos),
          .visible = layout.visible_keys(pos, ShardLayout::kNoWindow, rank),
          .window = layout.visible_keys(pos, kWindow, rank)};
}

bool same(const Answers& a, const Answers& b) {
  return a.owner == b.owner && a.local_index == b.local_index && a.local_count == b.local_count &&
         a.padded_count == b.padded_count && a.position == b.position && a.visible == b.visible && a.window == b.window;
}

__global__ void ask_all(ShardLayout layout, int64_t first, int positions, Answers* answers) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= positions * layout.ranks) return;
  answers[i] = ask(layout, first + i / layout.ranks, i % layout.ranks);
}

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// The number of wrong answers for positions [first, first + positions) on all ranks.
int wrong_answers(const ShardLayout& layout, int64_t first, int positions, Answers* on_device) {
  const int count = positions * layout.ranks;
  ask_all<<<(count + 127) / 128, 128>>>(layout, first, positions, on_device);
  require(cudaGetLastError());
  std::vector<Answers> answers(static_cast<size_t>(count));
  require(cudaMemcpy(answers.data(), on_device, answers.size() * sizeof(Answers), cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < count; ++i)
    wrong += !same(answers[static_cast<size_t>(i)], ask(layout, first + i / layout.ranks, i % layout.ranks));
  if (wrong != 0)
    std::printf("FAILED: %d of %d answers differ, W %d, S %d, positions from %lld\n", wrong, count, layout.ranks,
                layout.interleave, static_cast<long long>(first));
  return wrong;
}

int run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 77;
  }
  constexpr int kMaxRanks = 16, kPositions = 1000;
  Answers* on_device = nullptr;
  require(cudaMalloc(&on_device, sizeof(Answers) * kMaxRanks * kPositions));
  int layouts = 0, wrong = 0;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int interleave : {1, 2, 3, 4, 16, 64}) {
      // The second start is past 2^31 rows, where 32-bit arithmetic would show.
      for (const int64_t first : {int64_t{0}, int64_t{3'000'000'017}})
        wrong += wrong_answers({.ranks = ranks, .interleave = interleave}, first, kPositions, on_device);
      ++layouts;
    }
  }
  require(cudaFree(on_device));
  std::printf("%s: %d layouts on the GPU answer as on the host\n", wrong == 0 ? "PASSED" : "FAILED", layouts);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weft

int main() { return weft::run(); }
