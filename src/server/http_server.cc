#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>
#include <unordered_map>

#include "base/log.h"

namespace weft {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSweep = 100ms;           // deadlines are kept to this precision
constexpr auto kLinger = 2s;             // for a client to read a refusal while it still sends
constexpr auto kLastWords = 5s;          // for answers to leave once the engine has ended
constexpr size_t kPipelined = 64 << 10;  // bytes of further requests that are read while one is answered
constexpr size_t kSmallBody = 64 << 10;  // up to here a body is read in well under a millisecond
constexpr size_t kBodiesAtOnce = 8;      // of the largest size, over all connections
constexpr size_t kMaxRequestId = 128;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

/// A client's id may go into headers and the log as it is.
std::string clean_id(std::string_view id) {
  std::string out(id.substr(0, kMaxRequestId));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < '!' || c > '~'; }, '_');
  return out;
}

/// The path of a request's target, also of one with the server's name before it, with its %-codes read.
std::string path_of(std::string_view target) {
  if (target.starts_with("http://") || target.starts_with("https://"))
    target.remove_prefix(std::min(target.find('/', target.find("//") + 2), target.size()));
  target = target.substr(0, target.find('?'));
  std::string out;
  for (size_t i = 0; i < target.size(); ++i) {
    unsigned code = 0;
    const std::string_view hex = target.substr(std::min(i + 1, target.size()), 2);
    const bool coded =
        target[i] == '%' && hex.size() == 2 && std::from_chars(hex.data(), hex.data() + 2, code, 16).ptr == hex.data() + 2;
    out += coded ? static_cast<char>(code) : target[i];
    if (coded) i += 2;
  }
  return out;
}

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

class Session;

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpConfig& config_in, Service& service_in, Wake& wake_in);
  ~Parts();

  /// Runs what may run out of memory: one connection must not end a loop that all need. False if it failed.
  template <typename Work>
  static bool guarded(const Work& work) {
    try {
      work();
      return true;
    } catch (const std::exception& error) {
      log::error("a connection failed: {}", error.what());
      return false;
    }
  }
  void accept();
  void welcome(tcp::socket socket);
  void refuse_connection(tcp::socket socket) const;
  void await_wake();
  void await_tick();
  void await_signal();
  void await_flight_signal();
  void sweep();
  void begin_drain();
  void end_when_quiet() { last_words = Clock::now() + kLastWords; }
  void end();

  const HttpConfig config;
  const size_t max_connections;
  Service& service;
  Wake& wake;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::signal_set signals{io}, flight_signal{io, SIGUSR2};
  asio::posix::stream_descriptor wake_descriptor;
  asio::steady_timer tick{io};
  std::unordered_map<Session*, std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<Session>> followers;  ///< those whose answer is on its way
  size_t body_bytes = 0;                            ///< of all bodies that are being read
  bool accept_paused = false, draining = false;
  Clock::time_point last_words = Clock::time_point::max();
  std::thread drainer;
  asio::thread_pool quick{1}, slow{1};
};

namespace {

/// One connection: requests one after the other. All on the io thread, except what is posted to a pool, which touches only
/// `head_` and `answer_` while the session waits for it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(HttpServer::Parts& server, tcp::socket socket);

  void start() { read_head(); }
  /// Sends what the answer has that is new. Called whenever there may be some.
  void advance();
  /// Whether there is more to follow; else it is to be taken off the list of followers.
  bool keeps_following() {
    followed_ = answer_ != nullptr;
    return followed_;
  }
  bool is_busy() const { return state_ == State::reading_body || state_ == State::working; }
  void check_deadline(Clock::time_point now);
  void close();

 private:
  enum class State : uint8_t { reading_head, reading_body, working, lingering, closed };
  struct Step {
    std::string bytes;
    std::optional<HttpResponse> failed;
  };

  void read_head();
  void on_head(error_code error);
  void read_body();
  void on_body(error_code error);
  bool account_body();
  void work();
  void on_reply(Service::Reply reply);
  void watch();
  void on_watch(error_code error, size_t bytes);
  void start_stream();
  Step step();
  void on_step(Step step);
  void refuse(int status, const std::string& message, const std::string& code);
  void respond(const HttpResponse& response);
  std::string head_text(int status, const HttpResponse& response, bool streamed) const;
  void send(std::string head, std::string body);
  void write();
  void on_written(error_code error, size_t bytes);
  void finish();
  void linger();
  void disconnected();
  template <typename Duration>
  void expire_in(Duration duration) {
    deadline_ = Clock::now() + duration;
  }

