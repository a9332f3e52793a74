#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/http_server.h"
#include "server/transport.h"

namespace weft {

class HttpSession;

/// What the sessions of a server share. All on the io thread, but for what is posted to a pool.
struct HttpServer::Parts {
  using Clock = std::chrono::steady_clock;
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;
  using Socket = Transport::Socket;

  Parts(const HttpConfig& config_in, Service& service_in, Wake& wake_in);
  ~Parts();

  void accept();
  void welcome(Socket socket);
  void refuse_connection(Socket socket) const;
  void await_wake();
  void await_tick();
  void await_signal();
  void await_flight_signal();
  void sweep();
  void begin_drain();
  void end_when_quiet();
  void end();

  const HttpConfig config;
  const size_t max_connections;
  Service& service;
  Wake& wake;
  const std::unique_ptr<boost::asio::ssl::context> tls;  ///< null: in the clear
  boost::asio::io_context io{1};
  Acceptor acceptor{io};
  boost::asio::signal_set signals{io}, flight_signal;
  boost::asio::posix::stream_descriptor wake_descriptor;
  boost::asio::steady_timer tick{io};
  std::unordered_map<HttpSession*, std::shared_ptr<HttpSession>> sessions;
  std::vector<std::shared_ptr<HttpSession>> followers;  ///< those whose answer is on its way
  size_t body_bytes = 0;                                ///< of all bodies that are being read
  bool accept_paused = false, draining = false;
  Clock::time_point last_words = Clock::time_point::max();
  std::thread drainer;
  boost::asio::thread_pool quick{1}, slow{1};
};

}  // namespace weft
