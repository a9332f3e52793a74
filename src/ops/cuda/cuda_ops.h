#pragma once

#include "ops/cuda/memory.h"
#include "ops/cuda/params.h"
#include "ops/cuda/products.h"
#include "ops/ops.h"

namespace weft {

/// The operators on one GPU: checks of shapes and types, then launches on one stream, in program order. Nothing waits for the
/// device but download, synchronize, and an upload of more than the ring's pinned 8 MiB at once; an operator that fails on the
/// device ends in SystemError there.
///
/// These are the simple kernels: any head size and count, float32 and bfloat16, all formats of the cache, on compute capability
/// 8.0 and newer. They stay as the portable path beside tuned ones. A file for each family, all in namespace weft::cuda:
/// params.h has their arguments, launch_plan.h decides tiles, parts and grids, from sizes alone.
///
/// Where this goes, and what it must not lose:
///  - A step's arrays (slots, ranges, ids, sampling rows) are memory of the rank like everything else, so the model uploads its
///    plan once per step, to one address, and every layer's operators read it there; slots are localised once, on the host.
///  - No operator reads anything back or decides by an array's values: launches follow from sizes, so run_recorded can record a
///    step's launches for a bucket of rows as one graph, of kernels alone, and replay it over the next plan. Padding rows have
///    slot -1 and empty ranges. Rings and copies of runs stay outside: the plan's upload and copy-on-write come before.
///  - Samples stay on the device: ids go where `sample` is told, and embed reads them from there.
///
/// Thread: the rank's own. After the first call with the largest sizes (or reserve) no call takes memory.
class CudaOps final : public Ops {
 public:
  /// With `invariant` a row of a product has the same bits whatever rows are beside it: our own kernel multiplies then, not
  /// cublasLt. Throws UserError where GPU `device` is not there or too old.
  explicit CudaOps(int device, bool invariant = false);

  Buffer allocate(size_t bytes) override { return device_.allocate(bytes); }
  void upload(const void* host, View device) override;
  void download(ConstView device, void* host) override;
  void synchronize() override { device_.synchronize(); }
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
  void launch_attend(const Attention& args, cuda::AttendParams& params, const cuda::AttendSizes& sizes);

  cuda::Device device_;
  cuda::UploadRing ring_;
  cuda::CublasProducts products_;
  bool invariant_;
  cuda::Scratch packed_;    ///< strided views on their way to the host
  cuda::Scratch unbiased_;  ///< float32 products that a bias is added to
  cuda::Scratch partials_;  ///< attention over parts of the keys
};

}  // namespace weft
