#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace weft {

/// The bytes of one connection, over TCP or a Unix socket, in the clear or by TLS. An asynchronous stream as Asio and Beast
/// want it, of which a session knows nothing else.
///
/// Thread: the io thread. At most one read and one write at a time.
class Transport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using executor_type = Socket::executor_type;
  using error_code = boost::system::error_code;

  /// `tls` null: in the clear. It outlives the connection.
  Transport(Socket socket, boost::asio::ssl::context* tls) {
    if (tls != nullptr) {
      tls_.emplace(std::move(socket), *tls);
    } else {
      plain_.emplace(std::move(socket));
    }
  }

  executor_type get_executor() { return socket().get_executor(); }
  bool is_tls() const { return tls_.has_value(); }

  /// With TLS, before anything else.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_->async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_->async_write_some(buffers, std::forward<Handler>(handler));
    }
  }
  /// Says that nothing more will be written: of TLS its own goodbye, without which an answer that ends with the connection
  /// would look cut off.
  template <typename Handler>
  void async_goodbye(Handler&& handler) {
    tls_->async_shutdown(std::forward<Handler>(handler));
  }

  /// What lies below TLS, if that is there.
  Socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }
  void close() {
    error_code ignored;
    socket().close(ignored);
  }

 private:
  std::optional<boost::asio::ssl::stream<Socket>> tls_;
  std::optional<Socket> plain_;
};

}  // namespace weft
