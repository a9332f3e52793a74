#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "server/service.h"
#include "server/tls.h"
#include "server/wake.h"

namespace weft {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8000;               ///< 0: the system chooses
  std::string unix_socket = {};  ///< path of a socket to listen on instead of a port
  TlsConfig tls = {};
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_connections = 16384;                   ///< fewer where the process may not have so many open files
  std::chrono::milliseconds idle_timeout{75'000};   ///< for the next request's header, and for the handshake of TLS
  std::chrono::milliseconds body_timeout{60'000};   ///< for a whole body
  std::chrono::milliseconds write_timeout{30'000};  ///< for a client to take anything at all
  std::chrono::milliseconds shutdown_timeout{10'000};
  std::function<void()> on_drain = {};  ///< called on the io thread when the server begins to end
};

/// HTTP/1.1 on a socket, with TLS if wanted. One io thread moves bytes and single tokens; two others read bodies and write long
/// answers, one of them only small ones, so that neither health checks nor short requests wait for a long prompt.
///
/// A client that closes its connection gives up its answer. Clients that send or read too slowly are cut off.
class HttpServer {
 public:
  /// Opens the socket. `service` and `wake` outlive the server; `wake` is rung when completions may have something new.
  /// Throws UserError for an address that is not one or files that do not serve, SystemError for an address that cannot be had.
  HttpServer(const HttpConfig& config, Service& service, Wake& wake);
  ~HttpServer();

  /// 0 where it listens on a Unix socket.
  int port() const;
  /// "https://127.0.0.1:8000", "unix:/run/weft.sock".
  std::string address() const;
  /// Serves until it is drained or stopped, or the engine has failed. Call once, on the thread that shall be the io thread.
  /// SIGUSR2 writes a flight: the last steps, for `weft replay`.
  void run();

  // Any thread.
  /// From now on SIGINT and SIGTERM drain; the second one stops.
  void drain_on_signals();
  /// Ends run() once all answers are complete, or after the shutdown timeout.
  void drain();
  /// Ends run() now.
  void stop();

  struct Parts;

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft
