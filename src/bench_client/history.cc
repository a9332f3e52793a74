#include "bench_client/history.h"

#include "base/check.h"
#include "bench_client/dice.h"

namespace weft::bench {
namespace {

using nlohmann::ordered_json;

}  // namespace

void History::ask(const Turn& turn) {
  tokens_ += turn.input_tokens;
  if (form_->chat) {
    WEFT_CHECK(turn.ids.empty()) << "a chat is made of text";
    messages_.push_back({{"role", "user"}, {"content", turn.text}});
    return;
  }
  ids_.insert(ids_.end(), turn.ids.begin(), turn.ids.end());
  text_ += turn.text;
}

void History::answer(const Record& record, uint64_t stand_in_seed) {
  tokens_ += record.output_tokens;
  if (form_->chat) {
    messages_.push_back({{"role", "assistant"}, {"content", record.text}});
  } else if (ids_.empty()) {
    text_ += record.text;
  } else if (!record.ids.empty()) {
    ids_.insert(ids_.end(), record.ids.begin(), record.ids.end());
  } else {
    Dice dice(stand_in_seed, Dice::For::stand_ins, static_cast<uint64_t>(tokens_));
    for (int64_t i = 0; i < record.output_tokens; ++i)
      ids_.push_back(ids_[static_cast<size_t>(dice.in(0, static_cast<int64_t>(ids_.size()) - 1))]);
  }
}

std::string History::body(int64_t output_tokens, bool goes_on) const {
  ordered_json out;
  out["model"] = form_->model;
  if (form_->chat) {
    out["messages"] = messages_;
    out["max_completion_tokens"] = output_tokens;
    if (form_->log_probs) {
      out["logprobs"] = true;
      out["top_logprobs"] = *form_->log_probs;
    }
  } else {
    if (ids_.empty()) {
      out["prompt"] = text_;
    } else {
      out["prompt"] = ids_;
    }
    out["max_tokens"] = output_tokens;
    if (form_->log_probs) out["logprobs"] = *form_->log_probs;
    if (goes_on && !ids_.empty()) out["return_token_ids"] = true;
  }
  out["stream"] = true;
  out["stream_options"]["include_usage"] = true;
  if (form_->ignore_eos) out["ignore_eos"] = true;
  for (const auto& [name, value] : form_->extra.items()) out[name] = value;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace weft::bench
