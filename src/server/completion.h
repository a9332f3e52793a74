#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/backend.h"
#include "server/open_requests.h"
#include "server/openai_api.h"
#include "server/reasoning.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace weft {

/// One completion request on its way: its prompts in the engine, and how much of their answers has been told.
///
/// Thread: one at a time.
class Completion {
 public:
  /// Tokenises, checks the lengths and submits. `tokenizer` may be null: then prompts must be token ids, and answers are.
  /// Throws ApiError: 400 for what can never run, 429 where the queue is full, 503 where the engine takes nothing more.
  Completion(CompletionRequest request, Backend& backend, const Tokenizer* tokenizer, CompletionHead head);
  /// Cancels what still runs.
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  const std::string& id() const { return head_.id; }
  /// One a prompt.
  std::vector<uint64_t> engine_ids() const;
  /// By which others may abort it; it is given up with the completion.
  void set_open(OpenRequests::Handle open) { open_ = std::move(open); }
  bool streams() const { return request_.stream; }
  /// step() has something to do.
  bool ready() const;
  /// step() may take milliseconds: better done elsewhere than on an io thread.
  bool heavy() const;
  /// Reads what the engine has made since. Of a stream: returns it as server-sent events, with the last of them when all is
  /// over; may be empty, for text is held back while a stop string or a character is incomplete. Else: empty until all is
  /// over, then the whole answer; throws ApiError if there is none.
  std::string step();
  /// Everything has been told.
  bool done() const { return told_; }

  /// For the log.
  int64_t prompt_tokens() const;
  int64_t completion_tokens() const;

 private:
  struct Choice {
    explicit Choice(int index_in) : index(index_in) {}
    int index;
    std::optional<Detokenizer> text;
    std::optional<ReasoningSplitter> thoughts;
    int64_t tokens = 0;
    int64_t characters = 0;  ///< of the text before the next token, the echoed prompt included
    bool echoed = false, finished = false;
    FinishReason finish = FinishReason::none;
    std::variant<std::monostate, int32_t, std::string> stop_reason;
  };
  struct Prompt {
    std::vector<int32_t> ids;
    std::string text;  ///< as echoed
    std::shared_ptr<RequestStream> stream;
    size_t next_event = 0;
    bool cancelled = false;
    std::vector<Choice> choices;
  };

  void tokenize();
  Request engine_request(const Prompt& prompt) const;
  void submit();
  void cancel(Prompt& prompt);
  static bool ended(const Prompt& prompt);
  bool all_ended() const;
  /// All choices have ended, and whatever the answer ends with is known.
  bool all_known() const;
  /// The new part of every choice that has one.
  std::vector<ChoiceOut> advance();
  void advance(Prompt& prompt, std::vector<ChoiceOut>& out);
  void echo(const Prompt& prompt, Choice& choice, ChoiceOut& out) const;
  void take(const Prompt& prompt, Choice& choice, size_t event, ChoiceOut& out) const;
  static void add_text(Choice& choice, const std::string& text, ChoiceOut& out);
  TokenEntry entry(int32_t id, std::optional<float> log_prob, std::span<const int32_t> top_ids, std::span<const float> top,
                   Choice& choice) const;
  std::string token_text(int32_t id) const;
  std::string token_bytes(int32_t id) const;
  int64_t characters(int32_t id) const;
  std::string next_events(std::vector<ChoiceOut> parts);
  std::string whole();
  Usage usage() const;
  /// Once all is over.
  std::optional<Timings> timings() const;
  /// Parts of a stream, or the whole answer.
  std::string json(std::span<const ChoiceOut> choices, const Usage* usage, bool whole) const;
  /// Somebody has asked for it to end here, which is no error.
  bool aborted() const { return open_ != nullptr && open_->aborted; }
  /// The end is one that the answer tells as its finish_reason.
  bool ends_in_order(const Choice& choice) const;
  /// Why the answer cannot be completed, if so.
  std::optional<ApiError> error() const;

  CompletionRequest request_;
  Backend& backend_;
  const Tokenizer* const tokenizer_;
  const CompletionHead head_;
  std::vector<Prompt> prompts_;
  std::vector<ChoiceOut> answer_;  ///< by index, where it is not streamed
  std::vector<bool> begun_;        ///< by index: its first chunk is out
  std::string chunk_beginning_;    ///< of a stream
  bool told_ = false;
  OpenRequests::Handle open_;
};

}  // namespace weft
