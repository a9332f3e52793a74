#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "layout/kv_view.h"
#include "layout/rank_grid.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/ops.h"

namespace weft {

using MatrixPtr = std::unique_ptr<Matrix>;
using MatrixList = std::vector<MatrixPtr>;

/// Weights of one decoder layer on one rank. Norms, biases and the choice bias are float32; what a model lacks is empty.
/// Sizes: H hidden, D head_dim, h and g the rank's query and KV heads, I the rank's share of the MLP rows, E experts.
struct LayerWeights {
  std::vector<float> input_norm, post_norm;  ///< [H]

  // Grouped-query attention.
  MatrixPtr qkv;                      ///< [(h + 2g) D, H]: queries, keys, values
  std::vector<float> qkv_bias;        ///< [(h + 2g) D]
  std::vector<float> q_norm, k_norm;  ///< [D]

  // Latent attention. `a` is [q_lora + latent + rope, H] where queries are compressed, else [h (nope + rope) + latent + rope,
  // H].
  MatrixPtr a;
  MatrixPtr q_b;                           ///< [h (nope + rope), q_lora], or none
  std::vector<float> q_a_norm, kv_a_norm;  ///< [q_lora], [latent]
  MatrixList w_uk;                         ///< a head: [latent, nope], absorbs a query
  MatrixList w_uv;                         ///< a head: [v, latent], projects a latent partial
  MatrixPtr kv_b;                          ///< [h (nope + v), latent], up-projects keys and values

  KvScales kv_scales;  ///< of an fp8 cache; the same for latent rows

  MatrixPtr o;                ///< [H, h D] or [H, h v]
  std::vector<float> o_bias;  ///< [H] on tp rank 0, else empty

  // Dense MLP.
  MatrixPtr gate_up;  ///< [2 I, H]
  MatrixPtr down;     ///< [H, I]
  std::vector<float> gate_up_bias, down_bias;

  // Mixture of experts.
  MatrixPtr router;                        ///< [E, H], whole
  std::vector<float> choice_bias;          ///< [E]
  MatrixList expert_gate_up, expert_down;  ///< E of [2 I, H] and [H, I]
  MatrixPtr shared_gate_up, shared_down;   ///< shared experts as one MLP, or none
};

/// Weights of layers [first_layer, last_layer) on one rank, and of the ends of the model: embedding, last norm and head are
/// there whatever the layers, so that any stage can be the first or the last.
struct Weights {
  Buffer embedding;               ///< [vocab part, H] compute dtype, rows of this rank
  MatrixPtr head;                 ///< [vocab part, H]; the embedding's rows once more where the model ties them
  std::vector<float> final_norm;  ///< [H]
  int first_layer = 0;
  std::vector<LayerWeights> layers;  ///< layers[i] is layer first_layer + i
};

struct LoadOptions {
  DType dtype = DType::bf16;  ///< compute dtype: float32 or bfloat16
  int tp_rank = 0;
  int first_layer = 0, last_layer = -1;  ///< -1: config.layers
  bool progress = false;                 ///< a log line every few seconds on long loads
  /// With `progress`: called now and then on the loading thread with the share of this rank's bytes that are there, 0 to 1.
  std::function<void(double share)> on_progress = {};
};

/// Fills every parameter exactly once with the slice this rank needs. fp8 elements times the scale of the tile they lie in,
/// then rounded once to the compute dtype. Throws UserError naming every missing, mis-shaped or unknown tensor (the first few,
/// and how many), and every scale of fp8 keys or values that is not a positive number; known extras are skipped with one log
/// line on tp rank 0 that counts them.
Weights load_weights(const ModelConfig& config, const RankGrid& grid, const Checkpoint& checkpoint, const LoadOptions& options,
                     Ops& ops);

/// --load-format dummy: seeded random weights. The value of an element depends on seed, tensor name and global index only, so
/// every tp gives the same model.
Weights dummy_weights(const ModelConfig& config, const RankGrid& grid, uint64_t seed, const LoadOptions& options, Ops& ops);

/// Bytes that load_weights takes on this rank, without a checkpoint.
size_t weight_bytes(const ModelConfig& config, const RankGrid& grid, const LoadOptions& options, const Ops& ops);

}  // namespace weft
