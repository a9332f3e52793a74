#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <cstring>

#include "base/log.h"
#include "server/http_session.h"

namespace weft {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

constexpr auto kSweep = 100ms;   // deadlines are kept to this precision
constexpr auto kLastWords = 5s;  // for answers to leave once the engine has ended
constexpr int kBacklog = 4096;   // connections that the system takes while the io thread is busy

/// The most connections that leave descriptors for everything else.
size_t allowed_connections(size_t wanted) {
  constexpr rlim_t kOthers = 128;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < wanted + kOthers && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted + kOthers);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur < wanted + kOthers ? std::max<size_t>(1, limit.rlim_cur > kOthers ? limit.rlim_cur - kOthers : 1)
                                           : wanted;
}

/// Runs what may run out of memory: one connection must not end a loop that all need. False if it failed.
template <typename Work>
bool guarded(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    log::error("a connection failed: {}", error.what());
    return false;
  }
}

asio::generic::stream_protocol::endpoint endpoint_of(const HttpConfig& config) {
  if (!config.unix_socket.empty()) {
    try {
      return asio::local::stream_protocol::endpoint(config.unix_socket);
    } catch (const boost::system::system_error&) {
      throw UserError("--uds must be a path of at most {} bytes: got {} bytes", sizeof(sockaddr_un::sun_path) - 1,
                      config.unix_socket.size());
    }
  }
  error_code error;
  const auto address = asio::ip::make_address(config.host == "localhost" ? "127.0.0.1" : config.host, error);
  if (error)
    throw UserError("--host must be an address such as 127.0.0.1, 0.0.0.0 or ::, or localhost: got {}", as_quoted(config.host));
  return tcp::endpoint(address, static_cast<uint16_t>(config.port));
}

/// A socket that a server left behind when it was killed would be in the way. One that somebody answers stays.
void remove_stale_socket(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return;
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (error == asio::error::connection_refused) ::unlink(path.c_str());
}

}  // namespace

HttpServer::Parts::Parts(const HttpConfig& config_in, Service& service_in, Wake& wake_in)
    : config(config_in),
      max_connections(allowed_connections(config_in.max_connections)),
      service(service_in),
      wake(wake_in),
      tls(make_tls(config_in.tls)),
      flight_signal(io, SIGUSR2),
      wake_descriptor(io, ::dup(wake_in.descriptor())) {
  const bool is_path = !config.unix_socket.empty();
  const auto endpoint = endpoint_of(config);
  if (is_path) remove_stale_socket(config.unix_socket);
  try {
    acceptor.open(endpoint.protocol());
    if (!is_path) acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(kBacklog);
    acceptor.non_blocking(true);
  } catch (const boost::system::system_error& failed) {
    const std::string where = is_path ? config.unix_socket : fmt::format("{} port {}", config.host, config.port);
    throw SystemError("cannot listen on {}: {}", where, failed.code().message());
  }
}

HttpServer::Parts::~Parts() {
  if (!config.unix_socket.empty()) ::unlink(config.unix_socket.c_str());
  if (drainer.joinable()) drainer.join();
  quick.join();
  slow.join();
}

void HttpServer::Parts::accept() {
  acceptor.async_accept([this](error_code error, Socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      // Out of descriptors or memory: some are given back as connections end; the next sweep tries again.
      accept_paused = true;
      return;
    }
    guarded([&] { welcome(std::move(socket)); });
    accept();
  });
}

void HttpServer::Parts::welcome(Socket socket) {
  service.http().connections_total.add();
  if (sessions.size() >= max_connections) return refuse_connection(std::move(socket));
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);  // Of a Unix socket it fails.
  socket.non_blocking(true, ignored);
  const auto session = std::make_shared<HttpSession>(*this, std::move(socket));
  sessions.emplace(session.get(), session);
  service.http().connections.set(static_cast<double>(sessions.size()));
  session->start();
}

void HttpServer::Parts::refuse_connection(Socket socket) const {
  service.http().connections_refused.add();
  if (tls != nullptr) return;  // A handshake costs more than there is for it.
  const std::string body = error_json(503, "too many connections are open: try again later", {}, "too_many_connections");
  const std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Retry-After: 1\r\nConnection: close\r\n\r\n{}",
      body.size(), body);
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text), ignored);
}

