#pragma once

#include "model/attention.h"

namespace weft {

/// Epsilon of the norms on compressed queries and latents: fixed in DeepSeek's models, whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

/// Multi-head latent attention: DeepSeek. The cache holds one row [latent | rotated key part] per token.
///
/// Decode rows, and prefill rows that see their context via queries, are absorbed: queries are taken into the latent space by
/// W_UK, attend latents, and the merged partial comes back by W_UV. Fresh rows and context via keys are up-projected instead:
/// keys and values of the rank's own heads are made from latents, which costs a third of the arithmetic per query and key.
class LatentAttention final : public AttentionLayer {
 public:
  struct Tensors {
    Tensors(Workspace& memory, const ModelConfig& config, const RankGrid& grid, const StepLimits& limits);
    View a;                           ///< [T, q part + latent + rope]
    View q;                           ///< [T, h (nope + rope)] where queries are compressed; else it lies in `a`
    View absorbed, latent;            ///< [piece, h, latent + rope], [piece, h, latent]
    View out, context, wave;          ///< [T, h, v]
    View lse, context_lse, wave_lse;  ///< [T, h]
    View up, keys;                    ///< [max(T, gathered rows), h (nope + v)], [.., h, nope + rope]
    View gathered;                    ///< [gathered rows, latent + rope]
  };
  LatentAttention(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops, Exchange& exchange,
                  Workspace& memory);
  void forward(const AttentionStep& step, const LayerWeights& w, const KvView& kv, ConstView h, View out) override;

 private:
  /// Keys and values of the rank's heads from rows [latent | rope part].
  RowKeys up_project(const LayerWeights& w, ConstView latent, ConstView rope);
  void absorbed(const AttentionStep& step, const LayerWeights& w, const KvView& kv, int64_t begin, int64_t end, ConstView q,
                View out, View lse);
  void gathered_wave(const AttentionStep& step, const LayerWeights& w, const KvView& kv, const ContextWave& wave, ConstView q);

  const ModelConfig& config_;
  const MlaConfig& mla_;
  const RankGrid& grid_;
  Ops& ops_;
  Exchange& exchange_;
  Tensors t_;
  ContextAttention context_;
};

}  // namespace weft
