#pragma once

#include <memory>
#include <vector>

#include "exchange/exchange.h"
#include "layout/kv_region.h"
#include "layout/rank_grid.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/moe.h"
#include "model/step_limits.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace weft {

/// The real Model: embedding, decoder layers, logits of the wanted rows, sampling. Holds all layers or, as one stage of a
/// chain, some of them.
///
/// Thread: the rank's own. Nothing is allocated by forward() into a result that is reserved for the step, except what `record`
/// and `want_logits` ask for.
class Decoder final : public Model {
 public:
  struct Parts {
    const ModelConfig& config;
    const RankGrid& grid;
    const Weights& weights;
    const StepLimits& limits;
    KvRegion& region;
    Ops& ops;
    Exchange& exchange;
  };
  explicit Decoder(const Parts& parts);

  void forward(const StepPlan& plan, View hidden, StepResult& result) override;

  /// Bytes of the workspace that a Decoder takes, without making one.
  static size_t workspace_bytes(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops,
                                Exchange& exchange);

 private:
  /// Everything that lives in the workspace. Attention, MLP and logits never run at the same time and share their space.
  struct Stages {
    Stages(Workspace& memory, const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops,
           Exchange& exchange);
    View tables;              ///< [sequences, blocks_per_sequence] int32
    View ids;                 ///< [T] int32
    View samples;             ///< [most sampling rows] int32: the previous forward's, read by token_src
    View residual, h, delta;  ///< [T, H]
    View cos, sin;            ///< [T, rotary / 2]
    std::unique_ptr<AttentionLayer> attention;
    std::unique_ptr<Mlp> mlp;
    std::unique_ptr<Moe> moe;                   ///< or null
    View logit_rows;                            ///< [R, H]
    View part_logits, all_part_logits, logits;  ///< [R, V/tp], [tp, R, V/tp] and [R, V] where tp > 1, float32
    View sampling;                              ///< what sample and log_probs work in
  };

  void update_tables(const StepPlan& plan);
  void copy_blocks(const StepPlan& plan);
  void embed(const StepPlan& plan, int64_t rows);
  void run_layers(const StepPlan& plan, StepResult& result);
  void mlp(int layer, const LayerWeights& w, ConstView h, View out, StepResult& result, bool record);
  void sample(const StepPlan& plan, StepResult& result);
  /// Puts the hidden rows that sampling rows [begin, end) name into logit_rows and their numbers into logit_row_; end is as
  /// far as the logit rows reach.
  struct LogitRows {
    size_t end = 0;
    int64_t rows = 0;
  };
  LogitRows pick_logit_rows(std::span<const SamplingRow> wanted, size_t begin);
  ConstView compute_logits(int64_t rows);

  ModelConfig config_;
  RankGrid grid_;
  const Weights& weights_;
  StepLimits limits_;
  KvRegion& region_;
  Ops& ops_;
  Exchange& exchange_;
  std::vector<double> inv_freq_;
  Buffer memory_;
  std::unique_ptr<Stages> stages_;
  std::vector<CopyRun> copy_runs_;
  std::vector<int32_t> logit_row_;  ///< of each sampling row at work
};

}  // namespace weft
