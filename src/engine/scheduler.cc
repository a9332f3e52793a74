#include "engine/scheduler.h"

#include <algorithm>

namespace weft {

Scheduler::Scheduler(SequenceMemory& memory, const Limits& limits) : memory_(memory), limits_(limits) {
  limits_.sequences = std::min(limits_.sequences, limits_.tokens);  // every running sequence may decode in every step
  WEFT_CHECK_GE(limits_.sequences, 1);
  const auto n = static_cast<size_t>(limits_.sequences);
  running_.reserve(n);
  chosen_.reserve(n);
  last_tokens_.reserve(n);
  free_slots_.reserve(n);
  for (int64_t slot = limits_.sequences; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

void Scheduler::add(Sequence& sequence) {
  sequence.state = SequenceState::waiting_admission;
  waiting_.push_back(sequence);
}

void Scheduler::add_first(Sequence& sequence) {
  sequence.state = SequenceState::waiting_admission;
  waiting_.push_front(sequence);
}

std::span<const Scheduler::Chosen> Scheduler::next(int64_t prefill_beside_decodes) {
  ++steps_;
  chosen_.clear();
  room_ = {.extra_rows = limits_.sequences - 1, .penalty_tokens = limits_.penalty_tokens, .biases = limits_.biases};
  grow_running();
  const bool decodes = choose_last_tokens();
  const int64_t left = limits_.tokens - static_cast<int64_t>(chosen_.size());
  choose_chunks(decodes ? std::min(left, prefill_beside_decodes) : left);
  WEFT_CHECK(!chosen_.empty() || (waiting_.empty() && running_.empty())) << "a sequence can never be admitted";
  return chosen_;
}

void Scheduler::grow_running() {
  for (size_t i = 0; i < running_.size(); ++i) {
    // The last of them may be the sequence itself; then it waits.
    while (i < running_.size() && !memory_.grow(*running_[i])) {
      if (i + 1 == running_.size()) ++preemptions_for_itself_;
      preempt(*running_.back());
    }
  }
}

/// Chooses every sequence that has one token left to compute before it samples, as far as the lists go. Returns whether some
/// of them decode.
bool Scheduler::choose_last_tokens() {
  last_tokens_.clear();
  Room wanted;
  for (Sequence* sequence : running_) {
    if (sequence->pending() != 1) continue;
    const SamplingNeed need = sampling_need(*sequence);
    wanted.penalty_tokens += need.penalty_tokens;
    wanted.biases += need.biases;
    last_tokens_.push_back(sequence);
  }
  if (wanted.penalty_tokens > room_.penalty_tokens || wanted.biases > room_.biases) {
    std::sort(last_tokens_.begin(), last_tokens_.end(), [](const Sequence* a, const Sequence* b) {
      return a->last_step != b->last_step ? a->last_step < b->last_step : a->admission < b->admission;
    });
  }
  bool decodes = false;
  for (Sequence* sequence : last_tokens_) {
    if (!room_.take(sampling_need(*sequence))) {
      if (sequence->decoding()) ++decodes_postponed_;
      continue;
    }
    decodes |= sequence->decoding();
    choose(*sequence, 1);
  }
  return decodes;
}

void Scheduler::choose_chunks(int64_t tokens) {
  for (size_t i = 0; tokens > 0; ++i) {
    const bool fresh = i == running_.size();
    if (fresh && !admit_one()) break;
    Sequence& sequence = *running_[i];
    const int64_t pending = sequence.pending();
    if (pending == 1 && !fresh) continue;
    int64_t chunk = std::min(tokens, pending);
    // Without room to sample at the end, the last token waits.
    if (chunk == pending && !room_.take(sampling_need(sequence))) --chunk;
    if (chunk == 0) continue;
    choose(sequence, chunk);
    tokens -= chunk;
  }
}

bool Scheduler::Room::take(const SamplingNeed& need) {
  if (need.extra_rows > extra_rows || need.penalty_tokens > penalty_tokens || need.biases > biases) return false;
  extra_rows -= need.extra_rows;
  penalty_tokens -= need.penalty_tokens;
  biases -= need.biases;
  return true;
}

void Scheduler::choose(Sequence& sequence, int64_t tokens) {
  sequence.state = SequenceState::in_step;
  sequence.last_step = steps_;
  chosen_.push_back({.sequence = &sequence, .tokens = tokens});
}

bool Scheduler::admit_one() {
  if (waiting_.empty() || free_slots_.empty()) return false;
  Sequence& sequence = waiting_.front();
  const bool as_before = memory_.available() <= blocked_available_ && memory_.prompt_blocks() == blocked_prompt_blocks_;
  if (&sequence == blocked_ && as_before && !running_.empty()) return false;
  switch (memory_.admit(sequence, free_slots_.back())) {
    case SequenceMemory::Admission::admitted:
      break;
    case SequenceMemory::Admission::too_few_blocks:
      blocked_ = &sequence;
      blocked_available_ = memory_.available();
      blocked_prompt_blocks_ = memory_.prompt_blocks();
      return false;
    case SequenceMemory::Admission::next_step:
      return false;
  }
  blocked_ = nullptr;
  free_slots_.pop_back();
  waiting_.remove(sequence);
  sequence.state = SequenceState::ready;
  sequence.admission = ++admissions_;
  running_.push_back(&sequence);
  return true;
}

void Scheduler::done(Sequence& sequence) {
  WEFT_CHECK(sequence.state == SequenceState::in_step) << "sequence in slot " << sequence.slot << " is not in a step";
  sequence.state = SequenceState::ready;
}

void Scheduler::preempt(Sequence& sequence) {
  leave(sequence, true);
  add_first(sequence);
  ++preemptions_;
}

void Scheduler::remove(Sequence& sequence, bool publish) {
  if (sequence.state == SequenceState::waiting_admission) {
    waiting_.remove(sequence);
    if (blocked_ == &sequence) blocked_ = nullptr;
  } else if (sequence.slot >= 0) {
    leave(sequence, publish);
  }
  sequence.state = SequenceState::finished;
}

void Scheduler::leave(Sequence& sequence, bool publish) {
  free_slots_.push_back(sequence.slot);
  memory_.release(sequence, publish);
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
}

}  // namespace weft