  HttpServer::Parts& server_;
  tcp::socket socket_;
  beast::flat_buffer in_;
  std::optional<http::request_parser<http::string_body>> parser_;
  State state_ = State::reading_head;
  Clock::time_point deadline_ = Clock::time_point::max();

  // The request that is being read or answered.
  HttpHead head_;
  Clock::time_point began_{};
  bool keep_alive_ = true, http_1_0_ = false, chunked_ = false;
  std::optional<HttpResponse> refusal_;  ///< the answer is known; the body is only read over
  size_t body_accounted_ = 0;
  bool handling_ = false;          ///< a pool has the body
  std::atomic<bool> gone_{false};  ///< nobody waits for what a pool would do
  int status_ = 0;
  std::string answer_id_;

  std::unique_ptr<Completion> answer_;
  bool stepping_ = false;  ///< a pool works on answer_
  bool followed_ = false;  ///< in the list of followers
  bool reading_ = false;   ///< a read is outstanding
  bool writing_ = false;
  bool last_write_ = false;  ///< after which the answer is complete
  std::string out_head_, out_body_;
  std::array<asio::const_buffer, 2> out_{};
  std::array<char, 4096> scrap_;
  size_t lingered_ = 0;
};

Session::Session(HttpServer::Parts& server, tcp::socket socket)
    : server_(server), socket_(std::move(socket)), in_(server.config.max_header_bytes + kPipelined) {}

void Session::read_head() {
  state_ = State::reading_head;
  expire_in(server_.config.idle_timeout);
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.config.max_header_bytes));
  parser_->body_limit(server_.config.max_body_bytes);
  reading_ = true;
  http::async_read_header(socket_, in_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->on_head(error); });
}

void Session::on_head(error_code error) {
  reading_ = false;
  if (state_ != State::reading_head) return;  // Timed out, or closed.
  const auto& request = parser_->get();
  if (error && error.category() != http::make_error_code(http::error::bad_method).category()) return close();
  if (error == http::error::end_of_stream || error == http::error::partial_message) return close();

  began_ = Clock::now();
  head_ = {};
  refusal_.reset();
  keep_alive_ = !error && request.keep_alive();
  http_1_0_ = request.version() < 11;
  const auto field = [&](http::field name) { return std::string(request[name]); };
  head_.method = std::string(request.method_string());
  head_.path = path_of(std::string_view(request.target().data(), request.target().size()));
  head_.authorization = field(http::field::authorization);
  head_.origin = field(http::field::origin);
  head_.request_id = clean_id(std::string(request["X-Request-Id"]));
  head_.preflight_method = field(http::field::access_control_request_method);
  head_.preflight_headers = field(http::field::access_control_request_headers);
  state_ = State::working;
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header is larger than {} bytes", server_.config.max_header_bytes), "header_too_large");
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes (--max-body-size)", server_.config.max_body_bytes),
                  "body_too_large");
  if (error) return refuse(400, "this is not an HTTP request: " + error.message(), "bad_http");

  const bool asks_first = beast::iequals(request[http::field::expect], "100-continue");
  refusal_ = server_.service.answer(head_);
  if (refusal_ && !parser_->is_done()) {
    // What is left of the body would look like the next request. A small one is read over, else the connection ends.
    const auto length = parser_->content_length();
    if (asks_first || !length || *length > kSmallBody) keep_alive_ = false;
  }
  if (refusal_ && (parser_->is_done() || !keep_alive_)) return respond(*std::exchange(refusal_, std::nullopt));
  state_ = State::reading_body;
  expire_in(server_.config.body_timeout);
  if (asks_first) {
    error_code ignored;  // The socket's buffer is empty: this neither blocks nor fails unless the client is gone.
    asio::write(socket_, asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), ignored);
  }
  read_body();
}

