#include "server/http_session.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>
#include <cstring>
#include <iterator>

#include "base/log.h"
#include "server/http_text.h"

namespace weft {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using namespace std::chrono_literals;

constexpr auto kLinger = 2s;             // for a client to read a refusal while it still sends
constexpr auto kShortLinger = 200ms;     // where a read of an earlier time is still out
constexpr size_t kPipelined = 64 << 10;  // bytes of further requests that are read while one is answered
constexpr size_t kSmallBody = 64 << 10;  // up to here a body is read in well under a millisecond
constexpr size_t kBodiesAtOnce = 8;      // of the largest size, over all connections
constexpr size_t kShownPath = 200;       // bytes of a path in the log
constexpr int kClientLeft = 499;         // as nginx calls it

/// "127.0.0.1:50000", or nothing for a Unix socket.
std::string name_of_peer(const Transport::Socket& socket) {
  boost::system::error_code error;
  const auto peer = socket.remote_endpoint(error);
  if (error || (peer.data()->sa_family != AF_INET && peer.data()->sa_family != AF_INET6)) return {};
  asio::ip::tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), peer.data(), std::min(peer.size(), endpoint.capacity()));
  return fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

}  // namespace

HttpSession::HttpSession(HttpServer::Parts& server, Transport::Socket socket)
    : server_(server),
      transport_(std::move(socket), server.tls.get()),
      peer_(name_of_peer(transport_.socket())),
      in_(server.config.max_header_bytes + kPipelined) {}

void HttpSession::start() {
  if (!transport_.is_tls()) return read_head();
  state_ = State::handshaking;
  expire_in(server_.config.idle_timeout);
  transport_.async_handshake([self = shared_from_this()](error_code error) {
    if (self->state_ == State::closed) return;
    if (error) {
      log::debug("{}: no TLS: {}", self->peer_, error.message());
      return self->close();
    }
    self->read_head();
  });
}

void HttpSession::read_head() {
  state_ = State::reading_head;
  expire_in(server_.config.idle_timeout);
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.config.max_header_bytes));
  parser_->body_limit(server_.config.max_body_bytes);
  reading_ = true;
  http::async_read_header(transport_, in_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->on_head(error); });
}

void HttpSession::on_head(error_code error) {
  reading_ = false;
  if (state_ != State::reading_head) return;  // Timed out, or closed.
  if (error && error.category() != http::make_error_code(http::error::bad_method).category()) return close();
  if (error == http::error::end_of_stream || error == http::error::partial_message) return close();

  began_ = Clock::now();
  refusal_.reset();
  keep_alive_ = !error && parser_->get().keep_alive();
  http_1_0_ = parser_->get().version() < 11;
  take_head();
  state_ = State::working;
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header is larger than {} bytes (--max-header-size)", server_.config.max_header_bytes),
                  "header_too_large");
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes (--max-body-size)", server_.config.max_body_bytes),
                  "body_too_large");
  if (error) return refuse(400, "this is not an HTTP request: " + error.message(), "bad_http");

  const bool asks_first = beast::iequals(parser_->get()[http::field::expect], "100-continue");
  refusal_ = server_.service.answer(head_);
  if (refusal_ && !parser_->is_done()) {
    // What is left of the body would look like the next request. A small one is read over, else the connection ends.
    const auto length = parser_->content_length();
    if (asks_first || !length || *length > kSmallBody) keep_alive_ = false;
  }
  if (refusal_ && (parser_->is_done() || !keep_alive_)) return respond(*std::exchange(refusal_, std::nullopt));
  state_ = State::reading_body;
  expire_in(server_.config.body_timeout);
  asks_first ? permit_body() : read_body();
}

/// What of the header matters later.
void HttpSession::take_head() {
  const auto& request = parser_->get();
  const auto field = [&](auto name) { return std::string(request[name]); };
  head_ = {};
  head_.id = server_.service.next_id();
  head_.method = std::string(request.method_string());
  head_.path = path_of(std::string_view(request.target().data(), request.target().size()));
  head_.authorization = field(http::field::authorization);
  head_.origin = field(http::field::origin);
  head_.request_id = clean_id(field("X-Request-Id"));
  head_.preflight_method = field(http::field::access_control_request_method);
  head_.preflight_headers = field(http::field::access_control_request_headers);
  const auto [first, last] = request.equal_range("traceparent");
  if (first != last && std::next(first) == last)
    head_.trace = parse_traceparent({first->value().data(), first->value().size()});
}

