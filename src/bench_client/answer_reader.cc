#include "bench_client/answer_reader.h"

#include <nlohmann/json.hpp>

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 300;

/// A member that is there and not null, else nullptr.
const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string_view text_of(const json& object, const char* name) {
  const json* text = member(object, name);
  return text != nullptr && text->is_string() ? std::string_view(text->get_ref<const std::string&>()) : std::string_view();
}

std::optional<int64_t> count_of(const json& object, const char* name) {
  const json* count = member(object, name);
  return count != nullptr && count->is_number_integer() ? std::optional(count->get<int64_t>()) : std::nullopt;
}

/// What an error says, in whichever of the known shapes.
std::string message_of(const json& error) {
  if (error.is_string()) return error.get<std::string>();
  const std::string_view message = text_of(error, "message");
  return message.empty() ? error.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, kShownBytes)
                         : std::string(message);
}

}  // namespace

void AnswerReader::fail(std::string why) {
  if (record_.state == Record::State::failed) return;
  record_.state = Record::State::failed;
  record_.error = std::move(why);
}

void AnswerReader::chunk(int32_t tokens, double seconds) {
  if (!begun_) {
    record_.ttft_s = seconds;
  } else {
    record_.itls_s.push_back(seconds - last_s_);
  }
  record_.chunk_tokens.push_back(tokens);
  counted_ += tokens;
  begun_ = true;
  last_s_ = seconds;
}

void AnswerReader::event(std::string_view data, double seconds) {
  if (over()) return;
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const json parsed = json::parse(data, nullptr, false);
  if (!parsed.is_object())
    return fail("the server sent an event that is no JSON object: " + std::string(data.substr(0, kShownBytes)));
  if (const json* error = member(parsed, "error")) return fail("the answer ended with an error: " + message_of(*error));
  if (const json* usage = member(parsed, "usage")) {
    has_usage_ = true;
    record_.input_tokens = count_of(*usage, "prompt_tokens").value_or(record_.input_tokens);
    record_.output_tokens = count_of(*usage, "completion_tokens").value_or(record_.output_tokens);
    if (const json* details = member(*usage, "prompt_tokens_details"))
      if (const auto cached = count_of(*details, "cached_tokens")) record_.cached_tokens = cached;
  }
  const json* choices = member(parsed, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;

  const json& choice = choices->front();
  const json* delta = member(choice, "delta");
  const json& source = delta != nullptr ? *delta : choice;
  size_t bytes = 0;
  for (const char* name : {"text", "content", "reasoning_content", "reasoning"}) {
    const std::string_view text = text_of(source, name);
    record_.text += text;
    bytes += text.size();
  }
  int32_t ids = 0;
  if (const json* list = member(choice, "token_ids"); list != nullptr && list->is_array()) {
    for (const json& id : *list)
      if (id.is_number_integer()) record_.ids.push_back(id.get<int32_t>());
    ids = static_cast<int32_t>(list->size());
  }
  const bool ends = member(choice, "finish_reason") != nullptr;
  finished_ = finished_ || ends;
  record_.latency_s = seconds;
  if (bytes > 0 || ids > 0 || (!ends && text_of(source, "role").empty())) {
    chunk(std::max(ids, 1), seconds);
  } else if (ends && !begun_) {
    record_.ttft_s = seconds;  // An answer without any token.
  }
}

void AnswerReader::end() {
  if (record_.state == Record::State::failed) return;
  if (!finished_)
    return fail(begun_ ? "the stream ended in the middle of the answer" : "the stream ended before the first token");
  if (!has_usage_) record_.output_tokens = counted_;
  record_.state = Record::State::answered;
}

}  // namespace weft::bench
