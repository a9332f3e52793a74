#include "model/moe.h"

#include <algorithm>

#include "layout/even_cut.h"

namespace weft {

Moe::Moe(const ModelConfig& config, int tp, const StepLimits& limits, Ops& ops, Workspace& memory)
    : moe_(config.moe), ops_(ops), piece_(limits.expert_rows) {
  const int64_t k = moe_.routing.top_k, routed = piece_ * k, width = EvenCut{moe_.expert_intermediate, tp}.padded();
  logits_ = memory.take(DType::f32, {piece_, moe_.num_experts});
  experts_ = memory.take(DType::i32, {piece_, k});
  weights_ = memory.take(DType::f32, {piece_, k});
  source_ = memory.take(DType::i32, {routed});
  place_ = memory.take(DType::i32, {routed});
  offsets_ = memory.take(DType::i32, {moe_.num_experts + 1});
  gate_up_ = memory.take(limits.dtype, {routed * 2 * width});
  act_ = memory.take(limits.dtype, {routed * width});
  down_ = memory.take(limits.dtype, {routed, config.hidden});
}

void Moe::forward(const LayerWeights& w, Mlp& shared, ConstView h, View out, const Chosen* chosen) {
  Routing routing = moe_.routing;
  routing.bias = w.choice_bias.empty() ? nullptr : w.choice_bias.data();
  const ExpertRows rows{.source = source_.as<int32_t>(), .place = place_.as<int32_t>(), .offsets = offsets_.as<int32_t>()};
  const int64_t width = w.expert_down.front()->in();
  for (int64_t begin = 0; begin < h.size(0); begin += piece_) {
    const int64_t n = std::min(piece_, h.size(0) - begin), routed = n * routing.top_k;
    const ConstView x = h.rows(begin, n);
    const View y = out.rows(begin, n), logits = logits_.rows(0, n), experts = experts_.rows(0, n),
               weights = weights_.rows(0, n);
    ops_.linear(*w.router, x, nullptr, logits);
    ops_.route(logits, routing, experts, weights);
    if (chosen != nullptr) (*chosen)(experts, weights);
    ops_.group_by_expert(experts, moe_.num_experts, rows);
    const View gate_up(gate_up_.data(), gate_up_.dtype(), {routed, 2 * width}), act(act_.data(), act_.dtype(), {routed, width});
    const View down = down_.rows(0, routed);
    ops_.expert_linear(w.expert_gate_up, x, rows, /*gather=*/true, gate_up);
    ops_.silu_mul(gate_up, act);
    ops_.expert_linear(w.expert_down, act, rows, /*gather=*/false, down);
    if (w.shared_gate_up != nullptr) shared.forward(*w.shared_gate_up, *w.shared_down, nullptr, nullptr, x, y);
    ops_.combine_experts(down, rows, weights, w.shared_gate_up != nullptr ? ConstView(y) : ConstView(), y);
  }
}

}  // namespace weft
