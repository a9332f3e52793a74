#include "comm/mpi_group.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/spin_wait.h"

namespace weft {
namespace {

/// What one meeting moves per process and direction: large enough that its latency does not show, small beside any model.
constexpr int64_t kMeetingBytes = int64_t{1} << 20;
constexpr int64_t kAlign = 64;
constexpr int kTags = 1 << 20;
constexpr std::array<const char*, 2> kSizeVariables = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

void check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw SystemError("{} failed: {}", what, std::string_view(text, static_cast<size_t>(length)));
}

/// Waits between two looks at MPI, which has nothing to sleep on: first not at all, then for ever longer.
class Pauses {
 public:
  Pauses(int spins, std::chrono::microseconds longest) : spins_(spins), longest_(longest) {}

  void pause() {
    constexpr int kYields = 100;
    ++count_;
    if (count_ <= spins_) return spin_pause();
    if (count_ <= spins_ + kYields) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (count_ % 16 == 0) sleep_ = std::min(2 * sleep_, longest_);
  }

 private:
  const int spins_;
  const std::chrono::microseconds longest_;
  std::chrono::microseconds sleep_{20};
  int count_ = 0;
};
constexpr std::chrono::microseconds kLongestInCall{200}, kLongestIdle{1000};

bool all_done(std::span<MPI_Request> requests) {
  int done = 0;
  check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  return done != 0;
}

int64_t round_up(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
int64_t round_down(int64_t n) { return n / kAlign * kAlign; }

enum class Call : uint32_t { all_gather, all_to_all, all_reduce_sum };

/// First in each message: what the sender is at.
struct alignas(kAlign) Header {
  Call call{};
  DType dtype{};
  uint64_t bytes = 0;
  int64_t meeting = 0;
};
static_assert(sizeof(Header) == kAlign);

/// A piece of a call: bytes [at, at + bytes) of each slice.
struct Piece {
  int64_t at = 0, bytes = 0;
};

}  // namespace

struct Processes::Parts {
  int index = 0, count = 1;
  MPI_Comm orders = MPI_COMM_NULL;
  std::vector<MPI_Request> order_requests;
  bool left_in_order = false;

  std::mutex mutex;  ///< guards all below but the watch
  uint64_t next_group = 0;
  std::map<uint64_t, MpiGroup::Shared*> groups;
  std::map<uint64_t, int64_t> early_aborts;  ///< of groups that this process has not made yet
  std::function<void(const std::string&)> on_loss;
  bool stuck = false;  ///< MPI still has a request that will not end

  std::unique_ptr<PeerWatch> watch;

  void hear_loss(const std::string& why);
  void hear_abort(uint64_t group, int64_t after);
  void throw_if_lost() const {
    if (const std::string why = watch->loss(); !why.empty()) throw SystemError("{}", why);
  }
};

/// What the ranks of one process share: buffers, and the place where they meet.
class MpiGroup::Shared {
 public:
  Shared(Processes::Parts& processes, const Members& members);
  ~Shared();

  int size() const { return size_; }
  bool is_local(int rank) const { return own_ != nullptr && rank >= own_->first && rank < own_->first + own_->count; }
  bool mark_joined(int rank) { return !joined_[static_cast<size_t>(rank)].exchange(true); }

  /// The most bytes of a slice that fit into a meeting: equal in all processes.
  int64_t piece_bytes(Call call) const {
    return round_down(kMeetingBytes / (call == Call::all_to_all ? int64_t{size_} * most_local_ : size_));
  }

  /// Where `rank`, of this process, puts bytes for `to`. Without all_to_all all of the group get the same.
  std::byte* outgoing(int64_t meeting, Call call, int rank, int to, int64_t bytes) {
    const Part& part = call == Call::all_to_all ? part_of(to) : *own_;
    return slice(send_[meeting % 2], part, call, rank - own_->first, to - part.first, part.count, bytes);
  }
  /// Where the bytes are that `from` has put there for `rank`.
  const std::byte* incoming(int64_t meeting, Call call, int from, int rank, int64_t bytes) {
    const Part& part = part_of(from);
    auto& buffers = &part == own_ ? send_ : receive_;
    return slice(buffers[meeting % 2], part, call, from - part.first, rank - own_->first, own_->count, bytes);
  }

