#include "bench_client/load_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "bench_client/answer_reader.h"
#include "bench_client/sse_parser.h"

namespace weft::bench {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kProgressEvery = std::chrono::milliseconds(250);
constexpr double kLongestSeconds = 1e9;  // a clock cannot wait longer
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr size_t kShownBytes = 300;

/// As many open files as the system lets this process have: each request on its way is one.
void allow_many_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLongestSeconds)));
}

/// "HTTP 400: the message", of an answer that is no stream.
std::string refusal_text(int status, const std::string& body) {
  const auto parsed = nlohmann::json::parse(body, nullptr, false);
  std::string message = body.substr(0, kShownBytes);
  if (parsed.is_object() && parsed.contains("error")) {
    const auto& error = parsed["error"];
    if (error.is_string()) message = error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      message = error["message"].get<std::string>();
  }
  return "HTTP " + std::to_string(status) + (message.empty() ? "" : ": " + message);
}

class Run {
 public:
  Run(const LoadSettings& settings, const Workload& workload, std::span<const double> starts_s);
  LoadResult run();

 private:
  /// A conversation on its way.
  struct Talk {
    const Conversation* conversation;
    History history;
    size_t first_record;
    size_t turn = 0;
    std::unique_ptr<asio::steady_timer> pause;  ///< before the next turn, where there is one
  };
  /// A request on its way.
  struct Exchange {
    explicit Exchange(Record& record_in) : reader(record_in) {}
    AnswerReader reader;
    SseParser events;
    Clock::time_point sent;
    int status = 0;
    std::string refusal;  ///< the body of an answer that is not 200
  };

  double now_s() const { return seconds_since(began_); }
  static double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }
  void await_next_start();
  void await_progress();
  void become_due(size_t talk);
  void send_what_may_run();
  void send(size_t talk);
  void on_body(Exchange& exchange, std::string_view bytes);
  void on_end(size_t talk, Exchange& exchange, const std::string& error);
  void report_progress() const;
  void stop();

  const LoadSettings& settings_;
  const std::span<const double> starts_s_;
  asio::io_context io_{1};  // Outlives the timers of the talks.
  HttpClient client_;
  std::vector<size_t> order_;  ///< conversations by start
  size_t next_start_ = 0;
  std::vector<Talk> talks_;
  LoadResult result_;
  LoadProgress state_;
  std::deque<size_t> due_;
  asio::steady_timer start_timer_{io_}, progress_timer_{io_};
  asio::signal_set signals_{io_, SIGINT, SIGTERM};
  Clock::time_point began_;
};

Run::Run(const LoadSettings& settings, const Workload& workload, std::span<const double> starts_s)
    : settings_(settings), starts_s_(starts_s), client_(io_, settings.server) {
  WEFT_CHECK_EQ(starts_s.size(), workload.conversations.size());
  size_t records = 0;
  for (const Conversation& conversation : workload.conversations) {
    WEFT_CHECK(!conversation.turns.empty()) << "a conversation without turns";
    talks_.push_back(
        {.conversation = &conversation, .history = History(settings.form), .first_record = records, .pause = nullptr});
    records += conversation.turns.size();
  }
  result_.records.resize(records);
  state_.requests = static_cast<int64_t>(records);
  order_.resize(starts_s.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return starts_s[a] < starts_s[b]; });
}

LoadResult Run::run() {
  allow_many_connections();
  signals_.async_wait([this](error_code error, int) {
    if (error) return;
    result_.interrupted = true;
    result_.duration_s = now_s();
    stop();
  });
  began_ = Clock::now();
  await_progress();
  await_next_start();
  io_.run();
  report_progress();
  return std::move(result_);
}

void Run::stop() {
  client_.close();
  io_.stop();
}

void Run::await_next_start() {
  if (next_start_ == order_.size()) return;
  if (starts_s_[order_[next_start_]] <= now_s()) {
    become_due(order_[next_start_++]);
    // One at a time: what the first has to send and read does not wait until the last has been made.
    return asio::post(io_, [this] { await_next_start(); });
  }
  start_timer_.expires_at(began_ + duration_of(starts_s_[order_[next_start_]]));
  start_timer_.async_wait([this](error_code error) {
    if (!error) await_next_start();
  });
}

