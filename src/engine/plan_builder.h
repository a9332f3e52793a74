#pragma once

#include <span>
#include <vector>

#include "engine/config.h"
#include "layout/block_layout.h"
#include "layout/rank_grid.h"
#include "model/config.h"
#include "model/step_plan.h"

namespace weft {

/// How the token after one logit row is sampled: SamplingRow with its lists. Row and position come from the builder, and the
/// target where it is -1. Rows of one step that name the same list, at one address, share it in the plan.
struct RowSampling {
  SamplingRow row;
  std::span<const PenaltyToken> penalty_tokens = {};  ///< ascending by token
  std::span<const LogitBias> biases = {};             ///< ascending by token
  std::span<const uint32_t> allowed = {};             ///< [ceil(vocab / 32)] bits, or empty: all tokens
};

/// One sequence's part in a step: `tokens.size()` new tokens at positions cached, cached + 1, ...
struct SequenceStep {
  int32_t sequence = 0;             ///< slot in the ranks' tables
  int64_t cached = 0;               ///< tokens whose KV is stored already
  std::span<const int32_t> tokens;  ///< ids, or -1 - r for the sample of logit row r of the previous forward
  std::span<const BlockId> table;   ///< blocks for cached + tokens.size() tokens
  /// Decode and verify rows are written first and see themselves through the cache; prefill rows see each other directly.
  bool decode = false;
  enum class Logits : uint8_t { none, last, all } logits = Logits::none;
  /// Tokens whose log probability is wanted at each logit row, in order; rows beyond them have none.
  std::span<const int32_t> targets = {};
  int32_t top_log_probs = 0;  ///< wanted of each logit row that `sampling` says nothing of
  /// How to sample at the last logit row: one entry per choice, each giving a sampling row of its own; empty: greedily. Earlier
  /// logit rows (Logits::all) are greedy.
  std::span<const RowSampling> sampling = {};
};

/// Sequences -> StepPlan: the only place where layout meets a batch. Decides how each sequence's rows see their context.
///
/// Thread: engine thread only.
class PlanBuilder {
 public:
  struct Options {
    BlockLayout layout;
    DcpExchange exchange = DcpExchange::automatic;
    int element_bytes = 2;          ///< of queries and partials that cross ranks
    int64_t context_row_bytes = 0;  ///< of the context rows that do; 0: their elements in element_bytes
    int64_t context_rows = 0;       ///< rows of one rank in one context gather, at least 1
    int first_layer = 0, last_layer = 0;
  };
  PlanBuilder(const ModelConfig& config, const RankGrid& grid, const Options& options);

  /// The largest step.
  struct Limits {
    int64_t rows = 0, sequences = 0;
    int64_t max_length = 0;  ///< tokens of one sequence
    int64_t sampling_rows = 0, table_updates = 0, penalty_tokens = 0, biases = 0;
    int32_t vocab = 0;
  };
  /// Takes memory for the largest step: build() then allocates nothing. Context that would make the plan larger still is seen
  /// via queries, which need no list of rows.
  void reserve(const Limits& limits);

  struct Flags {
    bool want_logits = false, want_log_probs = false;
    RecordFlags record = {};
    int32_t pad_to = 0;  ///< rows up to this count are padding: stored nowhere, seeing nothing
  };
  /// Builds the plan of one step. `updates` and `copies` are carried out by the ranks before anything else.
  const StepPlan& build(std::span<const SequenceStep> steps, std::span<const TableUpdate> updates,
                        std::span<const BlockCopy> copies, const Flags& flags);

  /// Of the plan built last: the first row, and the first logit row, of steps[i].
  std::span<const int32_t> first_rows() const { return first_row_; }
  std::span<const int32_t> first_logit_rows() const { return first_logit_; }

 private:
  struct Placed {
    size_t index = 0;  ///< in steps
    ContextVia via = ContextVia::none;
    bool fresh = false;
  };
  /// One window of a sequence's shards in a context gather: rows [local, local + rows), which come at row `at` of each rank.
  struct Window {
    size_t index = 0;  ///< in steps
    int64_t local = 0, rows = 0, at = 0;
  };
  void order(std::span<const SequenceStep> steps);
  ContextVia choose_via(const SequenceStep& step);
  void add_rows(std::span<const SequenceStep> steps, int32_t total);
  void add_row(const SequenceStep& step, int64_t pos, size_t row, size_t total);
  void add_waves(std::span<const SequenceStep> steps);
  void close_wave(std::span<const SequenceStep> steps);
  void add_sampling(std::span<const SequenceStep> steps);
  void add_sampling_row(SamplingRow row, const RowSampling& sampling);

  const ModelConfig& config_;
  const RankGrid& grid_;
  Options options_;
  uint64_t step_ = 0;
  int64_t most_gathered_ = INT64_MAX;  ///< rows of one rank in all gathers of a step
  StepPlan plan_;

  // Scratch of build(), kept for its memory.
  std::vector<Placed> in_turn_, placed_;
  int64_t gathered_ = 0;
  std::vector<int32_t> first_row_, first_logit_;
  std::vector<int32_t> token_src_, positions_, seq_of_, fresh_begin_, fresh_end_;
  std::vector<int32_t> slots_, ctx_begin_, ctx_end_;
  std::vector<RowGroup> groups_;
  std::vector<Window> windows_;  ///< of the wave that is being filled
  int64_t window_rows_ = 0;
  std::vector<ContextWave> waves_;
  std::vector<std::vector<int32_t>> gather_slots_;  ///< per rank
  std::vector<int32_t> gather_flat_, wave_begin_, wave_end_;
  std::vector<SamplingRow> sampling_;
  std::vector<PenaltyToken> penalty_tokens_;
  std::vector<LogitBias> biases_;
  std::vector<uint32_t> masks_;
  std::vector<const uint32_t*> mask_sources_;  ///< whose the masks are
  std::span<const PenaltyToken> last_penalties_;
  std::span<const LogitBias> last_biases_;
  PlanSlice last_penalty_slice_, last_bias_slice_;
};

}  // namespace weft
