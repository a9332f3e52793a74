#include "server/tls.h"

#include <openssl/ssl.h>

#include <boost/asio/error.hpp>

#include "base/check.h"

namespace weft {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

void require(const error_code& error, const char* flag, const char* wanted, const std::string& file) {
  if (error) throw UserError("{} must name a file with {}: {}, {}", flag, wanted, error.message(), file);
}

/// Of the protocols that a client offers only HTTP/1.1 is spoken here; curl and browsers offer HTTP/2 first.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* offered,
                    unsigned offered_length, void*) {
  static constexpr unsigned char kSpoken[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const bool agreed = ::SSL_select_next_proto(&chosen, out_length, kSpoken, sizeof kSpoken - 1, offered, offered_length) ==
                      OPENSSL_NPN_NEGOTIATED;
  *out = chosen;
  return agreed ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

std::unique_ptr<ssl::context> make_tls(const TlsConfig& config) {
  if (config.certificate_file.empty()) {
    if (!config.key_file.empty() || !config.ca_file.empty() || config.clients != TlsConfig::Clients::any)
      throw UserError("--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need --ssl-certfile");
    return nullptr;
  }
  if (config.clients != TlsConfig::Clients::any && config.ca_file.empty())
    throw UserError("--ssl-cert-reqs needs --ssl-ca-certs: those who vouch for the certificates of clients");
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                       SSL_OP_NO_RENEGOTIATION);
  // Without an answer OpenSSL would ask for the password of an encrypted key on the terminal, and wait.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); });
  error_code error;
  context->use_certificate_chain_file(config.certificate_file, error);
  require(error, "--ssl-certfile", "a certificate in PEM", config.certificate_file);
  const std::string& key = config.key_file.empty() ? config.certificate_file : config.key_file;
  context->use_private_key_file(key, ssl::context::pem, error);
  require(error, "--ssl-keyfile", "the certificate's private key in PEM, not encrypted", key);
  if (!config.ca_file.empty()) {
    context->load_verify_file(config.ca_file, error);
    require(error, "--ssl-ca-certs", "certificates in PEM", config.ca_file);
  }
  switch (config.clients) {
    case TlsConfig::Clients::any:
      context->set_verify_mode(ssl::verify_none);
      break;
    case TlsConfig::Clients::may_show:
      context->set_verify_mode(ssl::verify_peer);
      break;
    case TlsConfig::Clients::must_show:
      context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
      break;
  }
  SSL_CTX* raw = context->native_handle();
  ::SSL_CTX_set_alpn_select_cb(raw, choose_protocol, nullptr);
  // A session that a client resumes with its certificate needs a name to belong to.
  static constexpr unsigned char kName[] = "weft";
  ::SSL_CTX_set_session_id_context(raw, kName, sizeof kName - 1);
  return context;
}

}  // namespace weft
