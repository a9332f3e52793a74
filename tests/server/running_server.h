#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "server/fake_backend.h"
#include "server/http_server.h"

namespace weft::test {

/// A server that runs on its own thread, with a backend that needs no model.
class Running {
 public:
  explicit Running(HttpConfig config = {}, std::chrono::microseconds pause = {}, bool open = true)
      : backend([this] { wake.ring(); }, false, pause),
        server(with_free_port(config), service, wake),
        thread_([this] { server.run(); }) {
    if (open) service.open(backend, tokenizer.get());
  }
  ~Running() {
    server.stop();
    if (thread_.joinable()) thread_.join();
  }
  int port() const { return server.port(); }
  /// Waits for run() to return.
  void join() { thread_.join(); }
  /// Waits until nothing runs in the backend, and no connection is open.
  void expect_quiet(double connections = 0) {
    for (int i = 0; i < 500 && (backend.running() > 0 || service.http().connections.value() > connections); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(backend.running(), 0u);
    EXPECT_EQ(service.http().connections.value(), connections);
  }

  Wake wake;
  FakeBackend backend;
  std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  Service service{{.model_names = {"m"}, .api_keys = {}, .allowed_origins = {"*"}, .log_requests = false, .version = "1"}};
  HttpServer server;

 private:
  static HttpConfig with_free_port(HttpConfig config) {
    config.port = 0;
    return config;
  }
  std::thread thread_;
};

}  // namespace weft::test