void Session::read_body() {
  if (parser_->is_done()) return refusal_ ? respond(*std::exchange(refusal_, std::nullopt)) : work();
  reading_ = true;
  http::async_read_some(socket_, in_, *parser_,
                        [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
}

/// False where all bodies together have become too large.
bool Session::account_body() {
  const size_t now = parser_->get().body().size();
  server_.body_bytes += now - body_accounted_;
  body_accounted_ = now;
  return server_.body_bytes <= kBodiesAtOnce * server_.config.max_body_bytes;
}

void Session::on_body(error_code error) {
  reading_ = false;
  if (state_ != State::reading_body) return;
  if (error == http::error::body_limit) {
    keep_alive_ = false;
    return refuse(413, fmt::format("the body is larger than {} bytes (--max-body-size)", server_.config.max_body_bytes),
                  "body_too_large");
  }
  if (error && error != http::error::need_buffer) {
    keep_alive_ = false;
    if (error.category() != http::make_error_code(http::error::bad_method).category() || error == http::error::partial_message)
      return disconnected();
    return refuse(400, "the body is not what its header says: " + error.message(), "bad_http");
  }
  if (!account_body()) {
    keep_alive_ = false;
    return refuse(503, "too many large bodies are on their way: try again later", "too_many_bodies");
  }
  read_body();
}

void Session::work() {
  state_ = State::working;
  deadline_ = Clock::time_point::max();
  std::string body = std::move(parser_->get().body());
  server_.service.http().body_bytes.add(static_cast<int64_t>(body.size()));
  handling_ = true;  // The body counts until the pool has done with it.
  auto& pool = body.size() <= kSmallBody ? server_.quick : server_.slow;
  asio::post(pool, [self = shared_from_this(), body = std::move(body)]() mutable {
    Service::Reply reply;
    if (!self->gone_) reply = self->server_.service.handle(self->head_, std::move(body));
    body = {};
    asio::post(self->server_.io, [self, reply = std::move(reply)]() mutable { self->on_reply(std::move(reply)); });
  });
  watch();
}

/// While a request is answered, a read tells when its client leaves. What it sends meanwhile is kept, up to a bound.
void Session::watch() {
  if (reading_ || in_.size() >= kPipelined) return;
  reading_ = true;
  socket_.async_read_some(in_.prepare(4096),
                          [self = shared_from_this()](error_code error, size_t bytes) { self->on_watch(error, bytes); });
}

void Session::on_watch(error_code error, size_t bytes) {
  reading_ = false;
  if (state_ == State::closed) return;
  in_.commit(bytes);
  if (state_ == State::reading_head) return read_head();  // finish() has cancelled this read.
  if (error) return disconnected();
  watch();
}

void Session::on_reply(Service::Reply reply) {
  handling_ = false;
  server_.body_bytes -= std::exchange(body_accounted_, 0);
  if (state_ == State::closed) return;
  if (reply.later == nullptr) return respond(reply.now);
  answer_ = std::move(reply.later);
  answer_id_ = answer_->id();
  if (!std::exchange(followed_, true)) server_.followers.push_back(shared_from_this());
  if (answer_->streams()) {
    start_stream();
  } else {
    advance();
  }
}

void Session::start_stream() {
  chunked_ = !http_1_0_;
  if (http_1_0_) keep_alive_ = false;
  HttpResponse response{.body = {}, .content_type = "text/event-stream; charset=utf-8"};
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  send(head_text(200, response, true), {});
}

Session::Step Session::step() {
  try {
    std::string bytes = answer_->step();
    return {.bytes = std::move(bytes), .failed = std::nullopt};
  } catch (const ApiError& error) {
    return {.bytes = {}, .failed = server_.service.error(error)};
  } catch (const std::exception& error) {
    log::error("{}: the answer could not be made: {}", answer_id_, error.what());
    return {.bytes = {}, .failed = server_.service.error(ApiError(500, "the answer could not be made", {}, "internal_error"))};
  }
}

void Session::advance() {
  if (state_ == State::closed || answer_ == nullptr || stepping_ || writing_ || !answer_->ready()) return;
  if (!answer_->heavy()) return on_step(step());
  stepping_ = true;
  asio::post(server_.slow, [self = shared_from_this()] {
    asio::post(self->server_.io, [self, step = self->step()]() mutable {
      self->stepping_ = false;
      self->on_step(std::move(step));
    });
  });
}

void Session::on_step(Step step) {
  if (state_ == State::closed) {
    answer_.reset();  // close() had to leave it to the pool.
    return;
  }
  if (!answer_->streams()) {
    if (step.failed) return respond(*step.failed);
    if (answer_->done()) return respond({.body = std::move(step.bytes)});
    return advance();
  }
  if (step.failed) {
    keep_alive_ = false;
    step.bytes = "data: " + step.failed->body + "\n\n";
  }
  last_write_ = step.failed || answer_->done();
  if (step.bytes.empty() && !last_write_) return advance();
  if (!chunked_) return send({}, std::move(step.bytes));
  std::string size = fmt::format("{:x}\r\n", step.bytes.size());
  step.bytes += last_write_ ? "\r\n0\r\n\r\n" : "\r\n";
  send(std::move(size), std::move(step.bytes));
}

void Session::refuse(int status, const std::string& message, const std::string& code) {
  respond(server_.service.refuse(ApiError(status, message, {}, code)));
}

std::string Session::head_text(int status, const HttpResponse& response, bool streamed) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nServer: weft\r\nDate: {}\r\n", status,
                                std::string_view(reason.data(), reason.size()), http_date());
  if (status != 204) out += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (chunked_ && streamed) out += "Transfer-Encoding: chunked\r\n";
  if (!streamed && status != 204) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  if (!keep_alive_) out += "Connection: close\r\n";
  if (keep_alive_ && http_1_0_) out += "Connection: keep-alive\r\n";
  const std::string& id = head_.request_id.empty() ? answer_id_ : head_.request_id;
  if (!id.empty()) out += fmt::format("X-Request-Id: {}\r\n", id);
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : server_.service.cors(head_)) out += fmt::format("{}: {}\r\n", name, value);
  return out + "\r\n";
}

