#include "comm/peer_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <system_error>

#include "base/check.h"
#include "base/log.h"

namespace weft {
namespace {

constexpr int64_t kConnectMs = 60'000;
constexpr size_t kTextBytes = 512;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string system_text() { return std::generic_category().message(errno); }

/// The watch that takes SIGTERM: where its signal handler writes.
std::atomic<int> g_sigterm_pipe{-1};

void on_sigterm(int) {
  const int saved = errno;
  if (const int fd = g_sigterm_pipe.load(); fd >= 0) (void)!::write(fd, "t", 1);
  errno = saved;
}

Descriptor unix_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw SystemError("cannot make a socket between the processes: {}", system_text());
  return socket;
}

/// An address in the abstract namespace: it begins with a zero byte and has no file.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  WEFT_CHECK_LT(name.size() + 1, sizeof(address.sun_path));
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

ucred credentials(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    throw SystemError("cannot tell who is at the other end of a socket: {}", system_text());
  return peer;
}

bool wait_readable(int fd, int64_t deadline_ms) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  while (true) {
    const int ready = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, deadline_ms - now_ms())));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

PeerListener::PeerListener() : socket_(unix_socket()) {
  std::random_device random;
  name_ = fmt::format("weft-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const auto [address, bytes] = abstract_address(name_);
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || ::listen(socket_.get(), SOMAXCONN) != 0)
    throw SystemError("cannot listen for the other processes: {}", system_text());
}

std::vector<PeerConnection> PeerListener::accept_all(int count) {
  const int64_t deadline = now_ms() + kConnectMs;
  std::vector<PeerConnection> peers;
  while (static_cast<int>(peers.size()) < count - 1) {
    if (!wait_readable(socket_.get(), deadline)) {
      throw SystemError("{} of {} processes came within {} s: are all on this machine?", peers.size() + 1, count,
                        kConnectMs / 1000);
    }
    Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) continue;
    const ucred peer = credentials(socket.get());
    int32_t process = 0;
    if (peer.uid != ::geteuid() || !wait_readable(socket.get(), deadline) ||
        ::recv(socket.get(), &process, sizeof(process), MSG_DONTWAIT) != sizeof(process) || process < 1 || process >= count)
      continue;
    peers.push_back({.process = process, .pid = peer.pid, .socket = std::move(socket)});
  }
  return peers;
}

PeerConnection connect_to_first(const std::string& name, int process) {
  Descriptor socket = unix_socket();
  const auto [address, bytes] = abstract_address(name);
  const auto hello = static_cast<int32_t>(process);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello))
    throw SystemError("process {} cannot reach process 0, which must be on the same machine: {}", process, system_text());
  const pid_t pid = credentials(socket.get()).pid;
  return {.process = 0, .pid = pid, .socket = std::move(socket)};
}

struct PeerWatch::Frame {
  enum class Kind : uint32_t { beat, abort, failure, farewell } kind = Kind::beat;
  int32_t status = 0;
  uint64_t group = 0;
  int64_t after = 0;
  char text[kTextBytes] = {};

  void set_text(const std::string& why) { why.copy(text, sizeof(text) - 1); }
  std::string get_text() const { return std::string(text, ::strnlen(text, sizeof(text))); }
};

PeerWatch::PeerWatch(int process, int count, std::vector<PeerConnection> peers, Handlers handlers, const Options& options)
    : process_(process), count_(count), options_(options), handlers_(std::move(handlers)) {
  for (PeerConnection& peer : peers) peers_.push_back({.connection = std::move(peer), .heard_ms = now_ms()});
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw SystemError("cannot make a pipe: {}", system_text());
  wake_read_ = Descriptor(ends[0]);
  wake_write_ = Descriptor(ends[1]);
  if (options_.take_sigterm) {
    g_sigterm_pipe.store(ends[1]);
    struct sigaction action {};
    action.sa_handler = on_sigterm;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGTERM, &action, nullptr);
  }
  thread_ = std::thread([this] { work(); });
}

PeerWatch::~PeerWatch() {
  stop_ = true;
  (void)!::write(wake_write_.get(), "s", 1);
  thread_.join();
  if (!options_.take_sigterm) return;
  ::signal(SIGTERM, SIG_DFL);
  g_sigterm_pipe.store(-1);
}

void PeerWatch::tell_abort(uint64_t group, int64_t after) noexcept {
  send_all({.kind = Frame::Kind::abort, .group = group, .after = after});
}

void PeerWatch::tell_failure(const std::string& why) noexcept {
  send_failure(fmt::format("process {} (pid {}) of {} failed: {}", process_, ::getpid(), count_, why));
}

void PeerWatch::send_failure(const std::string& text, const Peer* except) noexcept {
  Frame frame{.kind = Frame::Kind::failure};
  frame.set_text(text);
  send_all(frame, except);
}

void PeerWatch::leave(int status, const std::string& why) noexcept {
  Frame frame{.kind = Frame::Kind::farewell, .status = status};
  frame.set_text(why);
  left_ = true;
  send_all(frame);
}

