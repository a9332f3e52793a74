// The models of the comparison: a config.json for Weft, and from it the tensors in both programs' names.
//
// qwen3-0.6b and mla-mid are what is timed. The tiny ones have the same wiring, are stored in float32, and prove that both
// programs compute the same model.

function qwen3({ layers, hidden, heads, kvHeads, mlp, vocab, dtype }) {
  return {
    architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3', torch_dtype: dtype, hidden_act: 'silu', attention_bias: false,
    attention_dropout: 0, initializer_range: 0.02, use_cache: true, tie_word_embeddings: true, rms_norm_eps: 1e-6,
    bos_token_id: 0, eos_token_id: 1, max_position_embeddings: 40960, rope_theta: 1000000, rope_scaling: null,
    use_sliding_window: false, sliding_window: null, max_window_layers: layers, vocab_size: vocab, hidden_size: hidden,
    intermediate_size: mlp, num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kvHeads, head_dim: 128,
  };
}

function mla({ layers, hidden, heads, latent, rope, head, mlp, denseMlp, experts, chosen, shared, vocab, originalContext, dtype }) {
  return {
    architectures: ['DeepseekV2ForCausalLM'], model_type: 'deepseek_v2', torch_dtype: dtype, hidden_act: 'silu',
    attention_bias: false, attention_dropout: 0, initializer_range: 0.02, use_cache: true, tie_word_embeddings: false,
    rms_norm_eps: 1e-6, bos_token_id: 0, eos_token_id: 1, max_position_embeddings: 40 * originalContext, rope_theta: 10000,
    moe_layer_freq: 1, norm_topk_prob: false, scoring_func: 'softmax', topk_method: 'greedy', n_group: 1, topk_group: 1,
    q_lora_rank: null, pretraining_tp: 1, vocab_size: vocab, hidden_size: hidden, intermediate_size: denseMlp,
    num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: heads, kv_lora_rank: latent,
    qk_nope_head_dim: head, qk_rope_head_dim: rope, v_head_dim: head, n_routed_experts: experts, num_experts_per_tok: chosen,
    moe_intermediate_size: mlp, n_shared_experts: shared, first_k_dense_replace: 1, routed_scaling_factor: 1,
    rope_scaling: {
      type: 'yarn', factor: 40, original_max_position_embeddings: originalContext, beta_fast: 32, beta_slow: 1,
      mscale: 0.707, mscale_all_dim: 0.707,
    },
  };
}

export const MODELS = {
  'qwen3-0.6b': qwen3({ layers: 28, hidden: 1024, heads: 16, kvHeads: 8, mlp: 3072, vocab: 151936, dtype: 'bfloat16' }),
  'mla-mid': mla({
    layers: 12, hidden: 1024, heads: 16, latent: 512, rope: 64, head: 128, mlp: 512, denseMlp: 2816, experts: 16, chosen: 4,
    shared: 2, vocab: 32000, originalContext: 4096, dtype: 'bfloat16',
  }),
  'qwen3-tiny': qwen3({ layers: 3, hidden: 128, heads: 4, kvHeads: 2, mlp: 384, vocab: 512, dtype: 'float32' }),
  'mla-tiny': mla({
    layers: 3, hidden: 128, heads: 4, latent: 64, rope: 32, head: 64, mlp: 64, denseMlp: 192, experts: 8, chosen: 3, shared: 2,
    vocab: 512, originalContext: 64, dtype: 'float32',
  }),
};

/// Token `position` of prompt `sequence`: any fixed sequence of ids that both programs can compute, never 0 or 1.
/// bench/step_bench.cc has the same function.
export function token(sequence, position, vocab) {
  let x = (Math.imul(sequence + 1, 0x9e3779b1) + Math.imul(position + 1, 0x85ebca77)) >>> 0;
  x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d) >>> 0;
  x = (x ^ (x >>> 12)) >>> 0;
  return 2 + (x % (vocab - 2));
}

/// Bytes that one decode step has to read at least: every weight that some row needs, once, and the keys and values of each
/// sequence. The experts that `sequences` rows choose together are counted at their expectation for independent choices.
export function stepBytes(c, sequences, context) {
  const h = c.hidden_size, layers = c.num_hidden_layers, heads = c.num_attention_heads;
  const head = h * c.vocab_size;
  if (c.model_type === 'qwen3') {
    const q = heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
    const weights = layers * (h * (q + 2 * kv) + q * h + 3 * h * c.intermediate_size) + head;
    return 2 * (weights + sequences * context * layers * 2 * kv);
  }
  const latentRow = c.kv_lora_rank + c.qk_rope_head_dim;
  const attention = h * heads * (c.qk_nope_head_dim + c.qk_rope_head_dim) + h * latentRow +
    c.kv_lora_rank * heads * (c.qk_nope_head_dim + c.v_head_dim) + heads * c.v_head_dim * h;
  const sparse = layers - c.first_k_dense_replace;
  const touched = c.n_routed_experts * (1 - (1 - c.num_experts_per_tok / c.n_routed_experts) ** sequences);
  const expert = 3 * h * c.moe_intermediate_size;
  const weights = layers * attention + c.first_k_dense_replace * 3 * h * c.intermediate_size +
    sparse * ((touched + c.n_shared_experts) * expert + h * c.n_routed_experts) + head;
  return 2 * (weights + sequences * context * layers * latentRow);
}