  /// An abort came before this meeting.
  bool is_over(int64_t meeting) const { return meeting > last_.load(std::memory_order_acquire); }
  /// Says that `rank` has put its bytes there, and returns when those of all have come. False once the group is aborted.
  bool meet(int rank, const Header& header, int64_t piece_bytes);

  /// No meeting after `meeting` will end. Without a number: after those that have.
  void abort(std::optional<int64_t> meeting, const std::string& why) noexcept;
  /// Aborts it here and elsewhere.
  void abort_all() noexcept;
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  /// The ranks [first, first + count) of the group, in one process.
  struct Part {
    int process = 0, first = 0, count = 0;
    size_t region = 0;  ///< of its messages in a buffer
  };

  const Part& part_of(int rank) const { return parts_[part_of_[static_cast<size_t>(rank)]]; }
  std::byte* slice(std::vector<std::byte>& buffer, const Part& part, Call call, int from, int to, int targets, int64_t bytes) {
    const int64_t index = call == Call::all_to_all ? int64_t{from} * targets + to : from;
    return buffer.data() + part.region + sizeof(Header) + index * bytes;
  }
  static int64_t message_bytes(Call call, int senders, int targets, int64_t bytes) {
    return int64_t{sizeof(Header)} + bytes * senders * (call == Call::all_to_all ? targets : 1);
  }

  bool exchange(const Header& header, int64_t piece_bytes);
  void give_up();

  Processes::Parts& processes_;
  const int size_;
  uint64_t id_ = 0;
  int tag_ = 0, most_local_ = 0, spins_ = 0;
  std::vector<Part> parts_;
  std::vector<size_t> part_of_;
  const Part* own_ = nullptr;
  std::vector<std::atomic<bool>> joined_;

  // Two buffers in turn: a rank may fill the next one while a slower one still reads what came. It cannot fill the one after
  // before that rank has come to the meeting between.
  std::array<std::vector<std::byte>, 2> send_, receive_;
  std::vector<MPI_Request> requests_;
  size_t receives_ = 0;
  bool stuck_ = false;

  std::vector<Header> here_;  ///< what each rank of this process is at
  std::atomic<int> arrived_{0};
  std::atomic<int64_t> done_{0}, last_{INT64_MAX};  ///< meetings that ended; the last that may
  std::atomic<uint32_t> changes_{0};                ///< of the two
  mutable std::mutex mutex_;                        ///< guards why_
  std::string why_;
};

MpiGroup::Shared::Shared(Processes::Parts& processes, const Members& members)
    : processes_(processes),
      size_(members.size),
      spins_(spins_for(members.size)),
      joined_(static_cast<size_t>(std::max(members.size, 1))) {
  WEFT_CHECK(members.first >= 0 && members.size >= 1 && members.per_process >= 1);
  WEFT_CHECK_LE(members.first + members.size, members.per_process * processes.count);
  size_t region = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const int process = (members.first + rank) / members.per_process;
    if (parts_.empty() || parts_.back().process != process) parts_.push_back({.process = process, .first = rank});
    part_of_.push_back(parts_.size() - 1);
    most_local_ = std::max(most_local_, ++parts_.back().count);
  }
  for (Part& part : parts_) {
    if (part.process == processes.index) own_ = &part;
  }
  if (own_ != nullptr) {
    // A message of `count` ranks has `count` slices to a rank of the other side, and those share the bytes of a meeting. One to
    // another process has this one's slices instead, so a region has room for the larger of the two.
    for (Part& part : parts_) {
      part.region = region;
      region += sizeof(Header) + static_cast<size_t>(round_up(kMeetingBytes / size_ * std::max(part.count, own_->count)));
    }
    for (auto* buffers : {&send_, &receive_})
      for (auto& buffer : *buffers) buffer.resize(region);
    requests_.assign(2 * (parts_.size() - 1), MPI_REQUEST_NULL);
    here_.resize(static_cast<size_t>(own_->count));
  }

