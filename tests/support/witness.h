#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "layout/block_layout.h"
#include "model/step_plan.h"

namespace weft::test {

/// What a token leaves behind where it is stored. Sums of these stand for sets: a row that is missing, seen twice or foreign
/// changes the sum, the order in which ranks are visited does not.
struct WitnessRow {
  uint64_t place = 0;  ///< of the position
  uint64_t pair = 0;   ///< of position and token
  uint64_t state = 0;  ///< of all pairs that the token saw when it was computed: a second layer

  WitnessRow& operator+=(const WitnessRow& other) {
    place += other.place;
    pair += other.pair;
    state += other.state;
    return *this;
  }
};
WitnessRow witness_row(int64_t position, int32_t token);
/// The state that a token stores, from the sum of the pairs that it sees; and what its logits are made of, from the sum of the
/// states that it sees.
uint64_t witness_state(uint64_t pairs);
uint64_t witness_hidden(uint64_t states);

/// The witness model read from left to right, without ranks, blocks, steps or plans: what every engine must agree with.
class WitnessPath {
 public:
  void feed(int32_t token);
  int64_t length() const { return length_; }
  uint64_t hidden() const { return witness_hidden(seen_.state); }

 private:
  WitnessRow seen_;
  int64_t length_ = 0;
};

/// How one token is to be sampled: a row and the lists that it names. A neutral penalty and an entry without effect make no
/// difference, nor do seed and filters where the temperature is 0; everything else does.
struct WitnessSampling {
  SamplingRow row;
  std::span<const PenaltyToken> penalty_tokens;
  std::span<const LogitBias> biases;
  std::span<const uint32_t> allowed;  ///< mask, or empty: all
};
/// Never a token that is not allowed or has a bias of -infinity; -1 if there is no other.
int32_t witness_token(uint64_t hidden, const WitnessSampling& sampling, int32_t vocab);
float witness_log_prob(uint64_t hidden, int32_t token);
/// The token that counts as number `rank` among the most probable.
int32_t witness_top_id(uint64_t hidden, int32_t rank, int32_t vocab);

/// Carries out plans as a group of W ranks with KV memory does: tables, copies, appends, attention over what the plan makes
/// visible, sampling. One sharded plane and one replicated plane; memory that was never written holds poison.
///
/// Finds by itself what a real model could not: a row that does not see each position up to its own exactly once, a row that
/// is stored on the wrong ranks, a damaged plan, entries out of range. Says so in faults(), and goes on.
class Witness : public StepRunner {
 public:
  struct Limits {
    BlockLayout layout;
    int64_t blocks = 0;
    int64_t sequences = 0, blocks_per_sequence = 0;  ///< of the ranks' tables
    int64_t rows = 0;                                ///< of a step
    int64_t context_rows = 0;                        ///< of one rank in one context gather
    int32_t vocab = 0;
    /// Time of a step: `step_seconds` + rows * `row_seconds`.
    double step_seconds = 0.001, row_seconds = 0.0001;
  };
  explicit Witness(const Limits& limits);

  const StepResult& run(const StepPlan& plan) override;

  /// What was wrong so far, the first few.
  const std::vector<std::string>& faults() const { return faults_; }
  /// Of all plans so far.
  uint64_t checksum() const { return checksum_; }
  int64_t steps() const { return steps_; }
  /// The step with this number fails as a lost rank does; -1: none.
  void fail_at(int64_t step) { fail_at_ = step; }

 private:
  /// One rank: its planes and its copy of the tables.
  struct Rank {
    std::vector<WitnessRow> sharded, replicated;
    std::vector<int32_t> tables;  ///< [sequences, blocks_per_sequence]
  };
  /// How a row of the step sees its keys.
  struct RowView {
    ContextVia via = ContextVia::none;
    bool fresh = false;
  };

  template <typename... Args>
  void fault(const char* format, const Args&... args);
  void check_plan(const StepPlan& plan);
  void update_tables(const StepPlan& plan);
  void copy_blocks(const StepPlan& plan);
  void append(const StepPlan& plan);
  void attend(const StepPlan& plan, std::vector<WitnessRow>& seen);
  void attend_waves(const StepPlan& plan, std::vector<WitnessRow>& seen);
  void attend_replicated(const StepPlan& plan);
  WitnessRow paged(const std::vector<WitnessRow>& plane, const Rank& rank, int64_t block_rows, int32_t sequence, int64_t begin,
                   int64_t end);
  void check_rows(const StepPlan& plan, const std::vector<WitnessRow>& seen);
  void sample(const StepPlan& plan, const std::vector<WitnessRow>& seen);
  bool stored(const StepPlan& plan, int64_t row) const;

  const Limits limits_;
  std::vector<Rank> ranks_;
  std::vector<uint64_t> places_;  ///< [i] sum of the places of positions 0 to i - 1
  StepResult result_;
  std::vector<std::string> faults_;
  uint64_t checksum_ = 0;
  int64_t steps_ = 0, fail_at_ = -1;

  // Of the step that runs.
  std::vector<RowView> views_;
  std::vector<WitnessRow> rows_, first_, second_, received_;
  int32_t first_fresh_ = 0;
};

}  // namespace weft::test