void Session::respond(const HttpResponse& response) {
  state_ = State::working;
  status_ = response.status;
  last_write_ = true;
  if (server_.draining) keep_alive_ = false;
  server_.body_bytes -= std::exchange(body_accounted_, 0);
  send(head_text(response.status, response, false), head_.method == "HEAD" ? std::string() : response.body);
}

void Session::send(std::string head, std::string body) {
  if (status_ == 0) status_ = 200;
  out_head_ = std::move(head);
  out_body_ = std::move(body);
  out_ = {asio::buffer(out_head_), asio::buffer(out_body_)};
  writing_ = true;
  write();
}

void Session::write() {
  expire_in(server_.config.write_timeout);
  socket_.async_write_some(out_,
                           [self = shared_from_this()](error_code error, size_t bytes) { self->on_written(error, bytes); });
}

void Session::on_written(error_code error, size_t bytes) {
  if (state_ == State::closed) return;
  if (error) return disconnected();
  server_.service.http().response_bytes.add(static_cast<int64_t>(bytes));
  for (asio::const_buffer& part : out_) {
    const size_t taken = std::min(bytes, part.size());
    part += taken;
    bytes -= taken;
  }
  if (asio::buffer_size(out_) > 0) return write();
  writing_ = false;
  deadline_ = Clock::time_point::max();
  if (last_write_) return finish();
  advance();
}

/// The answer is complete and sent.
void Session::finish() {
  server_.service.http().answered(Service::route(head_.path), status_);
  if (server_.service.logs_requests() && answer_ != nullptr)
    log::info("{} {}: {} prompt tokens, {} answered, status {}, {:.3f} s{}", answer_id_, head_.path, answer_->prompt_tokens(),
              answer_->completion_tokens(), status_, std::chrono::duration<double>(Clock::now() - began_).count(),
              head_.request_id.empty() ? "" : ", client's id " + head_.request_id);
  answer_.reset();
  answer_id_.clear();
  status_ = 0;
  last_write_ = chunked_ = false;
  out_head_ = {};
  out_body_ = {};
  if (!keep_alive_) return linger();
  state_ = State::reading_head;
  expire_in(server_.config.idle_timeout);
  if (reading_) {
    socket_.cancel();  // on_watch() goes on.
  } else {
    read_head();
  }
}

