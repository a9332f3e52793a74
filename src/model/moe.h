#pragma once

#include "model/mlp.h"

namespace weft {

/// Mixture of experts of a rank: every rank holds a slice of every expert's rows, so routing is the same everywhere and the sum
/// over the tensor-parallel ranks completes both routed and shared experts.
class Moe {
 public:
  Moe(const ModelConfig& config, int tp, const StepLimits& limits, Ops& ops, Workspace& memory);
  /// h [T, H] -> this rank's part [T, H]. `chosen`, if not null, is called with the experts [t, k] int32 and weights [t, k]
  /// float32 of each piece of rows.
  using Chosen = std::function<void(ConstView experts, ConstView weights)>;
  void forward(const LayerWeights& w, Mlp& shared, ConstView h, View out, const Chosen* chosen);

 private:
  const MoeConfig& moe_;
  Ops& ops_;
  int64_t piece_;
  View logits_, experts_, weights_;  ///< [piece, E] f32, [piece, k] i32, [piece, k] f32
  View source_, place_, offsets_;    ///< i32, see ExpertRows
  View gate_up_, act_, down_;        ///< [piece * k, 2 I], [piece * k, I], [piece * k, H]
};

}  // namespace weft
