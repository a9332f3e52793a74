#pragma once

#include "model/step_limits.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace weft {

/// The widest dense MLP slice of a rank: the dense layers' or the shared experts'.
int64_t rank_intermediate(const ModelConfig& config, int tp);

/// Gated MLP of a rank: h [T, H] -> its part of the sum over the tensor-parallel ranks [T, H].
class Mlp {
 public:
  Mlp(const ModelConfig& config, int tp, const StepLimits& limits, Ops& ops, Workspace& memory);
  void forward(const Matrix& gate_up, const Matrix& down, const float* gate_up_bias, const float* down_bias, ConstView h,
               View out);

 private:
  Ops& ops_;
  View gate_up_, act_;  ///< [T, 2 I], [T, I], as flat storage: I differs between layers
};

}  // namespace weft
