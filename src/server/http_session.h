#pragma once

#include <array>
#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/http_parts.h"
#include "server/transport.h"

namespace weft {

/// One connection: requests one after the other. All on the io thread, except what is posted to a pool, which touches only
/// `head_` and `answer_` while the session waits for it.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(HttpServer::Parts& server, Transport::Socket socket);

  void start();
  /// Sends what the answer has that is new. Called whenever there may be some.
  void advance();
  /// Whether there is more to follow; else it is to be taken off the list of followers.
  bool keeps_following() {
    followed_ = answer_ != nullptr;
    return followed_;
  }
  bool is_busy() const { return state_ == State::reading_body || state_ == State::working; }
  void check_deadline(HttpServer::Parts::Clock::time_point now);
  void close();

 private:
  using error_code = boost::system::error_code;
  using Clock = HttpServer::Parts::Clock;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State : uint8_t { handshaking, reading_head, reading_body, working, lingering, closed };
  struct Step {
    std::string bytes;
    std::optional<HttpResponse> failed;
  };

  void read_head();
  void on_head(error_code error);
  void take_head();
  void permit_body();
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
  void log_answer() const;
  void linger();
  void drop_rest();
  void disconnected();
  template <typename Duration>
  void expire_in(Duration duration) {
    deadline_ = Clock::now() + duration;
  }

  HttpServer::Parts& server_;
  Transport transport_;
  const std::string peer_;
  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;
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
  std::string answer_id_, error_code_;

  std::unique_ptr<Completion> answer_;
  bool stepping_ = false;  ///< a pool works on answer_
  bool followed_ = false;  ///< in the list of followers
  bool reading_ = false;   ///< a read is outstanding
  bool writing_ = false;
  bool last_write_ = false;  ///< after which the answer is complete
  bool farewell_ = false;    ///< TLS has said goodbye
  std::string out_head_, out_body_;
  std::array<boost::asio::const_buffer, 2> out_{};
  std::unique_ptr<std::array<char, 4096>> scrap_;  ///< for what is read only to be dropped
  size_t lingered_ = 0;
};

}  // namespace weft
