#include "model/mlp.h"

#include <algorithm>

#include "layout/even_cut.h"

namespace weft {

int64_t rank_intermediate(const ModelConfig& config, int tp) {
  const int64_t widest = std::max(config.intermediate, config.moe.num_experts > 0 ? config.moe.shared_intermediate : 0);
  return EvenCut{widest, tp}.padded();
}

Mlp::Mlp(const ModelConfig& config, int tp, const StepLimits& limits, Ops& ops, Workspace& memory) : ops_(ops) {
  const int64_t width = rank_intermediate(config, tp);
  gate_up_ = memory.take(limits.dtype, {limits.rows * 2 * width});
  act_ = memory.take(limits.dtype, {limits.rows * width});
}

void Mlp::forward(const Matrix& gate_up, const Matrix& down, const float* gate_up_bias, const float* down_bias, ConstView h,
                  View out) {
  const int64_t rows = h.size(0), width = down.in();
  const View both(gate_up_.data(), gate_up_.dtype(), {rows, 2 * width}), act(act_.data(), act_.dtype(), {rows, width});
  ops_.linear(gate_up, h, gate_up_bias, both);
  ops_.silu_mul(both, act);
  ops_.linear(down, act, down_bias, out);
}

}  // namespace weft