  const std::lock_guard lock(processes_.mutex);
  id_ = processes_.next_group++;
  tag_ = static_cast<int>(id_ % kTags);
  processes_.groups[id_] = this;
  if (const auto early = processes_.early_aborts.extract(id_)) abort(early.mapped(), "");
  if (const std::string why = processes_.watch->loss(); !why.empty()) abort(std::nullopt, why);
}

MpiGroup::Shared::~Shared() {
  const std::lock_guard lock(processes_.mutex);
  processes_.groups.erase(id_);
  if (!stuck_) return;
  // MPI may still write here. The process is about to end.
  processes_.stuck = true;
  new auto(std::pair{std::move(send_), std::move(receive_)});
}

bool MpiGroup::Shared::meet(int rank, const Header& header, int64_t piece_bytes) {
  const int64_t meeting = header.meeting;
  if (is_over(meeting)) return false;
  here_[static_cast<size_t>(rank - own_->first)] = header;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == own_->count) {
    arrived_.store(0, std::memory_order_relaxed);
    if (!exchange(header, piece_bytes)) return false;
    done_.store(meeting, std::memory_order_release);
    changes_.fetch_add(1, std::memory_order_acq_rel);
    changes_.notify_all();
    return true;
  }
  for (uint32_t seen = changes_.load(std::memory_order_acquire);; seen = wait_for_change(changes_, seen, spins_)) {
    if (done_.load(std::memory_order_acquire) >= meeting) return true;
    if (is_over(meeting)) return false;
  }
}

bool MpiGroup::Shared::exchange(const Header& header, int64_t piece_bytes) {
  const auto check_same = [&](const Header& other) {
    WEFT_CHECK_EQ(static_cast<int>(header.call), static_cast<int>(other.call)) << "ranks make different collective calls";
    WEFT_CHECK_EQ(header.bytes, other.bytes) << "ranks call a collective with different sizes";
    WEFT_CHECK(header.dtype == other.dtype) << to_string(header.dtype) << " vs " << to_string(other.dtype);
    WEFT_CHECK_EQ(header.meeting, other.meeting) << "ranks have met a different number of times";
  };
  for (const Header& other : here_) check_same(other);

  auto& send = send_[header.meeting % 2];
  auto& receive = receive_[header.meeting % 2];
  size_t next = 0;
  for (const Part& part : parts_) {
    if (&part == own_) continue;
    const int64_t bytes = message_bytes(header.call, part.count, own_->count, piece_bytes);
    check(MPI_Irecv(receive.data() + part.region, static_cast<int>(bytes), MPI_BYTE, part.process, tag_, MPI_COMM_WORLD,
                    &requests_[next++]),
          "MPI_Irecv");
  }
  receives_ = next;
  for (const Part& part : parts_) {
    if (&part == own_) continue;
    const Part& from = header.call == Call::all_to_all ? part : *own_;
    std::memcpy(send.data() + from.region, &header, sizeof(header));
    const int64_t bytes = message_bytes(header.call, own_->count, part.count, piece_bytes);
    check(MPI_Isend(send.data() + from.region, static_cast<int>(bytes), MPI_BYTE, part.process, tag_, MPI_COMM_WORLD,
                    &requests_[next++]),
          "MPI_Isend");
  }
  Pauses pauses(spins_, kLongestInCall);
  while (!all_done(requests_)) {
    if (is_over(header.meeting)) {
      give_up();
      return false;
    }
    pauses.pause();
  }
  for (const Part& part : parts_) {
    if (&part == own_) continue;
    Header other;
    std::memcpy(&other, receive.data() + part.region, sizeof(other));
    check_same(other);
  }
  return true;
}

/// Takes the buffers back from MPI, as far as it gives them.
void MpiGroup::Shared::give_up() {
  for (size_t i = 0; i < receives_; ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }
  Pauses pauses(0, kLongestIdle);
  for (int i = 0; i < 200; ++i) {
    if (all_done(requests_)) return;
    pauses.pause();
  }
  stuck_ = true;
}

