#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "server/certificate.h"
#include "server/http_client.h"

namespace weft::test {

/// A connection by TLS to a server whose certificate `authority` vouches for. Throws std::runtime_error where they do not
/// agree.
class TlsConnection : public Connection {
 public:
  TlsConnection(int port, const std::string& authority, const Certificate* own = nullptr, int newest_version = 0);
  size_t try_send(std::string_view text) override;
  std::string receive(size_t bytes = 65536, std::chrono::milliseconds timeout = std::chrono::minutes(5)) override;
  /// The end of what was received was said by TLS, not only by TCP.
  bool ended_well() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  std::string protocol() const;

 private:
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
};

}  // namespace weft::test
