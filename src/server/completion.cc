#include "server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "text/utf8.h"

namespace weft {
namespace {

// Beyond so many log probabilities an answer takes milliseconds to write.
constexpr int64_t kHeavyValues = 2000;

const char* word(FinishReason reason) { return reason == FinishReason::stop ? "stop" : "length"; }

[[noreturn]] void refuse_length(const std::string& message, int64_t tokens, const BackendInfo& info) {
  ApiError error(400, message, "prompt", "context_length_exceeded");
  error.never_fits = tokens > info.capacity_tokens;
  throw error;
}

[[noreturn]] void refuse_length(int64_t prompt, int64_t max_tokens, const BackendInfo& info) {
  refuse_length(fmt::format("the request is too long: {} prompt tokens and max_tokens {}, the limit for both together is {}, "
                            "with KV memory for {} tokens",
                            prompt, max_tokens, info.max_model_len, info.capacity_tokens),
                max_tokens > info.capacity_tokens ? max_tokens : prompt + max_tokens, info);
}

template <typename T>
void append(std::optional<std::vector<T>>& to, std::optional<std::vector<T>>&& more) {
  if (!more) return;
  if (!to) {
    to = std::move(more);
  } else {
    to->insert(to->end(), std::make_move_iterator(more->begin()), std::make_move_iterator(more->end()));
  }
}

/// What a part of a choice adds to it.
void append(ChoiceOut& to, ChoiceOut&& part) {
  to.index = part.index;
  to.text += part.text;
  if (part.reasoning) to.reasoning = to.reasoning.value_or("") + *part.reasoning;
  append(to.log_probs, std::move(part.log_probs));
  append(to.token_ids, std::move(part.token_ids));
  append(to.prompt_token_ids, std::move(part.prompt_token_ids));
  append(to.prompt_log_probs, std::move(part.prompt_log_probs));
  if (part.finish_reason.empty()) return;
  to.finish_reason = std::move(part.finish_reason);
  to.stop_reason = std::move(part.stop_reason);
}

std::string server_event(const std::string& json) { return "data: " + json + "\n\n"; }

}  // namespace

Completion::Completion(CompletionRequest request, Backend& backend, const Tokenizer* tokenizer, CompletionHead head)
    : request_(std::move(request)), backend_(backend), tokenizer_(tokenizer), head_(std::move(head)) {
  if (tokenizer_ == nullptr && !request_.stops.empty())
    throw ApiError(400, "stop strings need a tokenizer.json in the model folder: use stop_token_ids", "stop");
  tokenize();
  try {
    submit();
  } catch (...) {
    for (Prompt& prompt : prompts_) cancel(prompt);
    throw;
  }
}

Completion::~Completion() {
  for (Prompt& prompt : prompts_) cancel(prompt);
}

void Completion::tokenize() {
  const BackendInfo& info = backend_.info();
  const int64_t limit = info.max_model_len;
  for (PromptInput& input : request_.prompts) {
    Prompt& prompt = prompts_.emplace_back();
    if (input.is_text) {
      if (tokenizer_ == nullptr)
        throw ApiError(400, "the model folder has no tokenizer.json: send the prompt as token ids", "prompt");
      const bool may_cut = request_.truncate_prompt != 0;
      const auto bytes = static_cast<int64_t>(input.text.size());
      if (!may_cut && tokenizer_->least_tokens(bytes) > limit)
        refuse_length(fmt::format("the prompt is too long: {} bytes are at least {} tokens, the limit for prompt and answer "
                                  "together is {}",
                                  bytes, tokenizer_->least_tokens(bytes), limit),
                      tokenizer_->least_tokens(bytes), info);
      // Of a text that is too long in any case the rest is not read.
      prompt.ids = tokenizer_->encode(input.text, {.add_special_tokens = request_.add_special_tokens,
                                                   .mark = input.mark,
                                                   .max_tokens = may_cut ? std::numeric_limits<int64_t>::max() : limit});
      if (request_.echo) prompt.text = std::move(input.text);
    } else {
      prompt.ids = std::move(input.ids);
    }
    input = {};
    const auto size = static_cast<int64_t>(prompt.ids.size());
    const int64_t keep = request_.truncate_prompt == -1
                             ? std::max<int64_t>(1, limit - (request_.max_tokens_given ? request_.base.max_tokens : 1))
                             : request_.truncate_prompt;
    if (keep > 0 && size > keep) {
      prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - keep);
      prompt.text.clear();
    }
    if (prompt.ids.empty()) throw ApiError(400, "prompt is empty: it needs at least one token", "prompt");
    if (request_.echo && prompt.text.empty() && tokenizer_ != nullptr)
      prompt.text = tokenizer_->decode(prompt.ids, request_.skip_special_tokens);
  }
}

