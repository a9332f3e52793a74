#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence_memory.h"
#include "engine/submission.h"

namespace weft {

/// Who runs in the next step, and how many tokens. Decodes first, then prefill chunks up to the token budget; first come, first
/// served. A sequence is admitted once there are blocks for the tokens that it has, and gets more as it grows. When they run
/// out, the youngest admitted sequence gives its blocks back and goes to the front of the queue: so the oldest always goes on,
/// and with it everything. Deterministic.
///
/// Thread: engine thread only. Allocates in the constructor and never after.
class Scheduler {
 public:
  struct Limits {
    int64_t tokens = 0;     ///< of one step
    int64_t sequences = 0;  ///< admitted at once, at most `tokens`; a request has no more choices
    /// Entries of the step's lists, not less than one sequence may have. Where more are wanted, the sequences that had their
    /// last step longest ago go first and the others wait: the one case in which a decode is left out of a step.
    int64_t penalty_tokens = 262144, biases = 65536;
    int64_t min_chunk = 16;  ///< prefill rows that a step has room for, whatever the target of its time

    /// Sampling rows of one step: one a row, and at the end of a prompt one more for each further choice.
    int64_t sampling_rows() const { return tokens + sequences; }
  };
  Scheduler(SequenceMemory& memory, const Limits& limits);

  const Limits& limits() const { return limits_; }

  void add(Sequence& sequence);
  /// Before all others that wait: choices of a prompt that was just computed.
  void add_first(Sequence& sequence);

  struct Chosen {
    Sequence* sequence = nullptr;
    int64_t tokens = 0;
  };
  /// The next step: empty if nothing waits or runs. Has at most `prefill_beside_decodes` prefill rows if it has decodes. Chosen
  /// sequences are in_step until done() or remove() is called for each.
  std::span<const Chosen> next(int64_t prefill_beside_decodes = INT64_MAX);
  void done(Sequence& sequence);
  /// Takes a sequence out, wherever it is, and its blocks from it; what it stored stays findable if `publish`.
  void remove(Sequence& sequence, bool publish = true);

  /// Admitted sequences, in order of admission.
  std::span<Sequence* const> running() const { return running_; }
  int64_t waiting() const { return waiting_.size(); }
  int64_t preemptions() const { return preemptions_; }
  /// Those of them where the sequence that wanted to grow was the youngest itself.
  int64_t preemptions_for_itself() const { return preemptions_for_itself_; }
  /// Times that a decode was left out of a step, because the step's lists were full.
  int64_t decodes_postponed() const { return decodes_postponed_; }

 private:
  /// What is left of a step's lists.
  struct Room {
    int64_t extra_rows = 0, penalty_tokens = 0, biases = 0;
    bool take(const SamplingNeed& need);
  };
  void grow_running();
  bool choose_last_tokens();
  void choose_chunks(int64_t tokens);
  bool admit_one();
  void preempt(Sequence& sequence);
  void leave(Sequence& sequence, bool publish);
  void choose(Sequence& sequence, int64_t tokens);

  SequenceMemory& memory_;
  Limits limits_;
  SequenceQueue waiting_;
  std::vector<Sequence*> running_;
  std::vector<int32_t> free_slots_;
  std::vector<Chosen> chosen_;
  std::vector<Sequence*> last_tokens_;  ///< scratch: those with one token left to compute
  Room room_;
  uint64_t steps_ = 0, admissions_ = 0;
  int64_t preemptions_ = 0, preemptions_for_itself_ = 0, decodes_postponed_ = 0;
  /// The sequence that found too few blocks, and how many there were: it need not be looked up again until there are more.
  const Sequence* blocked_ = nullptr;
  int64_t blocked_available_ = 0, blocked_prompt_blocks_ = 0;
};

}  // namespace weft
