#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "ops/sampling.h"

namespace weft {

/// How a run of rows sees the keys that were cached before this step.
enum class ContextVia : uint8_t {
  none,     ///< nothing is cached: no DCP collective
  queries,  ///< queries of all heads of the group go to the shards, partials come back
  keys,     ///< the shards' rows come here, attended with the rank's own heads
};

/// Consecutive rows that see their keys in the same way. Decode rows are written to the cache first and see themselves there;
/// rows with `fresh` see this step's rows of their own sequence beside the context.
struct RowGroup {
  int32_t begin = 0, end = 0;
  ContextVia via = ContextVia::none;
  bool fresh = false;
  uint16_t unused = 0;
};

/// One bounded gather of context for a group that sees it via keys: windows of some sequences' shards. Every rank sends
/// `rows` rows; received row j of rank r is r * rows + j. Rows [row_begin, row_end) of the step attend to them.
struct ContextWave {
  int32_t row_begin = 0, row_end = 0;
  int32_t rows = 0;
  int32_t slots_at = 0;   ///< first entry of this wave in gather_slots[rank]
  int32_t ranges_at = 0;  ///< first entry of this wave in wave_begin / wave_end: [W, row_end - row_begin]
};

/// Sequence slot `sequence` of the ranks' tables: entry `ordinal` is now `block`.
struct TableUpdate {
  int32_t sequence = 0, ordinal = 0, block = 0;
};

/// Copy-on-write: the first `rows` rows of each plane of `source` on each rank become those of `target`, before any append.
/// For a sharded plane of rank r the count is shard.local_count(tokens, r); for a replicated plane it is `tokens`.
struct BlockCopy {
  int32_t source = 0, target = 0, tokens = 0;
};

/// Where an array lies in a plan's block.
template <typename T>
struct PlanArray {
  uint32_t offset = 0, count = 0;
};

/// What to record beside the result, for comparison with golden data. Costs memory traffic and allocation: off in serving.
struct RecordFlags {
  bool hidden = false;  ///< the residual stream after the embedding and after each layer
  bool router = false;  ///< experts and weights of each sparse layer
};

/// Fixed part of a plan. W: ranks of the DCP group, T: rows, R: logit rows, G: gathered context rows of a rank.
struct PlanHeader {
  uint64_t step = 0;
  uint64_t checksum = 0;  ///< of the whole block with this field 0
  uint32_t bytes = 0;     ///< of the whole block
  int32_t ranks = 1;      ///< W
  int32_t rows = 0;       ///< T
  int32_t bucket = 0;     ///< T rounded up to a recorded size; rows from T on are padding (key of run_recorded)
  int32_t first_layer = 0, last_layer = 0;  ///< stage: layers of this team
  bool want_logits = false;                 ///< return the logits of the logit rows
  bool want_log_probs = false;              ///< return log probabilities of the chosen tokens and of the targets
  RecordFlags record;
  int32_t max_top_log_probs = 0;  ///< K: the largest top_log_probs of the sampling rows

  PlanArray<int32_t> token_src;           ///< [T] a token id, or -1 - r: the sample of logit row r of the previous forward
  PlanArray<int32_t> positions;           ///< [T] global
  PlanArray<int32_t> seq_of;              ///< [T] sequence slot in the ranks' tables
  PlanArray<RowGroup> groups;             ///< in row order, covering [0, T); groups without fresh rows come first
  PlanArray<int32_t> slots;               ///< [2, W, T] rows of sharded planes, then of replicated planes; -1 = not stored here
  PlanArray<int32_t> ctx_begin, ctx_end;  ///< [W, T] visible cached keys, local indices of each rank
  PlanArray<int32_t> fresh_begin, fresh_end;  ///< [T] visible rows of this step, counted from the first fresh row
  PlanArray<ContextWave> waves;
  PlanArray<int32_t> gather_slots;          ///< [W, G] cache rows to send, -1 = padding
  PlanArray<int32_t> wave_begin, wave_end;  ///< per wave [W, rows of the step in it]: visible received rows of source rank
  PlanArray<TableUpdate> table_updates;
  PlanArray<BlockCopy> copies;
  PlanArray<SamplingRow> sampling;  ///< [R]
  PlanArray<PenaltyToken> penalty_tokens;
  PlanArray<LogitBias> biases;
  PlanArray<uint32_t> token_masks;  ///< [masks, ceil(vocab / 32)] bit token % 32 of word token / 32: allowed
};

// No byte of a plan is left to chance, or equal plans would have different checksums: structures have no padding.
static_assert(std::has_unique_object_representations_v<PlanHeader> && std::has_unique_object_representations_v<RowGroup>);
static_assert(sizeof(SamplingRow) == 20 * sizeof(int32_t), "the fields fill it");

/// Everything that one forward needs, as arrays in one contiguous block that can be sent as bytes. Identical on all ranks, and
/// computed from global numbers only: whatever decides control flow, a collective or its size is in here.
///
/// Arrays are appended behind one another. reserve() takes memory for the largest step at start; clear() keeps it.
///
/// Built by PlanBuilder on the engine thread, read-only to the ranks.
class StepPlan {
 public:
  StepPlan() : block_(sizeof(PlanHeader)) { header() = PlanHeader{}; }