void Run::await_progress() {
  report_progress();
  progress_timer_.expires_after(kProgressEvery);
  progress_timer_.async_wait([this](error_code error) {
    if (!error) await_progress();
  });
}
void Run::report_progress() const {
  if (settings_.progress) settings_.progress(state_);
}

void Run::become_due(size_t index) {
  Talk& talk = talks_[index];
  // By the plan rather than by the clock: if this client is late, that shows.
  result_.records[talk.first_record + talk.turn].due_s = talk.turn == 0 ? starts_s_[index] : now_s();
  due_.push_back(index);
  send_what_may_run();
}

void Run::send_what_may_run() {
  while (!due_.empty() && (!settings_.max_concurrency || state_.running < *settings_.max_concurrency)) {
    const size_t index = due_.front();
    due_.pop_front();
    send(index);
  }
}

void Run::send(size_t index) {
  Talk& talk = talks_[index];
  const auto& turns = talk.conversation->turns;
  const Turn& turn = turns[talk.turn];
  const size_t number = talk.first_record + talk.turn;
  Record& record = result_.records[number];
  talk.history.ask(turn);
  record.input_tokens = talk.history.tokens();
  HttpRequest request;
  request.path = settings_.endpoint;
  request.headers = settings_.headers;
  request.body = talk.history.body(turn.output_tokens, talk.turn + 1 < turns.size());
  if (!settings_.request_id_prefix.empty())
    request.headers.emplace_back("x-request-id", settings_.request_id_prefix + std::to_string(number));

  ++state_.running;
  record.state = Record::State::interrupted;  // Unless it ends otherwise.
  const auto exchange = std::make_shared<Exchange>(record);
  exchange->sent = Clock::now();
  record.start_s = std::chrono::duration<double>(exchange->sent - began_).count();
  client_.send(std::move(request),
               {.head = [exchange](int status) { exchange->status = status; },
                .body = [this, exchange](std::string_view bytes) { on_body(*exchange, bytes); },
                .end = [this, index, exchange](const std::string& error) { on_end(index, *exchange, error); }});
}

void Run::on_body(Exchange& exchange, std::string_view bytes) {
  if (exchange.status != 200) {
    exchange.refusal += bytes.substr(0, kMaxErrorBytes - std::min(kMaxErrorBytes, exchange.refusal.size()));
    return;
  }
  const double seconds = seconds_since(exchange.sent);  // Before anything is parsed.
  try {
    exchange.events.feed(bytes, [&](std::string_view data) { exchange.reader.event(data, seconds); });
  } catch (const SystemError& error) {
    exchange.reader.fail(error.what());
  }
}

void Run::on_end(size_t index, Exchange& exchange, const std::string& error) {
  Talk& talk = talks_[index];
  const auto& turns = talk.conversation->turns;
  Record& record = result_.records[talk.first_record + talk.turn];
  if (!error.empty() && !exchange.reader.over()) {
    exchange.reader.fail(error);
  } else if (exchange.status != 200) {
    exchange.reader.fail(refusal_text(exchange.status, exchange.refusal));
  } else {
    exchange.reader.end();
  }
  --state_.running;
  ++state_.done;
  result_.duration_s = now_s();
  ++talk.turn;
  if (record.answered() && talk.turn < turns.size()) {
    talk.history.answer(record, settings_.seed);
    talk.pause = std::make_unique<asio::steady_timer>(io_, duration_of(turns[talk.turn].delay_s));
    talk.pause->async_wait([this, index](error_code ended) {
      if (!ended) become_due(index);
    });
  } else if (!record.answered()) {
    ++state_.failed;
    for (; talk.turn < turns.size(); ++talk.turn, ++state_.done, ++state_.failed) {
      Record& rest = result_.records[talk.first_record + talk.turn];
      rest.state = Record::State::failed;
      rest.error = "not sent: an earlier turn of its conversation failed";
    }
  }
  if (state_.done == state_.requests) return stop();
  send_what_may_run();
}

}  // namespace

LoadResult run_load(const LoadSettings& settings, const Workload& workload, std::span<const double> starts_s) {
  return Run(settings, workload, starts_s).run();
}

}  // namespace weft::bench
