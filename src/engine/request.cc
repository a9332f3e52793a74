#include "engine/request.h"

#include <algorithm>
#include <limits>

namespace weft {
namespace {

/// Puts a row of the most probable tokens in its place; what the engine did not give is no token.
void put_top(int32_t* to_ids, float* to_log_probs, size_t width, std::span<const int32_t> ids,
             std::span<const float> log_probs) {
  WEFT_CHECK_EQ(ids.size(), log_probs.size());
  const size_t given = std::min(width, ids.size());
  std::copy_n(ids.begin(), given, to_ids);
  std::copy_n(log_probs.begin(), given, to_log_probs);
  std::fill(to_ids + given, to_ids + width, -1);
  std::fill(to_log_probs + given, to_log_probs + width, -std::numeric_limits<float>::infinity());
}

}  // namespace

RequestStream::RequestStream(uint64_t id, const Request& request)
    : id_(id),
      choices_(request.choices),
      prompt_tokens_(static_cast<int64_t>(request.prompt.size())),
      // A choice that ends without its last token has one event for the end in its place.
      capacity_(static_cast<size_t>(request.choices) * static_cast<size_t>(std::max<int64_t>(1, request.max_tokens))),
      top_(static_cast<size_t>(std::max(0, request.log_probs))),
      prompt_top_(static_cast<size_t>(std::max(0, request.prompt_log_probs))),
      prompt_log_prob_rows_(request.prompt_log_probs < 0 ? 0 : request.prompt.size() - 1),
      events_(std::make_unique_for_overwrite<TokenEvent[]>(capacity_)),
      top_ids_(std::make_unique_for_overwrite<int32_t[]>(capacity_ * top_)),
      prompt_top_ids_(std::make_unique_for_overwrite<int32_t[]>(prompt_log_prob_rows_ * prompt_top_)),
      top_log_probs_(std::make_unique_for_overwrite<float[]>(capacity_ * top_)),
      prompt_log_probs_(std::make_unique_for_overwrite<float[]>(prompt_log_prob_rows_)),
      prompt_top_log_probs_(std::make_unique_for_overwrite<float[]>(prompt_log_prob_rows_ * prompt_top_)) {
  WEFT_CHECK_GE(request.choices, 1);
  WEFT_CHECK_GE(request.prompt.size(), 1u);
}

void RequestStream::append(const TokenEvent& event, std::span<const int32_t> top_ids, std::span<const float> top_log_probs) {
  const size_t at = size_.load(std::memory_order_relaxed);
  WEFT_CHECK_LT(at, capacity_) << "request " << id_ << " has more events than tokens";
  WEFT_CHECK(!done_.load(std::memory_order_relaxed)) << "request " << id_ << " is done";
  events_[at] = event;
  put_top(top_ids_.get() + at * top_, top_log_probs_.get() + at * top_, top_, top_ids, top_log_probs);
  size_.store(at + 1, std::memory_order_release);
}

void RequestStream::set_prompt_log_prob(int64_t row, float log_prob, std::span<const int32_t> top_ids,
                                        std::span<const float> top_log_probs) {
  const auto at = static_cast<size_t>(row);
  WEFT_CHECK_LT(at, prompt_log_prob_rows_) << "request " << id_;
  prompt_log_probs_[at] = log_prob;
  put_top(prompt_top_ids_.get() + at * prompt_top_, prompt_top_log_probs_.get() + at * prompt_top_, prompt_top_, top_ids,
          top_log_probs);
}

void RequestStream::finish(std::string error) {
  error_ = std::move(error);
  done_.store(true, std::memory_order_release);
}

}  // namespace weft
