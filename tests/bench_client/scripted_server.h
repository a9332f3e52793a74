#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace weft::bench::test {

/// What a scripted server does with a request: waits, writes these bytes, waits, and possibly closes.
struct Reply {
  std::string bytes;
  bool close = false;
  std::chrono::milliseconds before{0}, after{0};
};

/// A server on a free port that answers as a script says, with a thread for each connection.
class ScriptedServer {
 public:
  /// `head` is the text of a request before its body.
  using Script = std::function<Reply(const std::string& head, const std::string& body)>;
  explicit ScriptedServer(Script script);
  ~ScriptedServer();

  std::string port() const { return std::to_string(port_); }
  int connections() const { return connections_; }
  int requests() const { return requests_; }
  /// The most requests that were being answered at the same time.
  int most_at_once() const { return most_; }
  /// Closes those connections that are open.
  void drop_connections();

 private:
  void serve(int socket);
  void pause(std::chrono::milliseconds duration) const;

  Script script_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> connections_{0}, requests_{0}, at_once_{0}, most_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  ///< guards what follows
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

/// An answer with a length, and a stream of events in chunks as servers send them.
std::string plain_answer(int status, const std::string& body);
std::string stream_answer(const std::vector<std::string>& events);
/// A chunk of text, and what ends an answer of so many tokens to so long a prompt.
std::string text_event(const std::string& text);
std::vector<std::string> ending_events(int prompt_tokens, int completion_tokens);
/// A complete stream of `tokens` tokens.
std::string whole_stream(int prompt_tokens, int tokens);

}  // namespace weft::bench::test
