#pragma once

#include <string_view>

#include "bench_client/measures.h"

namespace weft::bench {

/// Reads the chunks of one streamed completion or chat, as OpenAI-compatible servers send them, into a record.
///
/// A chunk counts as tokens, and its time as that of a token, unless it brings none: one that only names the role, only ends
/// the answer, or only tells usage. Text that is empty without either may be a token whose text is not complete yet.
class AnswerReader {
 public:
  /// The record's input_tokens, as the client knows them, stand unless the server says otherwise.
  explicit AnswerReader(Record& record) : record_(record) {}

  /// The data of an event that came `seconds` after the request was sent.
  void event(std::string_view data, double seconds);
  /// The stream ended, by the server's will: decides whether the answer is complete.
  void end();
  /// The request failed otherwise. Of several reasons the first stands.
  void fail(std::string why);
  /// [DONE] came, or an error: nothing more will.
  bool over() const { return done_ || record_.state == Record::State::failed; }

 private:
  void chunk(int32_t tokens, double seconds);

  Record& record_;
  double last_s_ = 0;  ///< of the chunk before
  int64_t counted_ = 0;
  bool begun_ = false;     ///< the first token came
  bool finished_ = false;  ///< a finish_reason came
  bool done_ = false, has_usage_ = false;
};

}  // namespace weft::bench
