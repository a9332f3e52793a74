#include "server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace weft::test {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

}  // namespace

Connection::Connection(int port, int receive_buffer) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (socket_ < 0) fail("socket");
  if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    fail("connect");
  }
}
Connection::Connection(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    fail("connect");
  }
}
Connection::~Connection() { ::close(socket_); }

size_t Connection::try_send(std::string_view text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const auto n = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  return sent;
}
void Connection::send(std::string_view text) {
  if (try_send(text) != text.size()) fail("send");
}
void Connection::shutdown_send() { ::shutdown(socket_, SHUT_WR); }

std::string Connection::receive(size_t bytes, std::chrono::milliseconds timeout) {
  pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, static_cast<int>(timeout.count())) == 0) throw std::runtime_error("the server says nothing");
  std::string out(bytes, '\0');
  const auto n = ::recv(socket_, out.data(), out.size(), 0);
  if (n < 0) fail("receive");
  out.resize(static_cast<size_t>(n));
  return out;
}

std::string Connection::receive_all() {
  std::string out;
  while (true) {
    const std::string more = receive();
    if (more.empty()) return out;
    out += more;
  }
}

std::vector<std::string> Answer::events() const {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0)
      throw std::runtime_error("no event: " + body.substr(at));
    out.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return out;
}

std::string Answer::error_code() const {
  const nlohmann::json code = json().at("error").at("code");
  return code.is_null() ? "" : code.get<std::string>();
}

std::string http_request(const std::string& method, const std::string& path, const std::string& headers,
                         const std::string& body) {
  std::string out = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers;
  if (!body.empty() || method == "POST") out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return out + "\r\n" + body;
}

Answer Client::request(const std::string& method, const std::string& path, const std::string& headers,
                       const std::string& body) {
  connection_->send(http_request(method, path, headers, body));
  return read_answer(method == "HEAD");
}

void Client::read_until(std::string_view text) {
  while (in_.find(text) == std::string::npos) {
    const std::string more = connection_->receive();
    if (more.empty()) throw std::runtime_error("the stream ended");
    in_ += more;
  }
}

Answer Client::read_answer(bool head_only) {
  read_until("\r\n\r\n");
  Answer out;
  const size_t head_end = in_.find("\r\n\r\n");
  const std::string head = in_.substr(0, head_end + 2);
  in_.erase(0, head_end + 4);
  out.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    out.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head_only || out.status == 204) return out;
  const auto need = [&](size_t bytes) {
    while (in_.size() < bytes) {
      const std::string more = connection_->receive();
      if (more.empty()) throw std::runtime_error("the answer is cut off");
      in_ += more;
    }
  };
  if (out.headers.contains("content-length")) {
    const size_t length = std::stoul(out.headers["content-length"]);
    need(length);
    out.body = in_.substr(0, length);
    in_.erase(0, length);
  } else if (out.headers["transfer-encoding"] == "chunked") {
    while (true) {
      while (in_.find("\r\n") == std::string::npos) need(in_.size() + 1);
      const size_t line = in_.find("\r\n"), size = std::stoul(in_.substr(0, line), nullptr, 16);
      need(line + 2 + size + 2);
      out.body += in_.substr(line + 2, size);
      in_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
  } else {
    out.body = std::exchange(in_, "") + connection_->receive_all();
  }
  return out;
}

}  // namespace weft::test
