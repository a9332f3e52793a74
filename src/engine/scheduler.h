#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "engine/sequence.h"
#include "layout/block_layout.h"

namespace weft {

/// Who runs in the next step, and how many tokens. First come, first served: decodes first, then prefill chunks up to the token
/// budget; a sequence is admitted once its whole length has free blocks, so nothing that runs ever has to wait for memory.
/// Deterministic.
///
/// Thread: engine thread only.
class Scheduler {
 public:
  struct Limits {
    int64_t tokens = 0;     ///< of one step
    int64_t sequences = 0;  ///< admitted at once, at most `tokens`
  };
  Scheduler(BlockPool& pool, BlockLayout layout, Limits limits);

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  struct Chosen {
    Sequence* sequence = nullptr;
    int64_t tokens = 0;
    bool admitted_now = false;  ///< its table is new to the ranks
  };
  /// The next step: empty if nothing waits or runs. Chosen sequences are in_step until done() is called for each.
  std::span<const Chosen> next();
  /// Takes note of a sequence's step: it is ready again, or finished and its blocks released.
  void done(Sequence& sequence, bool finished);

  /// Admitted sequences, in order of admission.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }

 private:
  bool admit_one();

  BlockPool& pool_;
  BlockLayout layout_;
  Limits limits_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<int32_t> free_slots_;
  std::vector<Chosen> chosen_;
};

}  // namespace weft
