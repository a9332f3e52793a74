"""Writes the trained model as a Hugging Face folder."""
import json
import os
import struct

import torch

import tokenizer as tok
from model import S

DENSE_NAMES = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
BLOCK_NAMES = {
    "input_norm": "input_layernorm", "post_norm": "post_attention_layernorm", "q_a": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_layernorm", "q_b": "self_attn.q_b_proj", "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm", "kv_b": "self_attn.kv_b_proj", "o": "self_attn.o_proj", "router": "mlp.gate",
    **DENSE_NAMES,
}
INDEXER_NAMES = {"wq_b": "wq_b.weight", "wk": "wk.weight", "k_norm": "k_norm.weight", "k_norm_bias": "k_norm.bias",
                 "weights": "weights_proj.weight"}


def round_to_bf16(tensors):
    """In place: from here on everything is judged as it will be stored."""
    with torch.no_grad():
        for t in tensors.values():
            t.copy_(t.bfloat16().float())


def named_tensors(p, biases, indexer):
    """The checkpoint's tensors by name. The draft layer holds copies of the embedding and the head, as DeepSeek-V3's does."""
    ones = torch.ones(S.hidden)
    out = {"model.embed_tokens.weight": p["embed"], "model.norm.weight": ones, "lm_head.weight": p["head"]}
    draft = f"model.layers.{S.layers}."
    out.update({draft + "embed_tokens.weight": p["embed"], draft + "shared_head.norm.weight": ones,
                draft + "shared_head.head.weight": p["head"], draft + "enorm.weight": p["enorm"],
                draft + "hnorm.weight": p["hnorm"], draft + "eh_proj.weight": p["eh"]})
    for key, t in p.items():
        layer, _, name = key.partition(".")
        prefix = f"model.layers.{layer}."
        if name in BLOCK_NAMES:
            out[f"{prefix}{BLOCK_NAMES[name]}.weight"] = t
        elif name:
            part = {"gates": "gate_proj", "ups": "up_proj", "downs": "down_proj"}[name]
            for e in range(S.experts + 1):
                owner = "shared_experts" if e == S.experts else f"experts.{e}"
                out[f"{prefix}mlp.{owner}.{part}.weight"] = t[e].T if name == "downs" else t[e]
    for layer, bias in biases.items():
        out[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = bias
    for key, t in indexer.items():
        layer, _, name = key.partition(".")
        out[f"model.layers.{layer}.self_attn.indexer.{INDEXER_NAMES[name]}"] = t
    return out


def write_safetensors(path, tensors):
    """bf16, but for the routers' biases, which are float32."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors, key=lambda n: (not n.endswith("_bias"), n)):  # float32 first, so that all lie aligned.
        t = tensors[name].detach().cpu()
        full = name.endswith("e_score_correction_bias")
        blob = t.float().contiguous().numpy().tobytes() if full else t.bfloat16().contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "F32" if full else "BF16", "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def config():
    return {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "torch_dtype": "bfloat16",
        "vocab_size": S.vocab,
        "hidden_size": S.hidden,
        "intermediate_size": S.dense,
        "moe_intermediate_size": S.expert,
        "num_hidden_layers": S.layers,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": S.heads,
        "num_key_value_heads": S.heads,
        "q_lora_rank": S.q_lora,
        "kv_lora_rank": S.kv_lora,
        "qk_nope_head_dim": S.nope,
        "qk_rope_head_dim": S.rope,
        "v_head_dim": S.value,
        "n_routed_experts": S.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": S.chosen,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": S.route_scale,
        "index_n_heads": S.index_heads,
        "index_head_dim": S.index_dim,
        "index_topk": S.index_topk,
        "hidden_act": "silu",
        "rms_norm_eps": S.eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": tok.BEGIN_ID,
        "eos_token_id": tok.END_ID,
        "max_position_embeddings": S.max_length,
        "rope_theta": S.theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": S.yarn_factor,
            "original_max_position_embeddings": S.yarn_original,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }


def write_folder(folder, tokenizer, p, biases, indexer):
    os.makedirs(folder, exist_ok=True)
    write_safetensors(f"{folder}/model.safetensors", named_tensors(p, biases, indexer))
    tok.write_json(f"{folder}/config.json", config())
    tok.write_json(f"{folder}/tokenizer_config.json", tok.config(S.max_length))
    tok.write_json(f"{folder}/generation_config.json", {"bos_token_id": tok.BEGIN_ID, "eos_token_id": tok.END_ID,
                                                        "do_sample": False})
    tokenizer.save(f"{folder}/tokenizer.json", pretty=False)