void HttpServer::Parts::await_wake() {
  wake_descriptor.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    if (error) return;
    wake.clear();  // Before looking: what comes from now on rings again.
    for (size_t i = 0; i < followers.size();) {
      const std::shared_ptr<HttpSession> session = followers[i];
      if (!guarded([&] { session->advance(); })) session->close();
      if (session->keeps_following()) {
        ++i;
      } else {
        followers[i] = std::move(followers.back());
        followers.pop_back();
      }
    }
    await_wake();
  });
}

void HttpServer::Parts::await_tick() {
  tick.expires_after(kSweep);
  tick.async_wait([this](error_code error) {
    if (error) return;
    guarded([&] { sweep(); });
    await_tick();
  });
}

void HttpServer::Parts::await_signal() {
  signals.async_wait([this](error_code error, int number) {
    if (error) return;
    log::info("{}: {}", ::strsignal(number), draining ? "ending now" : "finishing what runs; once more to end now");
    if (draining) return end();
    begin_drain();
    await_signal();
  });
}

void HttpServer::Parts::await_flight_signal() {
  flight_signal.async_wait([this](error_code error, int) {
    if (error) return;
    if (Backend* backend = service.backend(); backend != nullptr) backend->write_flight();
    await_flight_signal();
  });
}

void HttpServer::Parts::sweep() {
  const auto now = Clock::now();
  service.tick(now);
  if (std::exchange(accept_paused, false)) accept();
  std::vector<std::shared_ptr<HttpSession>> all;
  for (const auto& [pointer, session] : sessions) all.push_back(session);
  for (const auto& session : all) session->check_deadline(now);
  if (last_words == Clock::time_point::max() && service.state() == Service::State::failed) {
    log::error("the engine has failed: {}", service.failure());
    end_when_quiet();
  }
  if (last_words == Clock::time_point::max()) return;
  const bool quiet = std::none_of(all.begin(), all.end(), [](const auto& session) { return session->is_busy(); });
  if (quiet || now > last_words) end();
}

void HttpServer::Parts::begin_drain() {
  if (std::exchange(draining, true)) return;
  service.begin_drain();
  if (config.on_drain) config.on_drain();
  Backend* backend = service.backend();
  if (backend == nullptr) return end_when_quiet();
  drainer = std::thread([this, backend] {
    if (!backend->drain(config.shutdown_timeout.count())) log::warn("some requests were cancelled: --shutdown-timeout is over");
    asio::post(io, [this] { end_when_quiet(); });
  });
}

void HttpServer::Parts::end_when_quiet() { last_words = Clock::now() + kLastWords; }

void HttpServer::Parts::end() {
  error_code ignored;
  acceptor.close(ignored);
  while (!sessions.empty()) {
    const std::shared_ptr<HttpSession> session = sessions.begin()->second;
    session->close();
  }
  followers.clear();
  quick.stop();
  slow.stop();
  io.stop();
}

HttpServer::HttpServer(const HttpConfig& config, Service& service, Wake& wake)
    : parts_(std::make_unique<Parts>(config, service, wake)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  if (!parts_->config.unix_socket.empty()) return 0;
  const auto local = parts_->acceptor.local_endpoint();
  tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), local.data(), std::min(local.size(), endpoint.capacity()));
  return endpoint.port();
}

std::string HttpServer::address() const {
  const HttpConfig& config = parts_->config;
  if (!config.unix_socket.empty()) return "unix:" + config.unix_socket;
  const bool is_v6 = config.host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", parts_->tls == nullptr ? "http" : "https", is_v6 ? "[" + config.host + "]" : config.host,
                     port());
}

void HttpServer::run() {
  Parts& p = *parts_;
  p.accept();
  p.await_wake();
  p.await_tick();
  p.await_flight_signal();
  while (!p.io.stopped()) {
    try {
      p.io.run();
    } catch (const std::exception& error) {
      log::error("a connection failed: {}", error.what());  // Of memory most likely; the others go on.
    }
  }
}

void HttpServer::drain_on_signals() {
  asio::post(parts_->io, [p = parts_.get()] {
    p->signals.add(SIGINT);
    p->signals.add(SIGTERM);
    p->await_signal();
  });
}
void HttpServer::drain() {
  asio::post(parts_->io, [p = parts_.get()] { p->begin_drain(); });
}
void HttpServer::stop() {
  asio::post(parts_->io, [p = parts_.get()] { p->end(); });
}

}  // namespace weft
