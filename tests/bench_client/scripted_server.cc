#include "bench_client/scripted_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace weft::bench::test {

ScriptedServer::ScriptedServer(Script script)
    : script_(std::move(script)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 128) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no port to listen on");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] {
    while (true) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      ++connections_;
      const std::lock_guard lock(mutex_);
      open_.push_back(socket);
      threads_.emplace_back([this, socket] { serve(socket); });
    }
  });
}

ScriptedServer::~ScriptedServer() {
  stop_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  drop_connections();
  for (std::thread& thread : threads_) thread.join();
}

void ScriptedServer::pause(std::chrono::milliseconds duration) const {
  constexpr std::chrono::milliseconds kStep(1);
  for (auto waited = duration * 0; waited < duration && !stop_; waited += kStep) std::this_thread::sleep_for(kStep);
}

void ScriptedServer::drop_connections() {
  const std::lock_guard lock(mutex_);
  for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
}

void ScriptedServer::serve(int socket) {
  std::string in;
  const auto read_more = [&] {
    char bytes[65536];
    const auto n = ::recv(socket, bytes, sizeof bytes, 0);
    if (n > 0) in.append(bytes, static_cast<size_t>(n));
    return n > 0;
  };
  bool open = true;
  while (open) {
    size_t head_end;
    while ((head_end = in.find("\r\n\r\n")) == std::string::npos && (open = read_more())) {
    }
    if (!open) break;
    const std::string head = in.substr(0, head_end + 4);
    const size_t length_at = head.find("Content-Length: ");
    const size_t length = length_at == std::string::npos ? 0 : std::stoul(head.substr(length_at + 16));
    while (in.size() < head.size() + length && (open = read_more())) {
    }
    if (!open) break;
    const std::string body = in.substr(head.size(), length);
    in.erase(0, head.size() + length);
    ++requests_;
    most_ = std::max<int>(most_, ++at_once_);
    const Reply reply = script_(head, body);
    pause(reply.before);
    --at_once_;
    ::send(socket, reply.bytes.data(), reply.bytes.size(), MSG_NOSIGNAL);
    pause(reply.after);
    open = !reply.close;
  }
  const std::lock_guard lock(mutex_);
  open_.erase(std::find(open_.begin(), open_.end(), socket));
  ::close(socket);
}

std::string plain_answer(int status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status, body.size(),
                     body);
}

std::string stream_answer(const std::vector<std::string>& events) {
  std::string out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& event : events) {
    const std::string line = "data: " + event + "\n\n";
    out += fmt::format("{:x}\r\n{}\r\n", line.size(), line);
  }
  return out + "0\r\n\r\n";
}

std::string text_event(const std::string& text) {
  return fmt::format(R"({{"choices": [{{"index": 0, "text": "{}", "finish_reason": null}}]}})", text);
}
std::vector<std::string> ending_events(int prompt_tokens, int completion_tokens) {
  return {R"({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})",
          fmt::format(R"({{"choices": [], "usage": {{"prompt_tokens": {}, "completion_tokens": {}}}}})", prompt_tokens,
                      completion_tokens),
          "[DONE]"};
}
std::string whole_stream(int prompt_tokens, int tokens) {
  std::vector<std::string> events(static_cast<size_t>(tokens), text_event("x"));
  const auto ending = ending_events(prompt_tokens, tokens);
  events.insert(events.end(), ending.begin(), ending.end());
  return stream_answer(events);
}

}  // namespace weft::bench::test
