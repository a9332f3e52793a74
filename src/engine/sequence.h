#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cache/block_table.h"
#include "cache/prefix_index.h"
#include "model/step_plan.h"

namespace weft {

struct Submission;

/// What a sequence waits for.
enum class SequenceState : uint8_t {
  dormant,            ///< for the first choice of its request, which computes the prompt for all
  waiting_admission,  ///< for blocks and a table slot
  waiting_remote_kv,  ///< for KV that another node computed
  waiting_tier_load,  ///< for blocks from host memory or disk
  ready,              ///< for the next step
  in_step,            ///< its rows are being computed
  finished,
};

/// One choice of a request: its tokens, progress and blocks. Its memory is taken when the request is submitted.
///
/// Thread: engine thread only.
struct Sequence {
  Submission* submission = nullptr;
  int32_t choice = 0;
  SequenceState state = SequenceState::dormant;

  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;          ///< prompt, then what was generated
  int64_t cached = 0;                   ///< tokens whose KV is stored
  int64_t generated = 0;                ///< tokens sampled
  std::vector<PenaltyToken> penalties;  ///< what penalties apply to so far, ascending by token
  int64_t last_token_us = 0;            ///< when the last token came

  int32_t slot = -1;  ///< in the ranks' tables, while admitted
  BlockTable blocks;
  PrefixKey key;          ///< of the whole blocks that are published
  int64_t published = 0;  ///< how many

  uint64_t admission = 0;                         ///< number of its admission: the larger, the younger
  uint64_t last_step = 0;                         ///< number of the last step that it was in
  Sequence *previous = nullptr, *next = nullptr;  ///< in the queue

  /// Tokens whose KV is still to be computed; the next one is sampled after the last of them.
  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - cached; }
  /// The next step computes just the token that was sampled last.
  bool decoding() const { return generated > 0 && pending() == 1; }
};

/// Sequences in line, linked through themselves, so that queueing allocates nothing.
class SequenceQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  int64_t size() const { return size_; }
  Sequence& front() const { return *first_; }

  void push_back(Sequence& sequence) { link(sequence, last_, nullptr); }
  void push_front(Sequence& sequence) { link(sequence, nullptr, first_); }
  void remove(Sequence& sequence) {
    (sequence.previous ? sequence.previous->next : first_) = sequence.next;
    (sequence.next ? sequence.next->previous : last_) = sequence.previous;
    sequence.previous = sequence.next = nullptr;
    --size_;
  }

 private:
  void link(Sequence& sequence, Sequence* previous, Sequence* next) {
    sequence.previous = previous;
    sequence.next = next;
    (previous ? previous->next : first_) = &sequence;
    (next ? next->previous : last_) = &sequence;
    ++size_;
  }

  Sequence *first_ = nullptr, *last_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace weft
