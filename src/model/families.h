#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace weft {

/// What a checkpoint tensor becomes. Several tensors may fill one of these, one behind the other (q, k, v; gate, up).
enum class Param : uint8_t {
  embedding,
  head,
  final_norm,
  input_norm,
  post_norm,
  q_norm,
  k_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  o,
  o_bias,
  q_a,
  q_a_norm,
  q_b,
  kv_a,
  kv_a_norm,
  kv_b,
  gate,
  up,
  down,
  gate_bias,
  up_bias,
  down_bias,
  router,
  choice_bias,
  expert_gate,
  expert_up,
  expert_down,
  shared_gate,
  shared_up,
  shared_down,
};

/// Which part of a tensor a rank takes.
enum class Cut : uint8_t {
  whole,
  q_head_rows,   ///< rows of the rank's query heads; `unit` rows a head
  kv_head_rows,  ///< rows of the rank's KV heads; `unit` rows a head
  q_head_cols,   ///< columns of the rank's query heads; `unit` columns a head
  even_rows,     ///< rows cut evenly over tp, the first ranks taking one more
  even_cols,     ///< columns likewise
  first_rank,    ///< whole on tp rank 0, absent elsewhere: a bias added once, before a sum over ranks
};

/// One tensor that a checkpoint of this config must hold.
struct ParamSpec {
  std::string name;  ///< in the checkpoint
  Param param = Param::embedding;
  int layer = -1, expert = -1;  ///< -1 where there is none
  std::vector<int64_t> shape;   ///< [n] or [out, in]
  Cut cut = Cut::whole;
  int64_t unit = 1;
  bool scaled = false;  ///< may be float8_e4m3 with NAME_scale_inv [ceil(out/128), ceil(in/128)] beside it
};

/// Every parameter of the model, in file order of a released checkpoint. A new family is a new table in families.cc.
std::vector<ParamSpec> parameters(const ModelConfig& config);

/// Names under which a checkpoint may hold the scales of a layer's fp8 keys and values; latent rows have one, under either
/// list. All names of a list mean the same; `both` are for keys and values at once.
struct KvScaleNames {
  std::vector<std::string> k, v, both;
};
KvScaleNames kv_scale_names(int layer);

/// True for tensors that released checkpoints of this family carry and Weft does not need: MTP layers while drafts are off,
/// rotary buffers, a stored head of a model with tied embeddings, layers cut off by --num-layers, fp8 scales of queries and
/// attention weights (which stay in the compute dtype).
bool is_known_extra(const ModelConfig& config, const std::string& name);

}  // namespace weft
