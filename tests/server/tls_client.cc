#include "server/tls_client.h"

#include <poll.h>

#include <csignal>
#include <stdexcept>

namespace weft::test {

TlsConnection::TlsConnection(int port, const std::string& authority, const Certificate* own, int newest_version)
    : Connection(port), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), ssl_(nullptr, SSL_free) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL.
  static constexpr unsigned char kOffered[] = "\x02h2\x08http/1.1";
  SSL_CTX* const context = context_.get();
  if (newest_version != 0) {
    SSL_CTX_set_min_proto_version(context, newest_version < TLS1_2_VERSION ? newest_version : TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(context, newest_version);
    SSL_CTX_set_security_level(context, 0);
  }
  SSL_CTX_load_verify_file(context, authority.c_str());
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_alpn_protos(context, kOffered, sizeof kOffered - 1);
  if (own != nullptr) {
    SSL_CTX_use_certificate_file(context, own->file.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context, own->key_file.c_str(), SSL_FILETYPE_PEM);
  }
  ssl_.reset(SSL_new(context));
  SSL_set_fd(ssl_.get(), socket_);
  if (SSL_connect(ssl_.get()) != 1) throw std::runtime_error("no TLS");
}

size_t TlsConnection::try_send(std::string_view text) {
  const int sent = text.empty() ? 0 : SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
  return sent > 0 ? static_cast<size_t>(sent) : 0;
}

std::string TlsConnection::receive(size_t bytes, std::chrono::milliseconds timeout) {
  pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
  if (SSL_pending(ssl_.get()) == 0 && ::poll(&wait, 1, static_cast<int>(timeout.count())) == 0)
    throw std::runtime_error("the server says nothing");
  std::string out(bytes, '\0');
  const int n = SSL_read(ssl_.get(), out.data(), static_cast<int>(out.size()));
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

std::string TlsConnection::protocol() const {
  const unsigned char* name = nullptr;
  unsigned length = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &length);
  return {reinterpret_cast<const char*>(name), length};
}

}  // namespace weft::test
