#include "comm/thread_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/spin_wait.h"

namespace weft {
namespace {

constexpr size_t kCacheLine = 64;

/// Where the ranks of a group meet, twice per call: enter() before they touch one another's memory, leave() after it.
///
/// An abort and the end of an enter() are ordered by one word, so that all ranks see the same outcome: either everyone gets in
/// or nobody does. Once in, nothing keeps a rank from leaving, so leave() waits for all even when the group was aborted
/// meanwhile: a peer may still be reading this rank's memory.
class Barrier {
 public:
  explicit Barrier(int ranks) : ranks_(ranks), spins_(spins_for(ranks)) {}

  /// True once all ranks are here, false if the group was aborted before.
  bool enter() { return meet(true); }
  void leave() { meet(false); }

  void abort() noexcept {
    word_.fetch_or(kAborted, std::memory_order_acq_rel);
    word_.notify_all();
  }
  bool is_aborted() const { return (word_.load(std::memory_order_acquire) & kAborted) != 0; }

 private:
  static constexpr uint32_t kAborted = 1, kTurn = 2;

  bool meet(bool abortable) {
    uint32_t word = word_.load(std::memory_order_acquire);
    const uint32_t turn = word / kTurn;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) return release(word, abortable);
    while (word / kTurn == turn) {
      if (abortable && (word & kAborted) != 0) return false;
      word = wait_for_change(word_, word, spins_);
    }
    return true;
  }

  /// The last rank to arrive opens the barrier.
  bool release(uint32_t word, bool abortable) {
    arrived_.store(0, std::memory_order_relaxed);
    do {
      if (abortable && (word & kAborted) != 0) return false;
    } while (!word_.compare_exchange_weak(word, word + kTurn, std::memory_order_acq_rel, std::memory_order_acquire));
    word_.notify_all();
    return true;
  }

  const int ranks_, spins_;
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<uint32_t> word_{0};  ///< the count of meetings, times kTurn, and kAborted
};

enum class Call : uint8_t { all_gather, all_to_all, all_reduce_sum };

/// What a rank shows its peers for the length of a call.
struct alignas(kCacheLine) Slot {
  Call call{};
  DType dtype{};
  size_t bytes = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::atomic<bool> joined{false};
};

void copy_bytes(const std::byte* in, size_t bytes, std::byte* out) {
  if (bytes > 0 && in != out) std::memcpy(out, in, bytes);
}

/// Adds elements [first, first + kCount) of all ranks and writes the sum to all. A constant count lets the loops be vectors.
template <typename T, int kCount>
void sum_run(const std::vector<Slot>& slots, int64_t first) {
  const auto input = [&](size_t rank) { return reinterpret_cast<const T*>(slots[rank].in) + first; };
  float sum[kCount];
  T rounded[kCount];
  for (int i = 0; i < kCount; ++i) sum[i] = static_cast<float>(input(0)[i]);
  for (size_t rank = 1; rank < slots.size(); ++rank) {
    const T* in = input(rank);
    for (int i = 0; i < kCount; ++i) sum[i] += static_cast<float>(in[i]);
  }
  for (int i = 0; i < kCount; ++i) rounded[i] = T(sum[i]);
  for (const Slot& slot : slots) std::memcpy(reinterpret_cast<T*>(slot.out) + first, rounded, sizeof(rounded));
}

/// This rank's share of a sum: whole cache lines where there are enough, so that ranks do not write the same one.
template <typename T>
void sum_share(const std::vector<Slot>& slots, int rank, int64_t count) {
  constexpr int64_t kLine = kCacheLine / sizeof(T);
  const auto ranks = static_cast<int64_t>(slots.size());
  const int64_t lines = (count + kLine - 1) / kLine, share = (lines + ranks - 1) / ranks * kLine;
  int64_t first = std::min(rank * share, count);
  const int64_t last = std::min(first + share, count);
  for (; first + 256 <= last; first += 256) sum_run<T, 256>(slots, first);
  for (; first + 16 <= last; first += 16) sum_run<T, 16>(slots, first);
  for (; first < last; ++first) sum_run<T, 1>(slots, first);
}

}  // namespace