Request Completion::engine_request(const Prompt& prompt) const {
  const BackendInfo& info = backend_.info();
  Request out = request_.base;
  out.label = head_.id;
  out.prompt = prompt.ids;
  const auto size = static_cast<int64_t>(prompt.ids.size());
  const int64_t room = info.max_model_len - size;
  if (room < 0 || (room == 0 && out.max_tokens > 0)) refuse_length(size, out.max_tokens, info);
  if (out.max_tokens > room) {
    if (request_.max_tokens_given) refuse_length(size, out.max_tokens, info);
    out.max_tokens = room;
    out.min_tokens = std::min(out.min_tokens, room);
  }
  if (request_.echo) out.prompt_log_probs = std::max(out.prompt_log_probs, out.log_probs);
  return out;
}

void Completion::submit() {
  // All are checked before one is queued.
  std::vector<Request> requests;
  for (const Prompt& prompt : prompts_) requests.push_back(engine_request(prompt));
  const StopTexts stops(request_.stops);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    Prompt& prompt = prompts_[i];
    Engine::Submitted submitted;
    try {
      submitted = backend_.submit(std::move(requests[i]));
    } catch (const ApiError&) {
      throw;
    } catch (const UserError& error) {
      throw ApiError(400, error.what());
    }
    switch (submitted.refusal) {
      case Engine::Refusal::none:
        break;
      case Engine::Refusal::queue_full:
        throw ApiError(429, "too many requests are waiting: try again later", {}, "queue_full");
      case Engine::Refusal::draining:
        throw ApiError(503, "the server is shutting down", {}, "shutting_down");
      case Engine::Refusal::failed:
        throw ApiError(503, "the engine has failed: " + backend_.failure(), {}, "engine_failed");
    }
    prompt.stream = std::move(submitted.stream);
    for (int c = 0; c < request_.base.choices; ++c) {
      Choice& choice = prompt.choices.emplace_back(static_cast<int>(i) * request_.base.choices + c);
      if (tokenizer_ != nullptr)
        choice.text.emplace(*tokenizer_, DetokenizerOptions{.skip_special = request_.skip_special_tokens,
                                                            .stops = stops,
                                                            .include_stop = request_.include_stop});
      if (request_.reasoning && tokenizer_ != nullptr) choice.thoughts.emplace(request_.reasoning_open);
    }
  }
}

void Completion::cancel(Prompt& prompt) {
  if (prompt.stream == nullptr || prompt.cancelled || prompt.stream->done()) return;
  prompt.cancelled = true;
  backend_.cancel(prompt.stream->id());
}

bool Completion::ended(const Prompt& prompt) {
  return std::all_of(prompt.choices.begin(), prompt.choices.end(), [](const Choice& choice) { return choice.finished; });
}
bool Completion::all_ended() const { return std::all_of(prompts_.begin(), prompts_.end(), ended); }
bool Completion::all_known() const {
  return all_ended() && (!request_.timings || std::all_of(prompts_.begin(), prompts_.end(),
                                                          [](const Prompt& prompt) { return prompt.stream->done(); }));
}

bool Completion::ready() const {
  if (told_) return false;
  // A stop string ends an answer before the engine would, so tokens are then read as they come even if nothing is sent.
  if (!request_.stream && request_.stops.empty())
    return std::all_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) { return prompt.stream->done(); });
  if (all_ended()) return all_known();
  return std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) {
    return !ended(prompt) && (prompt.stream->done() || !prompt.stream->events(prompt.next_event).empty());
  });
}

