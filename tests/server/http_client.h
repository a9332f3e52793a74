#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace weft::test {

/// A connection to a server on this machine. Throws std::runtime_error when it cannot go on.
class Connection {
 public:
  explicit Connection(int port, int receive_buffer = 0);
  /// To a Unix socket.
  explicit Connection(const std::string& path);
  virtual ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view text);
  /// Like send(), but what the other side no longer takes is no error. Returns the bytes that it took.
  virtual size_t try_send(std::string_view text);
  void shutdown_send();
  /// At most `bytes`; "" at the end of the stream. Throws after `timeout`.
  virtual std::string receive(size_t bytes = 65536, std::chrono::milliseconds timeout = std::chrono::minutes(5));
  std::string receive_all();

 protected:
  int socket_;
};

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in small letters
  std::string body;                            ///< without chunk sizes

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  /// The data of every server-sent event, the last "[DONE]" included.
  std::vector<std::string> events() const;
  /// error.code, or "" if it is null.
  std::string error_code() const;
};

/// One connection, on which requests may follow one another.
class Client {
 public:
  explicit Client(int port) : connection_(std::make_unique<Connection>(port)) {}
  explicit Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

  Answer get(const std::string& path, const std::string& headers = "") { return request("GET", path, headers, ""); }
  Answer post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return request("POST", path, headers, body);
  }
  /// `headers` in lines that end with \r\n.
  Answer request(const std::string& method, const std::string& path, const std::string& headers, const std::string& body);
  void send(std::string_view text) { connection_->send(text); }
  /// Reads one answer; `head_only` as after HEAD.
  Answer read_answer(bool head_only = false);
  /// Reads on until `text` came, e.g. the first event of a stream.
  void read_until(std::string_view text);
  Connection& connection() { return *connection_; }

 private:
  std::unique_ptr<Connection> connection_;
  std::string in_;
};

/// The text of a request.
std::string http_request(const std::string& method, const std::string& path, const std::string& headers,
                         const std::string& body);

}  // namespace weft::test