/// Closes for writing, and reads on for a moment: closing at once could destroy the answer before the client has read it.
void Session::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (reading_ && state_ != State::lingering) {
    // Some earlier read is still out, into buffers that must stay; its handler does nothing in this state, the deadline closes.
    state_ = State::lingering;
    expire_in(200ms);
    return;
  }
  if (state_ != State::lingering) expire_in(kLinger);
  state_ = State::lingering;
  reading_ = true;
  socket_.async_read_some(asio::buffer(scrap_), [self = shared_from_this()](error_code error, size_t bytes) {
    self->reading_ = false;
    if (self->state_ == State::closed) return;
    self->lingered_ += bytes;
    if (error || self->lingered_ > self->server_.config.max_body_bytes) return self->close();
    self->linger();
  });
}

void Session::disconnected() {
  if (state_ == State::working || state_ == State::reading_body) {
    server_.service.http().disconnects.add();
    if (server_.service.logs_requests() && !answer_id_.empty())
      log::info("{} {}: the client left after {:.3f} s", answer_id_, head_.path,
                std::chrono::duration<double>(Clock::now() - began_).count());
  }
  close();
}

void Session::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  gone_ = true;
  if (!handling_) server_.body_bytes -= std::exchange(body_accounted_, 0);
  if (!stepping_) answer_.reset();  // Cancels what still runs.
  error_code ignored;
  socket_.close(ignored);
  server_.service.http().connections.set(static_cast<double>(server_.sessions.size() - 1));
  server_.sessions.erase(this);  // The caller's handler still holds this session.
}

void Session::check_deadline(Clock::time_point now) {
  if (now < deadline_) return;
  const bool in_request =
      state_ == State::reading_body || (state_ == State::reading_head && (parser_->got_some() || in_.size() > 0));
  if (!in_request || writing_) return disconnected();
  keep_alive_ = false;
  if (state_ == State::reading_head) {
    head_ = {};
    began_ = now;
  }
  refuse(408, "the request did not come in time", "request_timeout");
}

}  // namespace

HttpServer::Parts::Parts(const HttpConfig& config_in, Service& service_in, Wake& wake_in)
    : config(config_in),
      max_connections(allowed_connections(config_in.max_connections)),
      service(service_in),
      wake(wake_in),
      wake_descriptor(io, ::dup(wake_in.descriptor())) {
  error_code error;
  const auto address = asio::ip::make_address(config.host == "localhost" ? "127.0.0.1" : config.host, error);
  if (error)
    throw UserError("--host must be an address such as 127.0.0.1, 0.0.0.0 or ::, or localhost: got {}", as_quoted(config.host));
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(config.port));
  try {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(1024);
    acceptor.non_blocking(true);
  } catch (const boost::system::system_error& failed) {
    throw SystemError("cannot listen on {} port {}: {}", config.host, config.port, failed.code().message());
  }
}

HttpServer::Parts::~Parts() {
  if (drainer.joinable()) drainer.join();
  quick.join();
  slow.join();
}

void HttpServer::Parts::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
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

void HttpServer::Parts::welcome(tcp::socket socket) {
  service.http().connections_total.add();
  if (sessions.size() >= max_connections) return refuse_connection(std::move(socket));
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.non_blocking(true, ignored);
  const auto session = std::make_shared<Session>(*this, std::move(socket));
  sessions.emplace(session.get(), session);
  service.http().connections.set(static_cast<double>(sessions.size()));
  session->start();
}

void HttpServer::Parts::refuse_connection(tcp::socket socket) const {
  service.http().connections_refused.add();
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
      const std::shared_ptr<Session> session = followers[i];
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
  std::vector<std::shared_ptr<Session>> all;
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
  Backend* backend = service.backend();
  if (backend == nullptr) return end_when_quiet();
  drainer = std::thread([this, backend] {
    if (!backend->drain(config.shutdown_timeout.count())) log::warn("some requests were cancelled: --shutdown-timeout is over");
    asio::post(io, [this] { end_when_quiet(); });
  });
}

void HttpServer::Parts::end() {
  error_code ignored;
  acceptor.close(ignored);
  while (!sessions.empty()) {
    const std::shared_ptr<Session> session = sessions.begin()->second;
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

int HttpServer::port() const { return parts_->acceptor.local_endpoint().port(); }

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
