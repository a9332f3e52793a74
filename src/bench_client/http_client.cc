#include "bench_client/http_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <optional>

#include "base/check.h"

namespace weft::bench {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 8 << 10;  // twice a connection, of which there may be thousands
constexpr uint32_t kMaxHeaderBytes = 1 << 20;

}  // namespace

ServerAddress ServerAddress::parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&](const char* why) {
    throw UserError("the server's address must be http://HOST, http://HOST:PORT or that with a path: {}, got {}", why,
                    url.substr(0, 200));
  };
  if (url.starts_with("https://")) refuse("this client does not speak TLS; ask the server behind its proxy");
  if (!url.starts_with(kScheme)) refuse("it does not begin with http://");
  const size_t path = std::min(url.find('/', kScheme.size()), url.size());
  const std::string authority = url.substr(kScheme.size(), path - kScheme.size());
  ServerAddress out{.host = authority, .port = "80", .prefix = url.substr(path)};
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  const size_t bracket = authority.find(']');
  const size_t colon = authority.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    out.host = authority.substr(0, colon);
    out.port = authority.substr(colon + 1);
    int number = 0;
    const char* end = out.port.data() + out.port.size();
    if (const auto [last, error] = std::from_chars(out.port.data(), end, number);
        error != std::errc() || last != end || number < 1 || number > 65535)
      refuse("the port is not 1 to 65535");
  }
  if (out.host.starts_with('[') && out.host.ends_with(']')) out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.host.find_first_of("[]@ ") != std::string::npos) refuse("there is no host name");
  return out;
}

std::string ServerAddress::host_header() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}
std::string ServerAddress::url() const { return "http://" + host_header() + prefix; }

/// One connection, which carries one request after the other.
class HttpClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(HttpClient& client) : client_(&client), socket_(client.io_) { in_.reserve(kReadBytes); }

  void start(HttpRequest request, HttpHandlers handlers) {
    request_ =
        http::request<http::string_body>(http::string_to_verb(request.method), client_->server_.prefix + request.path, 11);
    request_.set(http::field::host, client_->server_.host_header());
    for (const auto& [name, value] : request.headers) request_.set(name, value);
    request_.body() = std::move(request.body);
    request_.prepare_payload();
    handlers_ = std::move(handlers);
    reused_ = socket_.is_open();
    if (reused_) return write();
    connect();
  }
  /// Nobody is told any more.
  void close() {
    client_ = nullptr;
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  void connect() {
    asio::async_connect(socket_, client_->endpoints_,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) { self->on_connect(error); });
  }
  void on_connect(error_code error) {
    if (client_ == nullptr) return;
    if (error) return end("cannot connect: " + error.message());
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    write();
  }
  void write() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    http::async_write(socket_, request_, [self = shared_from_this()](error_code error, size_t) { self->on_written(error); });
  }
  void on_written(error_code error) {
    if (client_ == nullptr) return;
    // A server may answer, e.g. 413, before it has read everything: see what it says.
    if (error && reused_) return again();
    write_error_ = error;
    http::async_read_header(socket_, in_, *parser_, [self = shared_from_this()](error_code read_error, size_t bytes) {
      self->on_head(read_error, bytes);
    });
  }
  void on_head(error_code error, size_t) {
    if (client_ == nullptr) return;
    if (error) {
      if (reused_ && !parser_->got_some()) return again();
      if (write_error_) error = write_error_;
      return end(error == http::error::end_of_stream ? "the server closed the connection without an answer" : error.message());
    }
    handlers_.head(static_cast<int>(parser_->get().result_int()));
    read_body();
  }
  /// The server had closed an idle connection: the request goes over a fresh one.
  void again() {
    reused_ = false;
    error_code ignored;
    socket_.close(ignored);
    in_.clear();
    connect();
  }
  void read_body() {
    if (client_ == nullptr) return;
    if (parser_->is_done()) return end("");
    // Chunk by chunk: an eager parser gives a chunk only once it has seen the beginning of the next, which would make every
    // token as late as the one after it.
    parser_->eager(false);
    parser_->get().body() = {.data = bytes_.data(), .size = bytes_.size(), .more = true};
    http::async_read_some(socket_, in_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
  }
  void on_body(error_code error) {
    if (client_ == nullptr) return;
    const size_t got = bytes_.size() - parser_->get().body().size;
    if (got > 0) handlers_.body({bytes_.data(), got});
    if (client_ == nullptr) return;
    if (error && error != http::error::need_buffer)
      return end(error == http::error::partial_message || error == asio::error::connection_reset
                     ? "the server closed the connection in the middle of the answer"
                     : error.message());
    read_body();
  }
  void end(const std::string& why) {
    const auto self = shared_from_this();
    HttpClient& client = *client_;
    const bool keep = why.empty() && !write_error_ && parser_->keep_alive();
    client.busy_.erase(self);
    if (keep) {
      client.idle_.push_back(self);
    } else {
      close();
    }
    const auto told = std::exchange(handlers_, {});
    told.end(why);
  }

  HttpClient* client_;  ///< null once closed
  tcp::socket socket_;
  http::request<http::string_body> request_;
  HttpHandlers handlers_;
  bool reused_ = false;
  error_code write_error_;
  boost::beast::flat_buffer in_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::array<char, kReadBytes> bytes_;
};

HttpClient::HttpClient(asio::io_context& io, const ServerAddress& server) : io_(io), server_(server) {
  error_code error;
  endpoints_ = tcp::resolver(io).resolve(server.host, server.port, error);
  if (error) throw UserError("no such host: {}, at {}", error.message(), server.url());
}
HttpClient::~HttpClient() { close(); }

void HttpClient::send(HttpRequest request, HttpHandlers handlers) {
  std::shared_ptr<Connection> connection;
  if (idle_.empty()) {
    connection = std::make_shared<Connection>(*this);
  } else {
    connection = std::move(idle_.back());
    idle_.pop_back();
  }
  busy_.insert(connection);
  connection->start(std::move(request), std::move(handlers));
}

void HttpClient::close() {
  for (const auto& connection : busy_) connection->close();
  for (const auto& connection : idle_) connection->close();
  busy_.clear();
  idle_.clear();
}

HttpAnswer ask(const ServerAddress& server, HttpRequest request, double timeout_s) {
  asio::io_context io{1};
  HttpClient client(io, server);
  HttpAnswer out;
  std::optional<std::string> error;
  client.send(std::move(request), {.head = [&](int status) { out.status = status; },
                                   .body = [&](std::string_view bytes) { out.body += bytes; },
                                   .end =
                                       [&](std::string why) {
                                         error = std::move(why);
                                         io.stop();
                                       }});
  io.run_for(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout_s)));
  if (!error) throw SystemError("no answer within {} s from {}", timeout_s, server.url());
  if (!error->empty()) throw SystemError("{}, at {}", *error, server.url());
  return out;
}

}  // namespace weft::bench