bool Completion::heavy() const {
  int64_t values = 0;
  for (const Prompt& prompt : prompts_) {
    const auto size = static_cast<int64_t>(prompt.ids.size());
    const auto fresh = static_cast<int64_t>(prompt.stream->events(prompt.next_event).size());
    if (prompt.next_event == 0 && (request_.echo || request_.base.prompt_log_probs >= 0))
      values += size * (std::max(request_.base.log_probs, request_.base.prompt_log_probs) + 2);
    values += fresh * (request_.base.log_probs + 2);
  }
  // The end of an answer that is not streamed: all of it is written at once.
  for (const ChoiceOut& choice : answer_) {
    const auto size = static_cast<int64_t>((choice.log_probs ? choice.log_probs->size() : 0) +
                                           (choice.prompt_log_probs ? choice.prompt_log_probs->size() : 0));
    values += size * (std::max(request_.base.log_probs, request_.base.prompt_log_probs) + 2);
    values += static_cast<int64_t>(choice.text.size() / 64);
  }
  return values > kHeavyValues;
}

std::string Completion::token_text(int32_t id) const {
  if (tokenizer_ == nullptr || request_.tokens_as_ids) return fmt::format("token_id:{}", id);
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string Completion::token_bytes(int32_t id) const {
  return tokenizer_ == nullptr || !request_.chat ? std::string() : std::string(tokenizer_->token_bytes(id));
}

int64_t Completion::characters(int32_t id) const {
  if (tokenizer_ == nullptr || (request_.skip_special_tokens && tokenizer_->is_special(id))) return 0;
  const std::string_view bytes = tokenizer_->token_bytes(id);
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

TokenEntry Completion::entry(int32_t id, std::optional<float> log_prob, std::span<const int32_t> top_ids,
                             std::span<const float> top, Choice& choice) const {
  TokenEntry out{
      .token = token_text(id), .bytes = token_bytes(id), .log_prob = log_prob, .top = {}, .offset = choice.characters};
  choice.characters += characters(id);
  if (!log_prob) return out;
  const size_t wanted = std::min(top_ids.size(), static_cast<size_t>(std::max(0, request_.base.log_probs)));
  bool has_itself = false;
  for (size_t i = 0; i < wanted && top_ids[i] >= 0; ++i) {
    const bool itself = top_ids[i] == id;
    has_itself |= itself;
    out.top.push_back(
        {.token = token_text(top_ids[i]), .bytes = token_bytes(top_ids[i]), .log_prob = itself ? *log_prob : top[i]});
  }
  if (!has_itself && !request_.chat) out.top.push_back({.token = out.token, .bytes = out.bytes, .log_prob = *log_prob});
  return out;
}

void Completion::echo(const Prompt& prompt, Choice& choice, ChoiceOut& out) const {
  const RequestStream& stream = *prompt.stream;
  const size_t rows = stream.prompt_log_probs().size();
  if (request_.return_token_ids || tokenizer_ == nullptr) out.prompt_token_ids = prompt.ids;
  if (request_.base.prompt_log_probs >= 0) {
    auto& entries = out.prompt_log_probs.emplace();
    entries.emplace_back();
    for (size_t row = 0; row < rows; ++row) {
      const int32_t id = prompt.ids[row + 1];
      const auto top_ids = stream.prompt_top_ids(row);
      const auto top = stream.prompt_top_log_probs(row);
      const size_t wanted = std::min(top_ids.size(), static_cast<size_t>(request_.base.prompt_log_probs));
      const auto at = static_cast<int>(std::find(top_ids.begin(), top_ids.end(), id) - top_ids.begin());
      PromptTokenEntry& all = entries.emplace_back();
      all.all.push_back({.id = id,
                         .log_prob = stream.prompt_log_probs()[row],
                         .rank = at < static_cast<int>(top_ids.size()) ? at + 1 : 0,
                         .text = token_text(id)});
      for (size_t i = 0; i < wanted && top_ids[i] >= 0; ++i) {
        if (top_ids[i] != id)
          all.all.push_back(
              {.id = top_ids[i], .log_prob = top[i], .rank = static_cast<int>(i) + 1, .text = token_text(top_ids[i])});
      }
    }
  }
  if (!request_.echo) return;
  out.text = prompt.text;
  if (request_.base.log_probs < 0) return;
  auto& entries = out.log_probs.emplace();
  entries.push_back(entry(prompt.ids.front(), std::nullopt, {}, {}, choice));
  for (size_t row = 0; row < rows; ++row)
    entries.push_back(entry(prompt.ids[row + 1], stream.prompt_log_probs()[row], stream.prompt_top_ids(row),
                            stream.prompt_top_log_probs(row), choice));
}

void Completion::take(const Prompt& prompt, Choice& choice, size_t event, ChoiceOut& out) const {
  const RequestStream& stream = *prompt.stream;
  const TokenEvent& token = stream.events(event).front();
  std::string text;
  choice.finish = token.finish;
  if (token.token >= 0) {
    ++choice.tokens;
    if (request_.base.log_probs >= 0) {
      if (!out.log_probs) out.log_probs.emplace();
      out.log_probs->push_back(entry(token.token, token.log_prob, stream.top_ids(event), stream.top_log_probs(event), choice));
    }
    if (request_.return_token_ids || tokenizer_ == nullptr) {
      if (!out.token_ids) out.token_ids.emplace();
      out.token_ids->push_back(token.token);
    }
    if (token.finish == FinishReason::stop) {
      const auto& stops = request_.base.stop_tokens;
      if (std::find(stops.begin(), stops.end(), token.token) != stops.end()) choice.stop_reason = token.token;
    } else if (choice.text) {
      text += choice.text->append(token.token);
      if (const auto stop = choice.text->stop()) {
        choice.finish = FinishReason::stop;
        choice.stop_reason = request_.stops[*stop];
      }
    }
  }
  choice.finished = choice.finish != FinishReason::none;
  if (choice.finished && choice.text && !choice.text->stop()) text += choice.text->finish();
  add_text(choice, text, out);
}

void Completion::add_text(Choice& choice, const std::string& text, ChoiceOut& out) {
  if (!choice.thoughts) {
    out.text += text;
    return;
  }
  const auto add = [&](const ReasoningSplitter::Piece& piece) {
    out.text += piece.content;
    if (!piece.reasoning.empty()) out.reasoning = out.reasoning.value_or("") + piece.reasoning;
  };
  add(choice.thoughts->add(text));
  if (choice.finished) add(choice.thoughts->finish());
}

void Completion::advance(Prompt& prompt, std::vector<ChoiceOut>& out) {
  const size_t first = out.size();
  std::vector<int> place(prompt.choices.size(), -1);
  const auto part_of = [&](size_t c) -> ChoiceOut& {
    if (place[c] < 0) {
      place[c] = static_cast<int>(out.size() - first);
      out.emplace_back().index = prompt.choices[c].index;
    }
    return out[first + static_cast<size_t>(place[c])];
  };
  const bool over = prompt.stream->done();
  const size_t events = prompt.stream->events().size();
  for (; prompt.next_event < events; ++prompt.next_event) {
    const auto c = static_cast<size_t>(prompt.stream->events(prompt.next_event).front().choice);
    Choice& choice = prompt.choices[c];
    if (choice.finished) continue;  // A stop string ended it; the engine has not heard yet.
    ChoiceOut& part = part_of(c);
    if (!choice.echoed) {
      choice.echoed = true;
      choice.characters = 0;
      echo(prompt, choice, part);
    }
    take(prompt, choice, prompt.next_event, part);
    if (choice.finished && (choice.finish == FinishReason::stop || choice.finish == FinishReason::length)) {
      part.finish_reason = word(choice.finish);
      part.stop_reason = choice.stop_reason;
    }
  }
  if (over && prompt.next_event == prompt.stream->events().size()) {
    for (Choice& choice : prompt.choices) {
      if (std::exchange(choice.finished, true)) continue;
      choice.finish = FinishReason::error;
    }
  }
  if (ended(prompt)) cancel(prompt);
}

std::vector<ChoiceOut> Completion::advance() {
  std::vector<ChoiceOut> out;
  for (Prompt& prompt : prompts_) advance(prompt, out);
  return out;
}

std::optional<ApiError> Completion::error() const {
  for (const Prompt& prompt : prompts_) {
    for (const Choice& choice : prompt.choices) {
      if (choice.finish == FinishReason::error)
        return ApiError(500, "the engine has failed" + (prompt.stream->done() ? ": " + prompt.stream->error() : ""), {},
                        "engine_failed");
      if (choice.finish == FinishReason::abort) return ApiError(503, "the server is shutting down", {}, "shutting_down");
    }
  }
  return std::nullopt;
}

Usage Completion::usage() const {
  Usage out{
      .prompt_tokens = prompt_tokens(), .completion_tokens = completion_tokens(), .cached_tokens = 0, .kv_tokens_per_rank = {}};
  for (const Prompt& prompt : prompts_) {
    if (!prompt.stream->events().empty()) out.cached_tokens += prompt.stream->cached_tokens();
    const std::vector<int64_t> held = backend_.tokens_per_rank(prompt.stream->prompt_tokens());
    out.kv_tokens_per_rank.resize(held.size());
    for (size_t i = 0; i < held.size(); ++i) out.kv_tokens_per_rank[i] += held[i];
  }
  return out;
}

int64_t Completion::prompt_tokens() const {
  int64_t out = 0;
  for (const Prompt& prompt : prompts_) out += static_cast<int64_t>(prompt.ids.size());
  return out;
}

int64_t Completion::completion_tokens() const {
  int64_t out = 0;
  for (const Prompt& prompt : prompts_)
    for (const Choice& choice : prompt.choices) out += choice.tokens;
  return out;
}

std::string Completion::step() {
  std::vector<ChoiceOut> parts = advance();
  const size_t choices = prompts_.size() * static_cast<size_t>(request_.base.choices);
  answer_.resize(choices);
  begun_.resize(choices);
  if (request_.stream) return next_events(std::move(parts));
  for (ChoiceOut& part : parts) append(answer_[static_cast<size_t>(part.index)], std::move(part));
  return all_known() ? whole() : std::string();
}

std::string Completion::whole() {
  told_ = true;
  if (const auto why = error()) throw *why;
  const Usage all = usage();
  return json(answer_, &all, true);
}

std::string Completion::json(std::span<const ChoiceOut> choices, const Usage* usage, bool whole) const {
  const std::optional<Timings> times = all_known() && (whole || choices.empty()) ? timings() : std::nullopt;
  const Timings* const shown = times ? &*times : nullptr;
  if (!request_.chat) return completion_json(head_, choices, usage, shown);
  return whole ? chat_json(head_, choices, usage, shown) : chat_chunk_json(head_, choices, usage, shown);
}

std::optional<Timings> Completion::timings() const {
  if (!request_.timings) return std::nullopt;
  Timings out{.prompt_tokens = prompt_tokens(), .completion_tokens = completion_tokens()};
  for (const Prompt& prompt : prompts_) {
    const RequestTimes& times = prompt.stream->times();
    const int64_t admitted = times.admitted > 0 ? times.admitted : times.finished;
    const int64_t first = times.first_token > 0 ? times.first_token : times.finished;
    out.queue_us = std::max(out.queue_us, admitted - times.submitted);
    out.prefill_us = std::max(out.prefill_us, first - admitted);
    out.decode_us = std::max(out.decode_us, times.finished - first);
    out.exchange_us = std::max(out.exchange_us, times.exchange);
    out.cached_tokens += prompt.stream->cached_tokens();
  }
  return out;
}

std::string Completion::next_events(std::vector<ChoiceOut> parts) {
  std::string out;
  const Usage so_far = request_.continuous_usage && !parts.empty() ? usage() : Usage{};
  const Usage* const shown = request_.continuous_usage ? &so_far : nullptr;
  for (ChoiceOut& part : parts) {
    ChoiceOut end;
    end.index = part.index;
    end.finish_reason = std::exchange(part.finish_reason, "");
    end.stop_reason = std::exchange(part.stop_reason, {});
    part.begins = request_.chat && !begun_[static_cast<size_t>(part.index)];
    begun_[static_cast<size_t>(part.index)] = true;
    if (part.begins || !part.text.empty() || part.reasoning || part.log_probs || part.token_ids || part.prompt_token_ids ||
        part.prompt_log_probs)
      out += server_event(json({&part, 1}, shown, false));
    if (!end.finish_reason.empty()) out += server_event(json({&end, 1}, shown, false));
  }
  if (const auto why = error()) {
    told_ = true;
    return out + server_event(error_json(*why));
  }
  if (!all_known()) return out;
  told_ = true;
  const Usage all = usage();
  if (request_.include_usage || request_.timings) out += server_event(json({}, request_.include_usage ? &all : nullptr, false));
  return out + "data: [DONE]\n\n";
}

}  // namespace weft