const MATRIX = 0, NORM = 1;

/// The checkpoint's tensors as { name, shape, kind, gain, to }: `to` says where the values go in the GGUF file, as a list of
/// { tensor, at, shape, transpose? } whose `at` counts elements from the tensor's start.
export function tensorsOf(c) {
  const out = [];
  const h = c.hidden_size, v = c.vocab_size;
  const add = (name, shape, kind, gain, to) => out.push({ name, shape, kind, gain, to });
  const matrix = (name, rows, cols, gguf, gain = 1) => add(name, [rows, cols], MATRIX, gain / Math.sqrt(cols), [{ tensor: gguf, rows, cols }]);
  const norm = (name, n, gguf) => add(name, [n], NORM, 0.1, [{ tensor: gguf, rows: 1, cols: n }]);
  const mlp = (prefix, gguf, suffix, width) => {
    matrix(`${prefix}.gate_proj.weight`, width, h, `${gguf}.ffn_gate${suffix}.weight`);
    matrix(`${prefix}.up_proj.weight`, width, h, `${gguf}.ffn_up${suffix}.weight`);
    matrix(`${prefix}.down_proj.weight`, h, width, `${gguf}.ffn_down${suffix}.weight`);
  };

  // Rows of length sqrt(3): logits spread by about 1.7 to 3, so that greedy choices and softmaxes are lively.
  matrix('model.embed_tokens.weight', v, h, 'token_embd.weight', 3);
  for (let i = 0; i < c.num_hidden_layers; ++i) {
    const p = `model.layers.${i}`, g = `blk.${i}`;
    norm(`${p}.input_layernorm.weight`, h, `${g}.attn_norm.weight`);
    if (c.model_type === 'qwen3') {
      const q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
      matrix(`${p}.self_attn.q_proj.weight`, q, h, `${g}.attn_q.weight`);
      matrix(`${p}.self_attn.k_proj.weight`, kv, h, `${g}.attn_k.weight`);
      matrix(`${p}.self_attn.v_proj.weight`, kv, h, `${g}.attn_v.weight`);
      matrix(`${p}.self_attn.o_proj.weight`, h, q, `${g}.attn_output.weight`);
      norm(`${p}.self_attn.q_norm.weight`, c.head_dim, `${g}.attn_q_norm.weight`);
      norm(`${p}.self_attn.k_norm.weight`, c.head_dim, `${g}.attn_k_norm.weight`);
    } else {
      const heads = c.num_attention_heads, nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, value = c.v_head_dim;
      const latent = c.kv_lora_rank;
      matrix(`${p}.self_attn.q_proj.weight`, heads * (nope + rope), h, `${g}.attn_q.weight`);
      matrix(`${p}.self_attn.kv_a_proj_with_mqa.weight`, latent + rope, h, `${g}.attn_kv_a_mqa.weight`);
      norm(`${p}.self_attn.kv_a_layernorm.weight`, latent, `${g}.attn_kv_a_norm.weight`);
      // kv_b holds for each head its key rows, then its value rows. The GGUF has the two apart, keys transposed.
      const parts = [];
      for (let head = 0; head < heads; ++head) {
        parts.push({ tensor: `${g}.attn_k_b.weight`, at: head * latent * nope, rows: nope, cols: latent, transpose: true });
        parts.push({ tensor: `${g}.attn_v_b.weight`, at: head * value * latent, rows: value, cols: latent });
      }
      add(`${p}.self_attn.kv_b_proj.weight`, [heads * (nope + value), latent], MATRIX, 1 / Math.sqrt(latent), parts);
      matrix(`${p}.self_attn.o_proj.weight`, h, heads * value, `${g}.attn_output.weight`);
    }
    norm(`${p}.post_attention_layernorm.weight`, h, `${g}.ffn_norm.weight`);
    if (c.model_type === 'qwen3' || i < c.first_k_dense_replace) {
      mlp(`${p}.mlp`, g, '', c.intermediate_size);
      continue;
    }
    matrix(`${p}.mlp.gate.weight`, c.n_routed_experts, h, `${g}.ffn_gate_inp.weight`, 2);
    const wide = c.moe_intermediate_size;
    for (let e = 0; e < c.n_routed_experts; ++e) {
      const at = e * wide * h, expert = `${p}.mlp.experts.${e}`;
      const place = (what, rows, cols) => add(`${expert}.${what}_proj.weight`, [rows, cols], MATRIX, 1 / Math.sqrt(cols),
        [{ tensor: `${g}.ffn_${what}_exps.weight`, at, rows, cols }]);
      place('gate', wide, h);
      place('up', wide, h);
      place('down', h, wide);
    }
    mlp(`${p}.mlp.shared_experts`, g, '_shexp', c.n_shared_experts * wide);
  }
  norm('model.norm.weight', h, 'output_norm.weight');
  if (!c.tie_word_embeddings) matrix('lm_head.weight', v, h, 'output.weight', 3);
  return out;
}

