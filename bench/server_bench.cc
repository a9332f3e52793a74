// What the server adds to a step: from the engine's last token of a step to the last client's receipt of its chunk, with a
// backend that needs no time, and the processor time of the io thread in that. Clients read in this process.

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/fake_backend.h"
#include "server/http_client.h"
#include "server/http_server.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSteps = 100;  // Tokens 21 to 120 are characters by themselves, so each step has a chunk.

double cpu_us(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

void measure(int streams) {
  weft::Wake wake;
  weft::test::FakeBackend backend([&] { wake.ring(); }, true);
  weft::Service service({.model_names = {"m"}, .api_keys = {}, .allowed_origins = {}, .log_requests = false, .version = "1"});
  const auto tokenizer = weft::test::byte_tokenizer();
  service.open(backend, tokenizer.get());
  weft::HttpServer server({.port = 0}, service, wake);
  std::thread io([&] { server.run(); });
  clockid_t io_clock{};
  ::pthread_getcpuclockid(io.native_handle(), &io_clock);

  std::vector<std::unique_ptr<weft::test::Connection>> clients;
  const std::string body = R"({"prompt":[20],"max_tokens":105,"stream":true})";
  for (int i = 0; i < streams; ++i) {
    clients.push_back(std::make_unique<weft::test::Connection>(server.port()));
    clients.back()->send(weft::test::http_request("POST", "/v1/completions", "", body));
  }
  for (const auto& client : clients) client->receive();  // The header.
  std::vector<double> wall;
  double cpu = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double before = cpu_us(io_clock);
    const auto began = Clock::now();
    backend.step();
    for (const auto& client : clients) client->receive();
    wall.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    cpu += cpu_us(io_clock) - before;
  }
  std::sort(wall.begin(), wall.end());
  fmt::print("{:4} streams: {:8.1f} us a step until the last client has its token (median), {:8.1f} us of the io thread\n",
             streams, wall[kSteps / 2], cpu / kSteps);
  clients.clear();
  server.stop();
  io.join();
}

}  // namespace

int main() {
  for (const int streams : {1, 4, 16, 64, 256}) measure(streams);
}
