#pragma once

#include "ops/cpu/attend.h"
#include "ops/cpu/pool.h"
#include "ops/cpu/products.h"
#include "ops/ops.h"

namespace weft {

/// The operators on the cores of this machine: checks of shapes and types, then calls. Every operator is done when it returns.
/// The kernels are in namespace weft::cpu, a file for each family.
///
/// Results do not depend on the number of threads. Unless oneDNN multiplies many rows, a row's result does not depend on the
/// other rows of the call either.
class CpuOps final : public Ops {
 public:
  /// `threads` >= 1 cores are used, the caller's included.
  explicit CpuOps(int threads, cpu::ManyRows many_rows = cpu::fastest_for_many_rows());
  Pool& pool() { return pool_; }

  Buffer allocate(size_t bytes) override;
  void upload(const void* host, View device) override;
  void download(ConstView device, void* host) override;
  void synchronize() override {}
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
  void reserve(const AttentionLimits& limits) override { attend_.reserve(pool_.threads(), limits); }
  size_t reserved_bytes(const AttentionLimits& limits) const override {
    return cpu::AttendScratch::reserved_bytes(pool_.threads(), limits);
  }
  void merge(std::span<const Partial> partials, View out, View lse) override;

  size_t sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const override;
  void sample(const SampledLogits& in, View workspace, int32_t* ids) override;
  void log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) override;

 private:
  Pool pool_;
  cpu::Products products_;
  cpu::AttendScratch attend_;
};

}  // namespace weft