/// Tensors of the GGUF file in file order: { name, dims } with the fastest dimension first, and whether it stays float32.
export function ggufTensorsOf(c) {
  const dims = new Map();
  const heads = c.num_attention_heads, latent = c.kv_lora_rank, h = c.hidden_size, wide = c.moe_intermediate_size;
  for (const { shape, to } of tensorsOf(c)) {
    for (const { tensor } of to) {
      if (dims.has(tensor)) continue;
      if (tensor.includes('attn_k_b')) dims.set(tensor, [c.qk_nope_head_dim, latent, heads]);
      else if (tensor.includes('attn_v_b')) dims.set(tensor, [latent, c.v_head_dim, heads]);
      else if (tensor.includes('down_exps')) dims.set(tensor, [wide, h, c.n_routed_experts]);
      else if (tensor.includes('_exps')) dims.set(tensor, [h, wide, c.n_routed_experts]);
      else dims.set(tensor, [...shape].reverse());
    }
  }
  // llama.cpp's own converter keeps norms and routers in float32 too.
  return [...dims].map(([name, d]) => ({ name, dims: d, f32: d.length === 1 || name.includes('ffn_gate_inp') }));
}

/// GGUF metadata as [key, type, value].
export function ggufMetadataOf(c) {
  const arch = c.model_type === 'qwen3' ? 'qwen3' : 'deepseek2';
  const meta = [
    ['general.architecture', 'string', arch],
    ['general.file_type', 'u32', c.torch_dtype === 'float32' ? 0 : 32],
    ['tokenizer.ggml.model', 'string', 'none'],
  ];
  const put = (key, type, value) => meta.push([`${arch}.${key}`, type, value]);
  put('vocab_size', 'u32', c.vocab_size);
  put('context_length', 'u32', c.max_position_embeddings);
  put('embedding_length', 'u32', c.hidden_size);
  put('block_count', 'u32', c.num_hidden_layers);
  put('feed_forward_length', 'u32', c.intermediate_size);
  put('attention.head_count', 'u32', c.num_attention_heads);
  put('attention.layer_norm_rms_epsilon', 'f32', c.rms_norm_eps);
  put('rope.freq_base', 'f32', c.rope_theta);
  if (arch === 'qwen3') {
    put('attention.head_count_kv', 'u32', c.num_key_value_heads);
    put('attention.key_length', 'u32', c.head_dim);
    put('attention.value_length', 'u32', c.head_dim);
    return meta;
  }
  const yarn = c.rope_scaling;
  put('attention.head_count_kv', 'u32', 1);  // the absorbed form: one latent row is key and value of all heads
  put('attention.q_lora_rank', 'u32', 0);
  put('attention.kv_lora_rank', 'u32', c.kv_lora_rank);
  put('attention.key_length', 'u32', c.kv_lora_rank + c.qk_rope_head_dim);
  put('attention.value_length', 'u32', c.kv_lora_rank);
  put('attention.key_length_mla', 'u32', c.qk_nope_head_dim + c.qk_rope_head_dim);
  put('attention.value_length_mla', 'u32', c.v_head_dim);
  put('rope.dimension_count', 'u32', c.qk_rope_head_dim);
  put('rope.scaling.type', 'string', 'yarn');
  put('rope.scaling.factor', 'f32', yarn.factor);
  put('rope.scaling.original_context_length', 'u32', yarn.original_max_position_embeddings);
  put('rope.scaling.yarn_log_multiplier', 'f32', 0.1 * yarn.mscale_all_dim);
  put('leading_dense_block_count', 'u32', c.first_k_dense_replace);
  put('expert_count', 'u32', c.n_routed_experts);
  put('expert_used_count', 'u32', c.num_experts_per_tok);
  put('expert_shared_count', 'u32', c.n_shared_experts);
  put('expert_feed_forward_length', 'u32', c.moe_intermediate_size);
  put('expert_weights_scale', 'f32', c.routed_scaling_factor);
  put('expert_weights_norm', 'bool', c.norm_topk_prob);
  put('expert_gating_func', 'u32', 1);  // softmax
  return meta;
}