/// The client waits for a word before it sends its body.
void HttpSession::permit_body() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  // The socket's buffer is empty, so all of it goes at once unless the client is gone.
  transport_.async_write_some(asio::buffer(kContinue), [self = shared_from_this()](error_code error, size_t bytes) {
    if (self->state_ != State::reading_body) return;
    if (error || bytes != kContinue.size()) return self->disconnected();
    self->read_body();
  });
}

void HttpSession::read_body() {
  if (parser_->is_done()) return refusal_ ? respond(*std::exchange(refusal_, std::nullopt)) : work();
  reading_ = true;
  http::async_read_some(transport_, in_, *parser_,
                        [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
}

/// False where all bodies together have become too large.
bool HttpSession::account_body() {
  const size_t now = parser_->get().body().size();
  server_.body_bytes += now - body_accounted_;
  body_accounted_ = now;
  return server_.body_bytes <= kBodiesAtOnce * server_.config.max_body_bytes;
}

void HttpSession::on_body(error_code error) {
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

void HttpSession::work() {
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
void HttpSession::watch() {
  if (reading_ || in_.size() >= kPipelined) return;
  reading_ = true;
  transport_.async_read_some(in_.prepare(4096),
                             [self = shared_from_this()](error_code error, size_t bytes) { self->on_watch(error, bytes); });
}

void HttpSession::on_watch(error_code error, size_t bytes) {
  reading_ = false;
  if (state_ == State::closed) return;
  in_.commit(bytes);
  // The next request, or finish() has cancelled this read. Behind an end of the stream Asio would wait for ever.
  if (state_ == State::reading_head) return error && error != asio::error::operation_aborted ? close() : read_head();
  if (error) return disconnected();
  watch();
}

void HttpSession::on_reply(Service::Reply reply) {
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

void HttpSession::start_stream() {
  chunked_ = !http_1_0_;
  if (http_1_0_) keep_alive_ = false;
  HttpResponse response{.body = {}, .content_type = "text/event-stream; charset=utf-8"};
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  send(head_text(200, response, true), {});
}

HttpSession::Step HttpSession::step() {
  try {
    std::string bytes = answer_->step();
    return {.bytes = std::move(bytes), .failed = std::nullopt};
  } catch (const ApiError& error) {
    return {.bytes = {}, .failed = server_.service.error(error)};
  } catch (const std::exception& error) {
    log::event(log::Level::err, fmt::format("the answer could not be made: {}", error.what()), log_fields(head_, answer_id_));
    return {.bytes = {}, .failed = server_.service.error(ApiError(500, "the answer could not be made", {}, "internal_error"))};
  }
}

void HttpSession::advance() {
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

void HttpSession::on_step(Step step) {
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
    error_code_ = step.failed->code;
    step.bytes = "data: " + step.failed->body + "\n\n";
  }
  last_write_ = step.failed || answer_->done();
  if (step.bytes.empty() && !last_write_) return advance();
  if (!chunked_) return send({}, std::move(step.bytes));
  // In one piece: of TLS each piece is a record of its own.
  send({}, fmt::format("{:x}\r\n{}\r\n{}", step.bytes.size(), step.bytes, last_write_ ? "0\r\n\r\n" : ""));
}

void HttpSession::refuse(int status, const std::string& message, const std::string& code) {
  respond(server_.service.refuse(ApiError(status, message, {}, code)));
}

std::string HttpSession::head_text(int status, const HttpResponse& response, bool streamed) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nServer: weft\r\nDate: {}\r\n", status,
                                std::string_view(reason.data(), reason.size()), http_date());
  if (status != 204) out += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (chunked_ && streamed) out += "Transfer-Encoding: chunked\r\n";
  if (!streamed && status != 204) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  if (!keep_alive_) out += "Connection: close\r\n";
  if (keep_alive_ && http_1_0_) out += "Connection: keep-alive\r\n";
  const std::string& id = !head_.request_id.empty() ? head_.request_id : !answer_id_.empty() ? answer_id_ : head_.id;
  if (!id.empty()) out += fmt::format("X-Request-Id: {}\r\n", id);
  if (head_.trace) out += fmt::format("traceparent: {}\r\n", head_.trace->header(head_.span_id()));
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : server_.service.cors(head_)) out += fmt::format("{}: {}\r\n", name, value);
  return out + "\r\n";
}

void HttpSession::respond(const HttpResponse& response) {
  state_ = State::working;
  status_ = response.status;
  error_code_ = response.code;
  last_write_ = true;
  if (server_.draining) keep_alive_ = false;
  server_.body_bytes -= std::exchange(body_accounted_, 0);
  send(head_text(response.status, response, false), head_.method == "HEAD" ? std::string() : response.body);
}

void HttpSession::send(std::string head, std::string body) {
  if (status_ == 0) status_ = 200;
  out_head_ = std::move(head);
  out_body_ = std::move(body);
  out_ = {asio::buffer(out_head_), asio::buffer(out_body_)};
  writing_ = true;
  write();
}

void HttpSession::write() {
  expire_in(server_.config.write_timeout);
  transport_.async_write_some(out_,
                              [self = shared_from_this()](error_code error, size_t bytes) { self->on_written(error, bytes); });
}

void HttpSession::on_written(error_code error, size_t bytes) {
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
void HttpSession::finish() {
  server_.service.http().answered(Service::route(head_.path), status_);
  log_answer();
  answer_.reset();
  answer_id_.clear();
  error_code_.clear();
  status_ = 0;
  last_write_ = chunked_ = false;
  out_head_ = {};
  out_body_ = {};
  if (!keep_alive_) return linger();
  state_ = State::reading_head;
  parser_.reset();  // Nothing of the next request has come.
  expire_in(server_.config.idle_timeout);
  if (!reading_) return read_head();
  // on_watch() goes on when something comes; what has come may be the next request already.
  if (in_.size() > 0) transport_.socket().cancel();
}

void HttpSession::log_answer() const {
  if (!server_.service.logs(head_.path, status_)) return;
  std::vector<log::Field> fields = log_fields(head_, answer_id_);
  fields.emplace_back("method", head_.method);
  fields.emplace_back("path", std::string_view(head_.path).substr(0, kShownPath));
  fields.emplace_back("status", status_);
  if (!error_code_.empty()) fields.emplace_back("error", error_code_);
  fields.emplace_back("seconds", std::chrono::duration<double>(Clock::now() - began_).count());
  if (answer_ != nullptr) {
    fields.emplace_back("prompt_tokens", answer_->prompt_tokens());
    fields.emplace_back("completion_tokens", answer_->completion_tokens());
  }
  if (!peer_.empty()) fields.emplace_back("peer", peer_);
  log::event(log::Level::info, "answered", fields);
}

/// Closes for writing, and reads on for a moment: closing at once could destroy the answer before the client has read it.
void HttpSession::linger() {
  state_ = State::lingering;
  if (reading_) {
    // Some earlier read is still out, into buffers that must stay: the deadline closes.
    expire_in(kShortLinger);
  } else {
    expire_in(kLinger);
  }
  if (!transport_.is_tls()) return drop_rest();
  transport_.async_goodbye([self = shared_from_this()](error_code) {
    if (self->state_ != State::closed) self->drop_rest();
  });
}

void HttpSession::drop_rest() {
  error_code ignored;
  transport_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  if (reading_) return;
  reading_ = true;
  if (scrap_ == nullptr) scrap_ = std::make_unique<std::array<char, 4096>>();
  transport_.socket().async_read_some(asio::buffer(*scrap_), [self = shared_from_this()](error_code error, size_t bytes) {
    self->reading_ = false;
    if (self->state_ == State::closed) return;
    self->lingered_ += bytes;
    if (error || self->lingered_ > self->server_.config.max_body_bytes) return self->close();
    self->drop_rest();
  });
}

void HttpSession::disconnected() {
  if (state_ == State::working || state_ == State::reading_body) {
    server_.service.http().disconnects.add();
    if (server_.service.logs(head_.path, kClientLeft)) {
      std::vector<log::Field> fields = log_fields(head_, answer_id_);
      fields.emplace_back("path", std::string_view(head_.path).substr(0, kShownPath));
      fields.emplace_back("seconds", std::chrono::duration<double>(Clock::now() - began_).count());
      log::event(log::Level::info, "the client left", fields);
    }
  }
  close();
}

void HttpSession::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  gone_ = true;
  if (!handling_) server_.body_bytes -= std::exchange(body_accounted_, 0);
  if (!stepping_) answer_.reset();  // Cancels what still runs.
  transport_.close();
  server_.service.http().connections.set(static_cast<double>(server_.sessions.size() - 1));
  server_.sessions.erase(this);  // The caller's handler still holds this session.
}

void HttpSession::check_deadline(Clock::time_point now) {
  if (now < deadline_) return;
  const bool in_request =
      state_ == State::reading_body || (state_ == State::reading_head && ((parser_ && parser_->got_some()) || in_.size() > 0));
  if (!in_request || writing_) return disconnected();
  keep_alive_ = false;
  if (state_ == State::reading_head) {
    head_ = {};
    head_.id = server_.service.next_id();
    began_ = now;
  }
  refuse(408, "the request did not come in time", "request_timeout");
}

}  // namespace weft
