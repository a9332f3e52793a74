#pragma once

#include <map>

#include "ops/ops.h"

namespace weft::test {

/// Operators of a rank whose memory is not the host's, on test data that is: for each call, every block of test memory that an
/// argument points into is copied to the rank, and back afterwards. So one test serves ranks of both kinds, and an operator
/// that reads the host's memory where the contract says the rank's, or that writes where it should not, is found.
///
/// What allocate() gave is the rank's own and passed on as it is. Any other pointer is a mistake of the test (WEFT_CHECK).
class MirroredOps final : public Ops {
 public:
  explicit MirroredOps(std::unique_ptr<Ops> rank);
  ~MirroredOps() override;

  Buffer allocate(size_t bytes) override;
  void upload(const void* host, View device) override;
  void download(ConstView device, void* host) override;
  void synchronize() override;
  void copy(std::span<const CopyRun> runs) override;
  void copy(ConstView in, View out) override;
  void run_recorded(uint64_t key, const std::function<void()>& body) override;

  std::unique_ptr<Matrix> pack(ConstView matrix, DType dtype) override;
  size_t packed_bytes(int64_t out, int64_t in, DType dtype) const override;
  void linear(const Matrix& w, ConstView x, const float* bias, View out) override;
  void head_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, View out) override;
  void expert_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, const ExpertRows& rows, bool gather,
                     View out) override;

  void embed(const int32_t* ids, ConstView table, int64_t first_row, View out) override;
  void rms_norm(ConstView x, const float* weight, float eps, View out) override;
  void add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) override;
  void add(ConstView y, View x) override;
  void silu_mul(ConstView gate_up, View out) override;

  void route(ConstView logits, const Routing& routing, View experts, View weights) override;
  void group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) override;
  void combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) override;

  void rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) override;
  void rope_append(const RopeAppend& args) override;
  void gather_rows(const KvView& kv, const int32_t* slots, View k, View v) override;
  void attend(const Attention& args) override;
  void reserve(const AttentionLimits& limits) override;
  size_t reserved_bytes(const AttentionLimits& limits) const override;
  void merge(std::span<const Partial> partials, View out, View lse) override;

  size_t sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const override;
  void sample(const SampledLogits& in, View workspace, int32_t* ids) override;
  void log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) override;

 private:
  class Call;
  std::unique_ptr<Ops> rank_;
  std::map<const std::byte*, size_t> own_;  ///< what allocate() gave and nobody has given back
};

}  // namespace weft::test
