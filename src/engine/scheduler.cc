#include "engine/scheduler.h"

#include <algorithm>

namespace weft {

Scheduler::Scheduler(BlockPool& pool, BlockLayout layout, Limits limits) : pool_(pool), layout_(layout), limits_(limits) {
  limits_.sequences = std::min(limits_.sequences, limits_.tokens);  // every running sequence may decode in every step
  for (int64_t slot = limits_.sequences; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

std::span<const Scheduler::Chosen> Scheduler::next() {
  chosen_.clear();
  int64_t budget = limits_.tokens;
  for (const auto& sequence : running_) {
    if (sequence->in_prefill()) continue;
    chosen_.push_back({.sequence = sequence.get(), .tokens = 1});
    --budget;
  }
  for (size_t i = 0; budget > 0; ++i) {
    const bool fresh = i == running_.size();
    if (fresh && !admit_one()) break;
    Sequence& sequence = *running_[i];
    if (!sequence.in_prefill()) continue;
    const int64_t tokens = std::min(budget, sequence.prompt_tokens - sequence.cached);
    chosen_.push_back({.sequence = &sequence, .tokens = tokens, .admitted_now = fresh});
    budget -= tokens;
  }
  for (const Chosen& chosen : chosen_) chosen.sequence->state = SequenceState::in_step;
  WEFT_CHECK(!chosen_.empty() || waiting_.empty()) << "a sequence can never be admitted";
  return chosen_;
}

bool Scheduler::admit_one() {
  if (waiting_.empty() || free_slots_.empty()) return false;
  Sequence& sequence = *waiting_.front();
  if (!sequence.blocks.grow_to(layout_.blocks_for(sequence.final_length()))) return false;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.state = SequenceState::ready;
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

void Scheduler::done(Sequence& sequence, bool finished) {
  WEFT_CHECK(sequence.state == SequenceState::in_step) << "sequence of prompt " << sequence.prompt << " is not in a step";
  if (!finished) {
    sequence.state = SequenceState::ready;
    return;
  }
  free_slots_.push_back(sequence.slot);
  sequence.state = SequenceState::finished;
  std::erase_if(running_, [&](const auto& running) { return running.get() == &sequence; });
}

}  // namespace weft
