#include "engine/sequence_memory.h"

#include <algorithm>
#include <map>

#include "engine/submission.h"

namespace weft {
namespace {

/// Table entries that one step may change, unless one sequence alone needs more: 768 KiB of plan. Where many sequences with
/// long cached prefixes come at once, some are admitted a step later.
constexpr int64_t kTableUpdates = 65536;

}  // namespace

SequenceMemory::SequenceMemory(const Options& options)
    : layout_(options.layout),
      caching_(options.prefix_caching),
      // A step adds at most one block to each running sequence before it admits others.
      max_updates_(std::max(kTableUpdates, options.sequences + options.layout.blocks_for(options.max_length))),
      pool_(options.blocks, [this](BlockId block) { index_.forget(block); }),
      index_(pool_, static_cast<int>(options.layout.virtual_tokens()), options.secret) {
  WEFT_CHECK_LE(options.layout.blocks_for(options.max_length), options.blocks) << "a sequence may not fit in the pool";
  updates_.reserve(static_cast<size_t>(max_updates_));
  copies_.reserve(static_cast<size_t>(options.sequences));
  sources_.reserve(static_cast<size_t>(options.sequences));
  found_.reserve(static_cast<size_t>(layout_.blocks_for(options.max_length)));
}

bool SequenceMemory::reuses_cache(const Sequence& sequence) const {
  // Once a token was sampled, the prompt's rows have given what was wanted of them.
  return caching_ && (sequence.generated > 0 || !sequence.submission->wants_prompt_rows());
}

SequenceMemory::Admission SequenceMemory::admit(Sequence& sequence, int32_t slot) {
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  const int64_t needed = layout_.blocks_for(length);
  if (static_cast<int64_t>(updates_.size()) + needed > max_updates_) {
    ++admissions_deferred_;
    return Admission::next_step;
  }
  const PrefixKey root = sequence.submission->root;
  PrefixIndex::Hit hit{.key = root, .partial = {}};
  found_.clear();
  if (reuses_cache(sequence)) hit = index_.find(root, sequence.tokens, length - 1, found_);

  // Everything that is found is held before anything is allocated, which could evict it.
  sequence.blocks.set_pool(pool_);
  for (const BlockId block : found_) sequence.blocks.append_shared(block);
  if (hit.partial) pool_.share(*hit.partial);
  bool fits = sequence.blocks.grow_to(needed);
  if (!fits && hit.partial) {
    // The block to copy from may itself be the one that is needed.
    pool_.release(*hit.partial);
    hit.partial.reset();
    hit.tokens -= hit.partial_tokens;
    fits = sequence.blocks.grow_to(needed);
    if (fits) ++partial_hits_dropped_;
  }
  if (!fits) {
    sequence.blocks.clear();
    return Admission::too_few_blocks;
  }
  if (hit.partial) {
    const BlockId target = sequence.blocks.blocks()[static_cast<size_t>(hit.whole_blocks)];
    copies_.push_back(
        {.source = static_cast<int32_t>(*hit.partial), .target = static_cast<int32_t>(target), .tokens = hit.partial_tokens});
    sources_.push_back(*hit.partial);
  }
  sequence.slot = slot;
  sequence.cached = hit.tokens;
  sequence.key = hit.key;
  sequence.published = hit.whole_blocks;
  update_table(sequence, 0);
  return Admission::admitted;
}

bool SequenceMemory::grow(Sequence& sequence) {
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  const int64_t before = sequence.blocks.size();
  if (before * layout_.virtual_tokens() >= length) return true;
  if (!sequence.blocks.grow_to(layout_.blocks_for(length))) return false;
  update_table(sequence, before);
  return true;
}

void SequenceMemory::update_table(const Sequence& sequence, int64_t first) {
  const std::span<const BlockId> blocks = sequence.blocks.blocks();
  for (size_t i = static_cast<size_t>(first); i < blocks.size(); ++i)
    updates_.push_back(
        {.sequence = sequence.slot, .ordinal = static_cast<int32_t>(i), .block = static_cast<int32_t>(blocks[i])});
}

void SequenceMemory::publish(Sequence& sequence, bool tail) {
  if (!caching_) return;
  const int64_t whole = layout_.virtual_tokens();
  const std::span<const int32_t> tokens = sequence.tokens;
  const auto of_block = [&](int64_t block, int64_t count) {
    return tokens.subspan(static_cast<size_t>(block * whole), static_cast<size_t>(count));
  };
  for (; (sequence.published + 1) * whole <= sequence.cached; ++sequence.published) {
    const auto in_block = of_block(sequence.published, whole);
    index_.publish(sequence.key, in_block, sequence.blocks.blocks()[static_cast<size_t>(sequence.published)]);
    if (sequence.generated == 0) ++prompt_blocks_;
    sequence.key = index_.child(sequence.key, in_block);
  }
  const int64_t rest = sequence.cached - sequence.published * whole;
  if (tail && rest > 0)
    index_.publish(sequence.key, of_block(sequence.published, rest),
                   sequence.blocks.blocks()[static_cast<size_t>(sequence.published)]);
}

void SequenceMemory::release(Sequence& sequence, bool publish_first) {
  if (publish_first) publish(sequence, true);
  sequence.blocks.clear();
  sequence.cached = sequence.published = 0;
  sequence.slot = -1;
}

void SequenceMemory::step_done() {
  updates_.clear();
  copies_.clear();
  for (const BlockId source : sources_) pool_.release(source);
  sources_.clear();
}

void SequenceMemory::count_rank_tokens(std::span<Sequence* const> running, std::span<int64_t> rank_tokens) const {
  WEFT_CHECK(sources_.empty()) << "a step is under way";
  const int64_t whole = layout_.virtual_tokens();
  std::fill(rank_tokens.begin(), rank_tokens.end(), 0);
  // Only full blocks are shared. What a sequence has behind its full ones is its own: one that fills, and empty ones.
  int64_t full_blocks = held();
  for (const Sequence* sequence : running) {
    const int64_t full = sequence->cached / whole;
    full_blocks -= sequence->blocks.size() - full;
    for (size_t rank = 0; rank < rank_tokens.size(); ++rank)
      rank_tokens[rank] += layout_.shard.local_count(sequence->cached - full * whole, static_cast<int>(rank));
  }
  for (int64_t& tokens : rank_tokens) tokens += full_blocks * layout_.block_tokens;
}

void SequenceMemory::reset_cache(std::span<Sequence* const> running) {
  index_.clear();
  for (Sequence* sequence : running) {
    sequence->key = sequence->submission->root;
    sequence->published = 0;
    publish(*sequence, true);
  }
}

void SequenceMemory::check_invariants(std::span<Sequence* const> running) const {
  pool_.check_invariants();
  index_.check_invariants();
  WEFT_CHECK(sources_.empty() && copies_.empty() && updates_.empty()) << "a step is under way";
  std::map<BlockId, int> holders;
  for (const Sequence* sequence : running) {
    const auto length = static_cast<int64_t>(sequence->tokens.size());
    WEFT_CHECK_GE(sequence->blocks.size(), layout_.blocks_for(sequence->cached)) << "slot " << sequence->slot;
    WEFT_CHECK_LE(sequence->blocks.size(), layout_.blocks_for(length)) << "slot " << sequence->slot;
    for (const BlockId block : sequence->blocks.blocks()) ++holders[block];
  }
  for (const auto& [block, count] : holders) WEFT_CHECK(pool_.state(block) == BlockState::held);
  WEFT_CHECK_EQ(static_cast<int64_t>(holders.size()), held()) << "blocks that nobody holds are not available";
  for (const Sequence* sequence : running) {
    const int64_t next = layout_.block_of(sequence->cached);
    if (next >= sequence->blocks.size()) continue;
    WEFT_CHECK_EQ(holders[sequence->blocks.blocks()[static_cast<size_t>(next)]], 1) << "a shared block would be written";
  }
}

}  // namespace weft