void MpiGroup::Shared::abort(std::optional<int64_t> meeting, const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  const int64_t last = meeting.value_or(done_.load(std::memory_order_acquire));
  for (int64_t old = last_.load(); last < old && !last_.compare_exchange_weak(old, last);) {
  }
  changes_.fetch_add(1, std::memory_order_acq_rel);
  changes_.notify_all();
}

void MpiGroup::Shared::abort_all() noexcept {
  const int64_t done = done_.load(std::memory_order_acquire);
  if (last_.load(std::memory_order_acquire) <= done) return;
  abort(done, "");
  processes_.watch->tell_abort(id_, done);
}

class MpiGroup::Rank final : public Communicator {
 public:
  Rank(Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_.size(); }

  void all_gather(ConstView in, View out) override {
    WEFT_CHECK(in.is_contiguous() && out.is_contiguous());
    WEFT_CHECK_EQ(in.bytes() * static_cast<size_t>(size()), out.bytes()) << "all_gather on rank " << rank_;
    const auto bytes = static_cast<int64_t>(in.bytes());
    const std::byte* from = bytes_of(in);
    std::byte* to = bytes_of(out);
    in_pieces(
        Call::all_gather, in, bytes, 1,
        [&](const Piece& piece) { copy(from + piece.at, piece.bytes, outgoing(Call::all_gather, 0, piece)); },
        [&](const Piece& piece) {
          for (int peer = 0; peer < size(); ++peer)
            copy(incoming(Call::all_gather, peer, piece), piece.bytes, to + peer * bytes + piece.at);
        });
  }

  void all_to_all(ConstView in, View out) override {
    WEFT_CHECK(in.is_contiguous() && out.is_contiguous());
    WEFT_CHECK_EQ(in.bytes(), out.bytes()) << "all_to_all on rank " << rank_;
    WEFT_CHECK_EQ(in.size(0), size()) << "all_to_all on rank " << rank_;
    const int64_t bytes = static_cast<int64_t>(in.bytes()) / size();
    const std::byte* from = bytes_of(in);
    std::byte* to = bytes_of(out);
    in_pieces(
        Call::all_to_all, in, bytes, 1,
        [&](const Piece& piece) {
          for (int peer = 0; peer < size(); ++peer)
            copy(from + peer * bytes + piece.at, piece.bytes, outgoing(Call::all_to_all, peer, piece));
        },
        [&](const Piece& piece) {
          for (int peer = 0; peer < size(); ++peer)
            copy(incoming(Call::all_to_all, peer, piece), piece.bytes, to + peer * bytes + piece.at);
        });
  }

  void all_reduce_sum(View data) override {
    WEFT_CHECK(data.is_contiguous());
    WEFT_CHECK(data.dtype() == DType::f32 || data.dtype() == DType::bf16) << "all_reduce_sum of " << to_string(data.dtype());
    std::byte* own = bytes_of(data);
    in_pieces(
        Call::all_reduce_sum, data, static_cast<int64_t>(data.bytes()), static_cast<int64_t>(size_of(data.dtype())),
        [&](const Piece& piece) { copy(own + piece.at, piece.bytes, outgoing(Call::all_reduce_sum, 0, piece)); },
        [&](const Piece& piece) {
          if (data.dtype() == DType::f32) {
            sum<float>(piece, own + piece.at);
          } else {
            sum<bf16>(piece, own + piece.at);
          }
        });
  }

  void abort() noexcept override { shared_.abort_all(); }

 private:
  static const std::byte* bytes_of(const ConstView& view) { return static_cast<const std::byte*>(view.data()); }
  static std::byte* bytes_of(const View& view) { return static_cast<std::byte*>(view.data()); }
  static void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  std::byte* outgoing(Call call, int to, const Piece& piece) {
    return shared_.outgoing(meeting_, call, rank_, call == Call::all_to_all ? to : rank_, piece.bytes);
  }
  const std::byte* incoming(Call call, int from, const Piece& piece) {
    return shared_.incoming(meeting_, call, from, rank_, piece.bytes);
  }