struct ThreadGroup::Shared {
  explicit Shared(int size) : slots(static_cast<size_t>(size)), barrier(size) {}
  std::vector<Slot> slots;
  Barrier barrier;
};

class ThreadGroup::Rank final : public Communicator {
 public:
  Rank(Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_.slots.size()); }

  void all_gather(ConstView in, View out) override {
    WEFT_CHECK(in.is_contiguous() && out.is_contiguous());
    WEFT_CHECK_EQ(in.bytes() * shared_.slots.size(), out.bytes()) << "all_gather on rank " << rank_;
    meet(Call::all_gather, in, out, [&](const Slot& own) {
      for (size_t peer = 0; peer < shared_.slots.size(); ++peer) {
        copy_bytes(shared_.slots[peer].in, own.bytes, own.out + peer * own.bytes);
      }
    });
  }

  void all_to_all(ConstView in, View out) override {
    WEFT_CHECK(in.is_contiguous() && out.is_contiguous());
    WEFT_CHECK_EQ(in.bytes(), out.bytes()) << "all_to_all on rank " << rank_;
    WEFT_CHECK_EQ(in.size(0), size()) << "all_to_all on rank " << rank_;
    meet(Call::all_to_all, in, out, [&](const Slot& own) {
      const size_t bytes = own.bytes / shared_.slots.size();
      for (size_t peer = 0; peer < shared_.slots.size(); ++peer) {
        copy_bytes(shared_.slots[peer].in + static_cast<size_t>(rank_) * bytes, bytes, own.out + peer * bytes);
      }
    });
  }

  void all_reduce_sum(View data) override {
    WEFT_CHECK(data.is_contiguous());
    WEFT_CHECK(data.dtype() == DType::f32 || data.dtype() == DType::bf16) << "all_reduce_sum of " << to_string(data.dtype());
    meet(Call::all_reduce_sum, data, data, [&](const Slot&) {
      if (size() == 1) return;
      if (data.dtype() == DType::f32) {
        sum_share<float>(shared_.slots, rank_, data.count());
      } else {
        sum_share<bf16>(shared_.slots, rank_, data.count());
      }
    });
  }

  void abort() noexcept override { shared_.barrier.abort(); }

 private:
  /// Runs `body` while all ranks of the group are in this call and show their memory.
  template <typename Body>
  void meet(Call call, ConstView in, View out, Body body) {
    Slot& own = shared_.slots[static_cast<size_t>(rank_)];
    if (shared_.barrier.is_aborted()) throw_aborted();
    own.call = call;
    own.dtype = in.dtype();
    own.bytes = in.bytes();
    own.in = static_cast<const std::byte*>(in.data());
    own.out = static_cast<std::byte*>(out.data());
    if (!shared_.barrier.enter()) throw_aborted();
    for (const Slot& peer : shared_.slots) {
      WEFT_CHECK_EQ(static_cast<int>(own.call), static_cast<int>(peer.call)) << "ranks make different collective calls";
      WEFT_CHECK_EQ(own.bytes, peer.bytes) << "ranks call a collective with different sizes";
      WEFT_CHECK(own.dtype == peer.dtype) << to_string(own.dtype) << " vs " << to_string(peer.dtype);
    }
    body(own);
    shared_.barrier.leave();
  }

  [[noreturn]] void throw_aborted() const {
    throw SystemError("the group of ranks was aborted: another rank failed, seen by rank {} of {}", rank_, size());
  }

  Shared& shared_;
  const int rank_;
};

ThreadGroup::ThreadGroup(int size) {
  WEFT_CHECK_GE(size, 1);
  shared_ = std::make_unique<Shared>(size);
}

ThreadGroup::~ThreadGroup() = default;

int ThreadGroup::size() const { return static_cast<int>(shared_->slots.size()); }

std::unique_ptr<Communicator> ThreadGroup::join(int rank) {
  WEFT_CHECK(rank >= 0 && rank < size()) << "rank " << rank << " of " << size();
  WEFT_CHECK(!shared_->slots[static_cast<size_t>(rank)].joined.exchange(true)) << "rank " << rank << " joined twice";
  return std::make_unique<Rank>(*shared_, rank);
}

void ThreadGroup::abort() noexcept { shared_->barrier.abort(); }

}  // namespace weft
