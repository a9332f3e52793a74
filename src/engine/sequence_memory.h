#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "cache/prefix_index.h"
#include "engine/sequence.h"
#include "layout/block_layout.h"
#include "model/step_plan.h"

namespace weft {

/// The KV blocks of sequences: what they hold, what of it can be found again, and what the ranks must be told of it.
///
/// A sequence that is admitted takes over the longest cached prefix of its tokens: whole blocks are shared, and of a block that
/// matches in part the matching rows are copied into a block of its own, so that a hit is counted in tokens.
///
/// Thread: engine thread only. Allocates in the constructor and never after.
class SequenceMemory {
 public:
  struct Options {
    BlockLayout layout;
    int64_t blocks = 0;      ///< of the pool
    int64_t sequences = 0;   ///< admitted at once
    int64_t max_length = 0;  ///< tokens of one sequence; they fit in the pool
    bool prefix_caching = true;
    std::array<uint8_t, 16> secret{};  ///< of the prefix hash
  };
  explicit SequenceMemory(const Options& options);

  PrefixKey root(std::string_view fingerprint, std::string_view salt) const { return index_.root(fingerprint, salt); }

  enum class Admission : uint8_t {
    admitted,
    too_few_blocks,
    next_step,  ///< this step's table updates are too many
  };
  /// Gives a sequence table slot `slot` and blocks for all its tokens; `cached` is then its hit, which leaves at least one
  /// token to compute. Otherwise it holds nothing.
  [[nodiscard]] Admission admit(Sequence& sequence, int32_t slot);
  /// Makes sure that an admitted sequence has blocks for all its tokens. False if the pool has too few.
  [[nodiscard]] bool grow(Sequence& sequence);
  /// Makes findable what of the stored tokens is not yet: whole blocks, and with `tail` the partly filled one at the end too.
  void publish(Sequence& sequence, bool tail);
  /// Takes everything back from a sequence. With `publish` its stored tokens stay findable until their blocks are reused.
  void release(Sequence& sequence, bool publish = true);

  /// What the ranks must do before the next step, until step_done().
  std::span<const TableUpdate> updates() const { return updates_; }
  std::span<const BlockCopy> copies() const { return copies_; }
  void step_done();

  int64_t blocks() const { return pool_.size(); }
  int64_t available() const { return pool_.available(); }
  /// Whole blocks of prompts that were made findable so far: while this stands still, no prompt finds more than it did.
  int64_t prompt_blocks() const { return prompt_blocks_; }
  int64_t held() const { return pool_.size() - pool_.available(); }
  int64_t cached() const { return pool_.cached(); }
  /// Partial hits that were given up, because no block was left to copy into.
  int64_t partial_hits_dropped() const { return partial_hits_dropped_; }
  /// Admissions that had to wait for the next step's table updates.
  int64_t admissions_deferred() const { return admissions_deferred_; }
  /// Tokens whose KV each rank holds for the `running` sequences, which are all that are admitted: rank_tokens is [ranks]. A
  /// block that several of them share counts once. Requires: no step is under way.
  void count_rank_tokens(std::span<Sequence* const> running, std::span<int64_t> rank_tokens) const;
  /// Most entries of updates().
  int64_t max_updates() const { return max_updates_; }

  /// Forgets every cached prefix but those of the `running` sequences.
  void reset_cache(std::span<Sequence* const> running);
  /// Requires: no step is under way, and `running` holds every admitted sequence.
  void check_invariants(std::span<Sequence* const> running) const;

 private:
  void update_table(const Sequence& sequence, int64_t first);
  bool reuses_cache(const Sequence& sequence) const;

  BlockLayout layout_;
  bool caching_;
  int64_t max_updates_;
  int64_t prompt_blocks_ = 0, partial_hits_dropped_ = 0, admissions_deferred_ = 0;
  BlockPool pool_;
  PrefixIndex index_;
  std::vector<TableUpdate> updates_;
  std::vector<BlockCopy> copies_;
  std::vector<BlockId> sources_;  ///< of the copies: held until they are made
  std::vector<BlockId> found_;
};

}  // namespace weft