  /// A meeting for each piece of the slices: `put` what goes out, `take` what came. A call of no bytes meets too.
  template <typename Put, typename Take>
  void in_pieces(Call call, ConstView in, int64_t slice_bytes, int64_t element_bytes, Put put, Take take) {
    const int64_t most = shared_.piece_bytes(call);
    WEFT_CHECK_GE(most, element_bytes);
    int64_t at = 0;
    do {
      const Piece piece{.at = at, .bytes = std::min(most, slice_bytes - at)};
      ++meeting_;
      // After an abort a slower peer may still read what came before: leave the buffers alone.
      if (shared_.is_over(meeting_)) throw_aborted();
      put(piece);
      if (!shared_.meet(rank_, {.call = call, .dtype = in.dtype(), .bytes = in.bytes(), .meeting = meeting_}, piece.bytes))
        throw_aborted();
      take(piece);
      at += piece.bytes;
    } while (at < slice_bytes);
  }

  template <typename T>
  void sum(const Piece& piece, std::byte* out) {
    constexpr int64_t kRun = 256;
    const int64_t count = piece.bytes / static_cast<int64_t>(sizeof(T));
    T* to = reinterpret_cast<T*>(out);
    for (int64_t first = 0; first < count; first += kRun) {
      const int64_t run = std::min(kRun, count - first);
      const auto summands = [&](int peer) {
        return reinterpret_cast<const T*>(incoming(Call::all_reduce_sum, peer, piece)) + first;
      };
      float total[kRun];
      const T* from = summands(0);
      for (int64_t i = 0; i < run; ++i) total[i] = static_cast<float>(from[i]);
      for (int peer = 1; peer < size(); ++peer) {
        from = summands(peer);
        for (int64_t i = 0; i < run; ++i) total[i] += static_cast<float>(from[i]);
      }
      for (int64_t i = 0; i < run; ++i) to[first + i] = T(total[i]);
    }
  }

  [[noreturn]] void throw_aborted() const {
    const std::string why = shared_.why();
    if (!why.empty()) throw SystemError("{}", why);
    throw SystemError("the group of ranks was aborted: another rank failed, seen by rank {} of {}", rank_, size());
  }

  Shared& shared_;
  const int rank_;
  int64_t meeting_ = 0;
};

MpiGroup::MpiGroup(Processes& processes, const Members& members)
    : shared_(std::make_unique<Shared>(*processes.parts_, members)) {}

MpiGroup::~MpiGroup() = default;

std::unique_ptr<Communicator> MpiGroup::join(int rank) {
  WEFT_CHECK(shared_->is_local(rank)) << "rank " << rank << " of " << shared_->size() << " is not in this process";
  WEFT_CHECK(shared_->mark_joined(rank)) << "rank " << rank << " joined twice";
  return std::make_unique<Rank>(*shared_, rank);
}

void MpiGroup::abort() noexcept { shared_->abort_all(); }

Processes::Processes() : parts_(std::make_unique<Parts>()) {}

