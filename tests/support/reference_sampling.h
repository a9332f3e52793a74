#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "support/prop.h"
#include "support/test_memory.h"

namespace weft::test {

/// Logit rows with sampling rows and their lists, built up one by one.
class SamplingBatch {
 public:
  explicit SamplingBatch(int64_t vocab) : vocab_(vocab) {}

  /// Adds a row of `vocab` logits and returns its number.
  int32_t add_logits(std::span<const float> logits);
  /// Adds what is wanted of that row. Slices and mask number of `row` are filled in; `allowed` empty: all tokens.
  void add(int32_t logit_row, SamplingRow row, std::span<const PenaltyToken> penalties = {},
           std::span<const LogitBias> biases = {}, std::span<const int32_t> allowed = {});

  int64_t vocab() const { return vocab_; }
  size_t size() const { return rows_.size(); }
  const SamplingRow& row(size_t r) const { return rows_[r]; }
  /// The raw logits that sampling row r looks at.
  std::span<const float> logits_of(size_t r) const;
  /// The whole as an operator's argument; valid until something is added.
  SampledLogits view() const;
  std::vector<int32_t> sample(Ops& ops) const;

  struct LogProbResult {
    std::vector<float> of_ids, of_targets, top_log_probs;
    std::vector<int32_t> top_ids;
  };
  LogProbResult log_probs(Ops& ops, std::span<const int32_t> ids, int32_t max_top) const;

 private:
  int64_t vocab_;
  Array<float> logits_;
  Array<SamplingRow> rows_;
  Array<int32_t> logit_row_;
  Array<PenaltyToken> penalties_;
  Array<LogitBias> biases_;
  Array<uint32_t> masks_;
};

/// A token that may be drawn.
struct Candidate {
  int32_t token;
  double probability;
};
/// The tokens that sampling row r of a batch may draw, in the order of preference, with their probabilities: everything sorted,
/// probabilities in float64. Never empty.
std::vector<Candidate> reference_candidates(const SampledLogits& in, size_t r);
/// The candidate that u of (0, 1) falls on.
int32_t reference_draw(std::span<const Candidate> candidates, double u);

/// A row with any parameters, lists and logits: many ties, infinities and NaN among them.
void add_any_row(Gen& gen, SamplingBatch& batch);

}  // namespace weft::test
