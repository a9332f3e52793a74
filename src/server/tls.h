#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

namespace weft {

/// Files in PEM, and what is asked of clients.
struct TlsConfig {
  enum class Clients : uint8_t {
    any,       ///< they show no certificate
    may_show,  ///< one that is shown must be good
    must_show,
  };
  std::string certificate_file = {};  ///< with the chain behind it; empty: no TLS
  std::string key_file = {};          ///< empty: the key is in the certificate's file
  std::string ca_file = {};           ///< who vouches for clients
  Clients clients = Clients::any;
};

/// TLS 1.2 or later for a server, or null where there is no certificate. Throws UserError for files that do not serve, naming
/// the flag.
std::unique_ptr<boost::asio::ssl::context> make_tls(const TlsConfig& config);

}  // namespace weft