std::unique_ptr<Processes> Processes::join_launched() {
  const bool launched = std::any_of(kSizeVariables.begin(), kSizeVariables.end(), [](const char* name) {
    const char* size = std::getenv(name);
    return size != nullptr && std::atoi(size) > 1;
  });
  if (!launched) return nullptr;

  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE) throw SystemError("this MPI cannot be used by several threads (MPI_THREAD_MULTIPLE)");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  auto processes = std::unique_ptr<Processes>(new Processes());
  Parts& parts = *processes->parts_;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &parts.index), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &parts.count), "MPI_Comm_size");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &parts.orders), "MPI_Comm_dup");
  parts.order_requests.assign(static_cast<size_t>(parts.count - 1), MPI_REQUEST_NULL);

  std::optional<PeerListener> listener;
  char name[64] = {};
  if (parts.index == 0) {
    listener.emplace();
    listener->name().copy(name, sizeof(name) - 1);
  }
  check(MPI_Bcast(name, sizeof(name), MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  std::vector<PeerConnection> peers;
  if (parts.index == 0) {
    peers = listener->accept_all(parts.count);
  } else {
    peers.push_back(connect_to_first(name, parts.index));
  }
  PeerWatch::Options options;
  options.take_sigterm = true;
  // The handlers may be called before `watch` is set: they do not use it.
  parts.watch = std::make_unique<PeerWatch>(
      parts.index, parts.count, std::move(peers),
      PeerWatch::Handlers{.lost = [&parts](const std::string& why) { parts.hear_loss(why); },
                          .aborted = [&parts](uint64_t group, int64_t after) { parts.hear_abort(group, after); }},
      options);
  return processes;
}

Processes::~Processes() {
  if (parts_->watch == nullptr) return;
  // Without its peers MPI_Finalize may wait for ever.
  if (parts_->left_in_order && !parts_->stuck && parts_->watch->loss().empty()) {
    MPI_Comm_free(&parts_->orders);
    MPI_Finalize();
  }
  parts_->watch.reset();
}

int Processes::index() const { return parts_->index; }
int Processes::count() const { return parts_->count; }

void Processes::broadcast(int kind, std::span<const std::byte> bytes) {
  WEFT_CHECK_EQ(parts_->index, 0);
  WEFT_CHECK_LE(bytes.size(), size_t{INT32_MAX});
  std::vector<MPI_Request>& requests = parts_->order_requests;
  for (int process = 1; process < parts_->count; ++process) {
    check(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, process, kind, parts_->orders,
                    &requests[static_cast<size_t>(process - 1)]),
          "MPI_Isend");
  }
  Pauses pauses(0, kLongestInCall);
  while (!all_done(requests)) {
    parts_->throw_if_lost();
    pauses.pause();
  }
}

int Processes::receive(std::vector<std::byte>& bytes) {
  WEFT_CHECK_GT(parts_->index, 0);
  Pauses pauses(0, kLongestIdle);
  MPI_Message message;
  MPI_Status status;
  for (int found = 0; found == 0;) {
    // Asked before MPI: what process 0 sent before its farewell has then come.
    const bool is_over = farewell().has_value();
    parts_->throw_if_lost();
    check(MPI_Improbe(0, MPI_ANY_TAG, parts_->orders, &found, &message, &status), "MPI_Improbe");
    if (found != 0) break;
    if (is_over) return -1;
    pauses.pause();
  }
  int count = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  bytes.resize(static_cast<size_t>(count));
  MPI_Request request;
  check(MPI_Imrecv(bytes.data(), count, MPI_BYTE, &message, &request), "MPI_Imrecv");
  while (!all_done({&request, 1})) {
    parts_->throw_if_lost();
    pauses.pause();
  }
  return status.MPI_TAG;
}

void Processes::abort(const std::string& why) noexcept {
  parts_->watch->tell_failure(why);
  const std::lock_guard lock(parts_->mutex);
  for (const auto& [id, group] : parts_->groups) group->abort(std::nullopt, why);
}

std::string Processes::loss() const { return parts_->watch->loss(); }

void Processes::on_loss(std::function<void(const std::string&)> call) {
  const std::lock_guard lock(parts_->mutex);
  parts_->on_loss = std::move(call);
  if (const std::string why = loss(); !why.empty() && parts_->on_loss) parts_->on_loss(why);
}

void Processes::leave(int status, const std::string& why) {
  parts_->left_in_order = status == 0;
  parts_->watch->leave(status, why);
}

std::optional<PeerWatch::Farewell> Processes::farewell() const { return parts_->watch->farewell(); }

void Processes::Parts::hear_loss(const std::string& why) {
  const std::lock_guard lock(mutex);
  for (const auto& [id, group] : groups) group->abort(std::nullopt, why);
  if (on_loss) on_loss(why);
}

void Processes::Parts::hear_abort(uint64_t group, int64_t after) {
  const std::lock_guard lock(mutex);
  if (const auto found = groups.find(group); found != groups.end()) {
    found->second->abort(after, "");
  } else if (group >= next_group) {
    early_aborts.emplace(group, after);
  }
}

}  // namespace weft
