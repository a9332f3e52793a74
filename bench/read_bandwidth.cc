// Memory read bandwidth of 1 and 2 threads over huge pages, the bound of a decode step: prints "GB/s GB/s".
//
//   weft_read_bandwidth [SECONDS of each, default 0.5]
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Far more than any cache of the machine holds.
constexpr size_t kBytes = size_t{1} << 30;
// 8 independent sums of a cache line each hide the latency of the adds.
constexpr size_t kSums = 8;
typedef uint64_t Line __attribute__((vector_size(64)));
constexpr size_t kLineWords = sizeof(Line) / sizeof(uint64_t);

// The best of the machine's vector units, chosen when the program starts.
__attribute__((target_clones("default", "avx2", "avx512f"))) uint64_t sum(const uint64_t* words, size_t count) {
  const Line* lines = reinterpret_cast<const Line*>(words);
  Line sums[kSums] = {};
  for (size_t i = 0; i + kSums <= count / kLineWords; i += kSums) {
    for (size_t s = 0; s < kSums; ++s) sums[s] += lines[i + s];
  }
  uint64_t total = 0;
  for (size_t s = 0; s < kSums; ++s) {
    for (size_t i = 0; i < kLineWords; ++i) total += sums[s][i];
  }
  return total;
}

double bandwidth(const uint64_t* words, int threads, double seconds, std::atomic<uint64_t>& sink) {
  const size_t share = kBytes / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::atomic<uint64_t> bytes{0};
  const Clock::time_point start = Clock::now(),
                          end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      // Slices small enough to notice the end, large enough not to matter.
      constexpr size_t kSlice = size_t{1} << 20;
      for (size_t at = 0; Clock::now() < end; at = (at + kSlice) % (share - kSlice)) {
        sink += sum(words + static_cast<size_t>(t) * share + at, kSlice);
        bytes += kSlice * sizeof(uint64_t);
      }
    });
  }
  for (std::thread& thread : team) thread.join();
  return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("weft_read_bandwidth: mmap of 1 GiB");
    return 1;
  }
  madvise(memory, kBytes, MADV_HUGEPAGE);
  auto* words = static_cast<uint64_t*>(memory);
  std::fill(words, words + kBytes / sizeof(uint64_t), 1);
  std::atomic<uint64_t> sink{0};
  const double one = bandwidth(words, 1, seconds, sink), two = bandwidth(words, 2, seconds, sink);
  std::printf("%.1f %.1f\n", one, two);
  return sink == 0;
}
