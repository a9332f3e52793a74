#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "layout/block_layout.h"

namespace weft {

/// The token that each row of the KV cache was computed from, and the ranks' tables: a plane of tokens that every rank would
/// hold whole. From it the KV can be computed again.
class TokenShadow {
 public:
  struct Sizes {
    int64_t virtual_tokens = 0, blocks = 0;  ///< of the pool
    int64_t sequences = 0, blocks_per_sequence = 0;
  };
  explicit TokenShadow(const Sizes& sizes);

  /// Does what `plan` does to tables and rows. `samples` are those of the step before, for rows that feed them.
  void apply(const StepPlan& plan, std::span<const int32_t> samples);
  /// The two halves of apply(): table updates and copies, then the rows that the step writes.
  void apply_blocks(const StepPlan& plan);
  void apply_rows(const StepPlan& plan, std::span<const int32_t> samples);

  /// The first `length` tokens of table slot `sequence`, which has blocks for them; -1 where a row was never written.
  std::vector<int32_t> tokens(int32_t sequence, int64_t length) const;
  /// Where they lie in rows().
  std::vector<int64_t> rows_of(int32_t sequence, int64_t length) const;
  const Sizes& sizes() const { return sizes_; }

  std::span<const int32_t> tables() const { return tables_; }  ///< [sequences, blocks_per_sequence] block ids, -1 = unused
  std::span<const int32_t> rows() const { return rows_; }      ///< [blocks * virtual_tokens] token ids, -1 = never written
  std::span<int32_t> tables() { return tables_; }
  std::span<int32_t> rows() { return rows_; }
  std::vector<BlockId> table(int32_t sequence) const;

 private:
  Sizes sizes_;
  std::vector<int32_t> tables_, rows_;
};

/// One step as it was run.
struct FlightStep {
  std::vector<std::byte> plan;  ///< StepPlan::bytes
  bool completed = false;       ///< else the step failed, and there is no result
  std::vector<int32_t> ids;     ///< sampled tokens
  std::vector<uint64_t> rank_checksums;
};

/// What a flight file holds: the engine's configuration, the cache as it was before the first kept step, and the kept steps.
struct Flight {
  std::string config;  ///< to_text(EngineConfig)
  TokenShadow before{{}};
  std::vector<FlightStep> steps;

  /// Throws UserError for a file that cannot be read or is not a flight, with what is wrong in it.
  static Flight read(const std::filesystem::path& path);
};

/// A runner that keeps the last steps of another one, so that a failure can be run again and looked at.
///
/// Thread: engine thread only. Takes its memory at the start; run() allocates nothing. Where plans are large, fewer steps than
/// `steps` are kept: what fits in `bytes`.
class FlightRecorder final : public StepRunner {
 public:
  struct Options {
    TokenShadow::Sizes sizes;
    int64_t steps = 256;
    size_t bytes = size_t{64} << 20;
    std::string config = {};  ///< to_text(EngineConfig)
  };
  /// `runner` outlives the recorder.
  FlightRecorder(const Options& options, StepRunner& runner);

  const StepResult& run(const StepPlan& plan) override;
  /// Writes what is kept to a new file, which only its owner may read. Throws SystemError where that cannot be done.
  void write(const std::filesystem::path& path) const;
  int64_t kept() const { return static_cast<int64_t>(count_); }

 private:
  /// A step in the ring: its plan, then its ids, then its checksums.
  struct Kept {
    size_t offset = 0, plan_bytes = 0, ids = 0, checksums = 0;
    bool completed = false;
    size_t bytes() const { return plan_bytes + checksums * sizeof(uint64_t) + ids * sizeof(int32_t); }
  };
  void keep(const StepPlan& plan, const StepResult* result);
  void drop_oldest();
  Kept& kept(size_t i) { return index_[(first_ + i) % index_.size()]; }
  const Kept& kept(size_t i) const { return index_[(first_ + i) % index_.size()]; }
  std::span<const int32_t> ids(const Kept& kept) const;

  StepRunner& runner_;
  const std::string config_;
  std::vector<std::byte> ring_;
  std::vector<Kept> index_;
  size_t first_ = 0, count_ = 0, end_ = 0;  ///< `end_`: where the next step goes in ring_
  TokenShadow before_;
  std::vector<int32_t> samples_;  ///< of the step before the oldest kept one
  StepPlan scratch_;              ///< a dropped plan, to be applied to before_
};

}  // namespace weft
