#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace weft::bench {

/// Where a server is: http://HOST:PORT and what every path begins with.
struct ServerAddress {
  std::string host = "127.0.0.1";  ///< an IPv6 address without brackets
  std::string port = "8000";
  std::string prefix = {};  ///< "" or "/api"

  /// Reads http://HOST[:PORT][/PREFIX]. Throws UserError.
  static ServerAddress parse(const std::string& url);
  /// "http://[::1]:8000/api".
  std::string url() const;
  /// As in a Host header.
  std::string host_header() const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = "POST";
  std::string path = {};  ///< after the server's prefix
  HttpHeaders headers = {};
  std::string body = {};
};

/// Told of one answer, in this order; `body` any number of times. After `end` nothing comes any more.
struct HttpHandlers {
  std::function<void(int status)> head;
  std::function<void(std::string_view bytes)> body;
  std::function<void(std::string error)> end;  ///< "" where the answer is complete
};

/// HTTP/1.1 requests to one server, any number at once, over connections that are kept for the next request.
///
/// Thread: that of the io_context, which must outlive it.
class HttpClient {
 public:
  /// Looks the host up. Throws UserError for a name that nobody knows.
  HttpClient(boost::asio::io_context& io, const ServerAddress& server);
  ~HttpClient();

  /// Sends a request; the handlers are called from the io_context, never from here.
  void send(HttpRequest request, HttpHandlers handlers);
  /// Closes every connection. Requests on their way end without a call to their handlers.
  void close();

 private:
  class Connection;
  friend class Connection;

  boost::asio::io_context& io_;
  const ServerAddress server_;
  boost::asio::ip::tcp::resolver::results_type endpoints_;
  std::unordered_set<std::shared_ptr<Connection>> busy_;
  std::vector<std::shared_ptr<Connection>> idle_;  ///< the last one was used last
};

struct HttpAnswer {
  int status = 0;
  std::string body = {};
};
/// Asks once, and waits at most `timeout_s`. Throws SystemError where there is no answer.
HttpAnswer ask(const ServerAddress& server, HttpRequest request, double timeout_s);

}  // namespace weft::bench