std::optional<PeerWatch::Farewell> PeerWatch::farewell() const {
  const std::lock_guard lock(mutex_);
  return farewell_;
}

std::string PeerWatch::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

/// A peer that takes nothing for so long that its socket is full is found by its silence.
void PeerWatch::send_all(const Frame& frame, const Peer* except) noexcept {
  for (const Peer& peer : peers_) {
    if (&peer != except) ::send(peer.connection.socket.get(), &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void PeerWatch::work() {
  std::vector<pollfd> waits;
  int64_t next_beat = 0;
  while (!stop_) {
    if (const int64_t now = now_ms(); now >= next_beat) {
      send_all({});
      next_beat = now + options_.beat_ms;
    }
    waits.clear();
    waits.push_back({.fd = wake_read_.get(), .events = POLLIN, .revents = 0});
    for (const Peer& peer : peers_)
      waits.push_back({.fd = peer.left ? -1 : peer.connection.socket.get(), .events = POLLIN, .revents = 0});
    const int64_t pause = term_ms_ != 0 ? 20 : options_.beat_ms;
    ::poll(waits.data(), waits.size(), static_cast<int>(pause));
    // What has come in counts before the clock does: this process may have been the one that was stopped.
    for (Peer& peer : peers_) read_all(peer);
    for (const Peer& peer : peers_) {
      if (!peer.left && now_ms() - peer.heard_ms > options_.silence_ms) {
        lose(&peer, fmt::format("{} has given no sign of life for {:.1f} s: it hangs or was stopped", name_of(peer),
                                static_cast<double>(options_.silence_ms) / 1000));
      }
    }
    look_at_signal();
    die_if_late();
  }
}

void PeerWatch::read_all(Peer& peer) {
  while (!peer.left) {
    Frame frame;
    const ssize_t bytes = ::recv(peer.connection.socket.get(), &frame, sizeof(frame), MSG_DONTWAIT);
    if (bytes == sizeof(frame)) {
      peer.heard_ms = now_ms();
      take(peer, frame);
    } else if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else if (bytes < 0 && errno == ECONNRESET) {
      // The peer is gone and had not read all. This is told once, before what it said last, which may be its farewell.
      continue;
    } else {
      peer.left = true;
      lose(&peer, fmt::format("{} is gone: it ended without a word, killed or crashed", name_of(peer)));
    }
  }
}

void PeerWatch::take(Peer& peer, const Frame& frame) {
  switch (frame.kind) {
    case Frame::Kind::beat:
      return;
    case Frame::Kind::abort:
      if (process_ == 0) send_all(frame, &peer);
      handlers_.aborted(frame.group, frame.after);
      return;
    case Frame::Kind::failure:
      return lose(&peer, frame.get_text());
    case Frame::Kind::farewell:
      peer.left = true;
      if (peer.connection.process == 0) {
        const std::lock_guard lock(mutex_);
        farewell_ = Farewell{.status = frame.status, .why = frame.get_text()};
      }
      if (frame.status != 0) {
        lose(&peer, fmt::format("{} ended with status {}: {}", name_of(peer), frame.status, frame.get_text()));
      } else if (left_) {
        // Nothing more can come from there, should this process hang on its way out.
        set_deadline(0);
      }
      return;
  }
}

void PeerWatch::lose(const Peer* peer, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!loss_.empty()) return;
    loss_ = why;
  }
  // Said here and now: mpirun ends the other processes of a run soon after one has died. What process 0 has told already
  // need not be said twice.
  if (!farewell() && !left_) log::error("{}", why);
  // Once process 0 leaves, its farewell says all.
  if (process_ == 0 && !left_) send_failure(why, peer);
  set_deadline(1);
  handlers_.lost(why);
}

void PeerWatch::set_deadline(int status) {
  if (deadline_ms_ != 0) return;
  deadline_ms_ = now_ms() + options_.exit_ms;
  deadline_status_ = status;
}

std::string PeerWatch::name_of(const Peer& peer) const {
  return fmt::format("process {} (pid {}) of {}", peer.connection.process, peer.connection.pid, count_);
}

void PeerWatch::look_at_signal() {
  for (char byte = 0; ::read(wake_read_.get(), &byte, 1) == 1;) {
    if (byte == 't' && process_ == 0 && term_ms_ == 0) term_ms_ = now_ms() + options_.term_ms;
  }
  if (term_ms_ == 0 || now_ms() < term_ms_ || !loss().empty()) return;
  log::error("ended by SIGTERM");
  leave(128 + SIGTERM, "ended by SIGTERM");
  ::signal(SIGTERM, SIG_DFL);
  ::raise(SIGTERM);
}

void PeerWatch::die_if_late() {
  if (deadline_ms_ == 0 || now_ms() < deadline_ms_) return;
  if (deadline_status_ != 0) log::error("this process did not end by itself after that, and ends now");
  ::_exit(deadline_status_);
}

}  // namespace weft