  /// Takes memory, so that a plan of up to `bytes` allocates nothing.
  void reserve(size_t bytes) { block_.reserve(bytes); }
  size_t capacity() const { return block_.capacity(); }
  /// Back to an empty plan; its memory stays.
  void clear() {
    block_.resize(sizeof(PlanHeader));
    header() = PlanHeader{};
  }

  PlanHeader& header() { return *reinterpret_cast<PlanHeader*>(block_.data()); }
  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(block_.data()); }
  const PlanHeader* operator->() const { return &header(); }

  template <typename T>
  std::span<const T> operator[](PlanArray<T> array) const {
    return {reinterpret_cast<const T*>(block_.data() + array.offset), array.count};
  }
  template <typename T>
  std::span<T> edit(PlanArray<T> array) {
    return {reinterpret_cast<T*>(block_.data() + array.offset), array.count};
  }
  /// Appends an array to the block.
  template <typename T>
  PlanArray<T> append(std::span<const T> values) {
    const size_t offset = (block_.size() + 7) / 8 * 8;
    WEFT_CHECK_LE(offset + values.size_bytes(), size_t{UINT32_MAX}) << "a step plan of 4 GiB";
    block_.resize(offset + values.size_bytes());
    if (!values.empty()) std::memcpy(block_.data() + offset, values.data(), values.size_bytes());
    return {static_cast<uint32_t>(offset), static_cast<uint32_t>(values.size())};
  }

  /// Rank `rank`'s row of an array [W, n].
  std::span<const int32_t> of_rank(PlanArray<int32_t> array, int rank) const {
    const size_t n = array.count / static_cast<size_t>(header().ranks);
    return (*this)[array].subspan(n * static_cast<size_t>(rank), n);
  }
  /// Rows of the sharded (0) or replicated (1) planes that `rank` writes: [T].
  std::span<const int32_t> slots_of(int layout, int rank) const {
    const size_t n = static_cast<size_t>(header().rows), w = static_cast<size_t>(header().ranks);
    return (*this)[header().slots].subspan((static_cast<size_t>(layout) * w + static_cast<size_t>(rank)) * n, n);
  }

  std::span<const std::byte> bytes() const { return block_; }
  /// Writes the size and the checksum. Call last.
  void seal();
  /// The checksum that the block should have.
  uint64_t compute_checksum() const;
  /// Becomes the plan that came as `bytes`; memory only grows. Throws SystemError where size or checksum disagree, and is
  /// undefined then.
  void receive(std::span<const std::byte> bytes);
  /// A new plan from received bytes, as receive().
  static StepPlan from_bytes(std::span<const std::byte> bytes);
  /// Becomes a plan whose bytes were sealed in this process. Allocates nothing within the capacity.
  void assign(std::span<const std::byte> sealed) { block_.assign(sealed.begin(), sealed.end()); }

 private:
  std::vector<std::byte> block_;
};

/// What came of one forward. Arrays of R follow the plan's sampling rows.
struct StepResult {
  std::vector<int32_t> ids;              ///< [R] sampled tokens
  std::vector<int32_t> accepted;         ///< [R] tokens accepted per row: 1 without drafts
  std::vector<float> log_probs;          ///< [R] of ids, if wanted
  std::vector<float> target_log_probs;   ///< [R] of the targets, if wanted
  std::vector<int32_t> top_ids;          ///< [R, K] most probable first, ties by lower id; -1 beyond what a row wants
  std::vector<float> top_log_probs;      ///< [R, K] -infinity beyond
  std::vector<float> logits;             ///< [R, vocab], if wanted
  uint64_t checksum = 0;                 ///< of ids: equal on all ranks
  std::vector<uint64_t> rank_checksums;  ///< of the ranks of this process, filled by the team
  double seconds = 0;                    ///< of the forward on rank 0
  double exchange_seconds = 0;           ///< of those, spent moving data between ranks and waiting for them

  struct RouterRecord {
    int layer = 0, top_k = 0;
    std::vector<int32_t> experts;  ///< [T, top_k] ascending
    std::vector<float> weights;
  };
  std::vector<std::vector<float>> hidden;  ///< [layers + 1][T, H], if recorded
  std::vector<RouterRecord> router;
};

}  // namespace weft
