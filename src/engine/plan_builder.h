#pragma once

#include <span>
#include <vector>

#include "engine/config.h"
#include "layout/block_layout.h"
#include "layout/rank_grid.h"
#include "model/config.h"
#include "model/step_plan.h"

namespace weft {

/// How the token after one logit row is sampled: SamplingRow with its lists. Row, target and position come from the builder.
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
  /// Tokens whose log probability is wanted at each logit row, or empty.
  std::span<const int32_t> targets = {};
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
    int element_bytes = 2;     ///< of what crosses ranks
    int64_t context_rows = 0;  ///< rows of one rank in one context gather, at least 1
    int first_layer = 0, last_layer = 0;
  };
  PlanBuilder(const ModelConfig& config, const RankGrid& grid, const Options& options);

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
  void order(std::span<const SequenceStep> steps);
  void add_rows(std::span<const SequenceStep> steps, int32_t total);
  void add_waves(std::span<const SequenceStep> steps);
  void add_sampling(std::span<const SequenceStep> steps);

  const ModelConfig& config_;
  const RankGrid& grid_;
  Options options_;
  uint64_t step_ = 0;
  StepPlan plan_;

  // Scratch of build(), kept for its memory.
  std::vector<Placed> placed_;
  std::vector<int32_t> first_row_, first_logit_;
  std::vector<int32_t> token_src_, positions_, seq_of_, fresh_begin_, fresh_end_;
  std::vector<int32_t> slots_, ctx_begin_, ctx_end_;
  std::vector<RowGroup> groups_;
  std::vector<ContextWave> waves_;
  std::vector<std::vector<int32_t>> gather_slots_;  ///< per rank
  std::vector<int32_t> gather_flat_, wave_begin_, wave_end_;
  std::vector<SamplingRow> sampling_;
};

}  // namespace weft
