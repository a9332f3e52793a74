// A server without a model under load from another process: streams that never end, health checks beside them, and somebody who
// has 30 MB tokenised again and again. Tokens and chunks a second that clients receive, and how long /health takes.

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/fake_backend.h"
#include "server/http_client.h"
#include "server/http_server.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kStreams = 256, kTokens = 100;
constexpr size_t kLongText = 30'000'000;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// A connection whose socket an epoll loop can wait for.
class Stream : public weft::test::Connection {
 public:
  explicit Stream(int port) : Connection(port) {}
  int socket() const { return socket_; }
  void ask() { send(kRequest); }
  /// Takes what has come, and counts its chunks. False if the answer is complete.
  bool take(int64_t& chunks) {
    static constexpr std::string_view kChunk = "data: {", kEnd = "\r\n0\r\n\r\n";
    char buffer[65536];
    const auto n = ::recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) return true;
    text_.append(buffer, static_cast<size_t>(n));
    for (size_t at = text_.find(kChunk); at != std::string::npos; at = text_.find(kChunk, at + 1)) ++chunks;
    const bool done = text_.ends_with(kEnd);
    // Both words have seven letters: of what was counted less than one is kept.
    text_.erase(0, done ? text_.size() : text_.size() - std::min(text_.size(), kChunk.size() - 1));
    return !done;
  }

 private:
  static inline const std::string kRequest = weft::test::http_request(
      "POST", "/v1/completions", "", R"({"prompt":[20],"max_tokens":)" + std::to_string(kTokens) + R"(,"stream":true})");
  std::string text_;
};

/// Reads streams until `stop`; begins each anew when it ends.
struct Reader {
  int64_t chunks = 0, answers = 0;
  void run(int port, const std::atomic<bool>& stop) {
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < kStreams; ++i) {
      streams.push_back(std::make_unique<Stream>(port));
      epoll_event event{.events = EPOLLIN, .data = {.ptr = streams.back().get()}};
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, streams.back()->socket(), &event);
      streams.back()->ask();
    }
    epoll_event ready[kStreams];
    while (!stop) {
      const int n = ::epoll_wait(epoll, ready, kStreams, 100);
      for (int i = 0; i < n; ++i) {
        auto& stream = *static_cast<Stream*>(ready[i].data.ptr);
        if (stream.take(chunks)) continue;
        ++answers;
        stream.ask();
      }
    }
    ::close(epoll);
  }
};

/// Latencies of /health, one every few milliseconds.
std::vector<double> poll_health(int port, const std::atomic<bool>& stop) {
  std::vector<double> out;
  weft::test::Client client(port);
  while (!stop) {
    const auto began = Clock::now();
    client.get("/health");
    out.push_back(seconds(Clock::now() - began) * 1000);
    std::this_thread::sleep_for(5ms);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// How many long texts were tokenised before `stop`.
int64_t tokenise(int port, const std::atomic<bool>& stop) {
  std::string text;
  while (text.size() < kLongText) text += "the quick brown fox jumps over the lazy dog, ";
  const std::string body = "{\"prompt\":\"" + text + "\"}";
  int64_t times = 0;
  for (; !stop; ++times) weft::test::Client(port).post("/tokenize", body);
  return times;
}

/// The clients' process.
void measure(int port, std::chrono::seconds time, bool with_long_texts, const char* name) {
  std::atomic<bool> stop{false};
  Reader reader;
  std::vector<double> health;
  int64_t texts = 0;
  std::thread reading([&] { reader.run(port, stop); }), polling([&] { health = poll_health(port, stop); });
  std::thread tokenising;
  if (with_long_texts) tokenising = std::thread([&] { texts = tokenise(port, stop); });
  const auto began = Clock::now();
  std::this_thread::sleep_for(time);
  stop = true;
  const double took = seconds(Clock::now() - began);
  reading.join();
  polling.join();
  if (tokenising.joinable()) tokenising.join();
  const auto percentile = [&](double p) { return health[static_cast<size_t>(p * static_cast<double>(health.size() - 1))]; };
  fmt::print("{:34} {:9.0f} tokens/s in {:8.0f} chunks/s; /health {:5.2f} ms median, {:6.2f} p99, {:6.2f} worst of {}{}\n",
             name, static_cast<double>(reader.answers * kTokens) / took, static_cast<double>(reader.chunks) / took,
             percentile(0.5), percentile(0.99), health.back(), health.size(),
             with_long_texts ? fmt::format("; {} texts of 30 MB", texts) : "");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto time = std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 20);
  int to_client[2], to_server[2];
  if (::pipe(to_client) != 0 || ::pipe(to_server) != 0) return 1;
  const pid_t child = ::fork();  // Before there are threads.
  if (child == 0) {
    int port = 0;
    char word = 0;
    if (::read(to_client[0], &port, sizeof port) != sizeof port) return 1;
    const auto next = [&](char wanted) {
      word = wanted;
      return ::write(to_server[1], &word, 1) == 1 && ::read(to_client[0], &word, 1) == 1;
    };
    if (next('p')) measure(port, time, false, "256 streams, 100 steps a second");
    if (next('p')) measure(port, time, true, "the same, and 30 MB to tokenise");
    if (next('f')) measure(port, time, false, "256 streams, as fast as it goes");
    return 0;
  }
  ::close(to_server[1]);
  ::close(to_client[0]);
  weft::Wake wake;
  weft::test::FakeBackend backend([&] { wake.ring(); });
  const auto tokenizer = weft::test::byte_tokenizer();
  weft::Service service({.model_names = {"m"}, .api_keys = {}, .allowed_origins = {}, .log_requests = false, .version = "1"});
  service.open(backend, tokenizer.get());
  weft::HttpServer server({.port = 0}, service, wake);
  std::thread io([&] { server.run(); });
  const int port = server.port();
  if (::write(to_client[1], &port, sizeof port) != sizeof port) return 1;
  for (char word; ::read(to_server[0], &word, 1) == 1;) {
    backend.set_pause(word == 'p' ? 10ms : 0us);
    if (::write(to_client[1], &word, 1) != 1) break;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  server.stop();
  io.join();
  return status;
}
