"""The model: DeepSeek-V3.2's architecture, tiny, in bf16 with float32 master weights.

Everything but attention works token by token, so it is written as functions of [N, ...] tensors that are compiled once and serve
all layers and all lengths, because a batch always has the same number of tokens N.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    vocab: int = 1024
    hidden: int = 256
    layers: int = 4  # The first is dense; then one more layer for the draft (MTP).
    heads: int = 8
    q_lora: int = 96
    kv_lora: int = 128
    nope: int = 32
    rope: int = 16
    value: int = 32
    dense: int = 512
    experts: int = 8
    chosen: int = 2
    expert: int = 64
    route_scale: float = 2.0
    index_heads: int = 8
    index_dim: int = 64
    index_topk: int = 256
    max_length: int = 32768
    theta: float = 10000.0
    yarn_factor: float = 16.0
    yarn_original: int = 4096
    eps: float = 1e-6

    @property
    def qk(self):
        return self.nope + self.rope

    @property
    def softmax_scale(self):
        return self.qk**-0.5 * (0.1 * math.log(self.yarn_factor) + 1) ** 2

    def rope_frequencies(self):
        """yarn: pairs that turn often within the original length stay, slow ones are stretched, between them a ramp."""
        pair = [self.rope * math.log(self.yarn_original / (turns * 2 * math.pi)) / (2 * math.log(self.theta)) for turns in (32, 1)]
        low, high = max(math.floor(pair[0]), 0), min(math.ceil(pair[1]), self.rope - 1)
        i = torch.arange(self.rope // 2, dtype=torch.float64)
        ramp = ((i - low) / max(high - low, 0.001)).clamp(0, 1)
        return self.theta ** (-2 * i / self.rope) * (1 - ramp + ramp / self.yarn_factor)


S = Shape()
DRAFTS = 3


def initial_parameters(device, seed, embedding_std=1.0, constant=4.0):  # 6 learns slowly, 0 does not learn.
    """Trained parameters by name, float32. MoE layers hold their experts, the shared one last, in one tensor.

    MLA has no biases: nothing constant that a head could turn to look one token back. So every embedding gets the same first
    component; the rotary keys read it with weight 1, the query latents with random weights.
    """
    g = torch.Generator().manual_seed(seed)

    def matrix(rows, cols, *more, std=None):
        return torch.randn(*more, rows, cols, generator=g) * (0.6 * cols**-0.5 if std is None else std)

    p = {"embed": matrix(S.vocab, S.hidden, std=embedding_std), "head": matrix(S.vocab, S.hidden, std=0.01)}
    p["embed"][:, 0] = constant
    for i in range(S.layers + 1):
        b = f"{i}."
        p[b + "input_norm"] = torch.ones(S.hidden)
        p[b + "q_a"] = matrix(S.q_lora, S.hidden)
        p[b + "q_a"][:, 0] = torch.randn(S.q_lora, generator=g) * 0.25
        p[b + "q_a_norm"] = torch.ones(S.q_lora)
        p[b + "q_b"] = matrix(S.heads * S.qk, S.q_lora)
        p[b + "kv_a"] = matrix(S.kv_lora + S.rope, S.hidden)
        p[b + "kv_a"][S.kv_lora :, 0] = 1.0
        p[b + "kv_a_norm"] = torch.ones(S.kv_lora)
        p[b + "kv_b"] = matrix(S.heads * (S.nope + S.value), S.kv_lora)
        p[b + "o"] = torch.zeros(S.hidden, S.heads * S.value)
        p[b + "post_norm"] = torch.ones(S.hidden)
        if i == 0:
            p[b + "gate"], p[b + "up"] = matrix(S.dense, S.hidden), matrix(S.dense, S.hidden)
            p[b + "down"] = torch.zeros(S.hidden, S.dense)
        else:
            p[b + "router"] = matrix(S.experts, S.hidden)
            p[b + "gates"] = matrix(S.expert, S.hidden, S.experts + 1)
            p[b + "ups"] = matrix(S.expert, S.hidden, S.experts + 1)
            p[b + "downs"] = torch.zeros(S.experts + 1, S.expert, S.hidden)  # Transposed.
    p["enorm"], p["hnorm"] = torch.ones(S.hidden), torch.ones(S.hidden)
    p["eh"] = matrix(S.hidden, 2 * S.hidden)
    return {name: t.to(device).requires_grad_() for name, t in p.items()}


def initial_biases(device):
    """What balances the experts: added to their scores for the choice only."""
    return {i: torch.zeros(S.experts, device=device) for i in range(1, S.layers + 1)}


def initial_indexers(device, seed):
    g = torch.Generator().manual_seed(seed)
    p = {}
    for i in range(S.layers + 1):
        p[f"{i}.wq_b"] = torch.randn(S.index_heads * S.index_dim, S.q_lora, generator=g) * S.q_lora**-0.5
        p[f"{i}.wk"] = torch.randn(S.index_dim, S.hidden, generator=g) * S.hidden**-0.5
        p[f"{i}.k_norm"], p[f"{i}.k_norm_bias"] = torch.ones(S.index_dim), torch.zeros(S.index_dim)
        p[f"{i}.weights"] = torch.randn(S.index_heads, S.hidden, generator=g) * S.hidden**-0.5
    return {name: t.to(device).requires_grad_() for name, t in p.items()}


ATTENTION = ("input_norm", "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b")
DENSE = ("o", "post_norm", "gate", "up", "down")
MOE = ("o", "post_norm", "router", "gates", "ups", "downs")


# --- token by token ----------------------------------------------------------------------------------------------------------


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rms(x, weight=None):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + S.eps)
    return (y if weight is None else y * weight).to(x.dtype)


def turn(x, cos, sin):
    """Rotary embedding of pairs (2i, 2i+1) of x [N, heads, rope]; the order within a head is free, q and k agree."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


def before_attention(x, cos, sin, input_norm, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, stored=None):
    """q, k, v [N, heads, nope + rope] of the residual x [N, hidden]; v has zeros behind its values. `stored` says what a cache
    makes of a latent and its rotated key."""
    n = x.shape[0]
    h = rms(x, input_norm)
    q = linear(rms(linear(h, q_a), q_a_norm), q_b).view(n, S.heads, S.qk)
    q = torch.cat((q[..., : S.nope], turn(q[..., S.nope :], cos, sin)), -1)
    kv = linear(h, kv_a)
    latent, k_rope = rms(kv[:, : S.kv_lora], kv_a_norm), turn(kv[:, None, S.kv_lora :], cos, sin)
    if stored:
        latent, k_rope = stored(latent, k_rope)
    kv = linear(latent, kv_b).view(n, S.heads, S.nope + S.value)
    k = torch.cat((kv[..., : S.nope], k_rope.expand(n, S.heads, S.rope)), -1)
    return q, k, F.pad(kv[..., S.nope :], (0, S.qk - S.value))


def add_attention(x, a, o):
    return x + linear(a[..., : S.value].reshape(x.shape[0], -1), o)


def after_dense(x, a, o, post_norm, gate, up, down):
    x = add_attention(x, a, o)
    h = rms(x, post_norm)
    return x + linear(F.silu(linear(h, gate)) * linear(h, up), down)


def after_moe(x, a, bias, o, post_norm, router, gates, ups, downs):
    """The new residual, and how many tokens chose each expert. All experts are computed; those not chosen weigh nothing."""
    x = add_attention(x, a, o)
    h = rms(x, post_norm)
    scores = torch.sigmoid(F.linear(h.float(), router))
    choice = scores.detach() + bias
    best = choice.amax(-1, keepdim=True)
    second = torch.where(choice == best, torch.full_like(choice, -1.0), choice).amax(-1, keepdim=True)
    chosen = choice >= second
    weights = torch.where(chosen, scores, torch.zeros_like(scores))
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * S.route_scale
    weights = torch.cat((weights, torch.ones_like(weights[:, :1])), -1)
    hidden = F.silu(linear(h, gates.flatten(0, 1))) * linear(h, ups.flatten(0, 1))
    hidden = hidden.view(-1, S.experts + 1, S.expert) * weights[..., None].to(x.dtype)
    return x + hidden.flatten(1) @ downs.flatten(0, 1).to(x.dtype), chosen.float().sum(0)


def join_draft(h, e, enorm, hnorm, eh):
    """What a draft layer starts from: the state of a token and the embedding of the next."""
    return linear(torch.cat((rms(e, enorm), rms(h, hnorm)), -1), eh)


def add_own_keys(out, lse, q, keys, values):
    """Attention over keys already seen, `out` and `lse`, joined with a few more keys for each row alone."""
    scores = torch.stack([lse] + [(q * k).float().sum(-1) * S.softmax_scale for k in keys], -1)
    weights = torch.softmax(scores, -1)
    total = out.float() * weights[..., :1]
    for i, v in enumerate(values):
        total = total + v.float() * weights[..., i + 1 : i + 2]
    return total.to(out.dtype)


def token_loss(x, head, target, weight):
    """Sum of weighted cross-entropies. The final norm has no weight: it is frozen at 1, the head takes its part."""
    logits = linear(rms(x), head).float()
    return ((torch.logsumexp(logits, -1) - logits.gather(-1, target[:, None])[:, 0]) * weight).sum()


# --- attention ---------------------------------------------------------------------------------------------------------------


def attention(q, k, v, length):
    """Causal attention within sequences of `length`: out [N, heads, qk] and log-sum-exp [N, heads], which passes no gradient."""
    n = q.shape[0]
    q, k, v = (t.view(n // length, length, S.heads, -1).transpose(1, 2) for t in (q, k, v))
    if q.is_cuda:
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False,
                                                                      scale=S.softmax_scale)[:2]
        lse = lse.reshape(n // length, S.heads, length)
    else:
        scores = (q.float() @ k.float().transpose(-1, -2)) * S.softmax_scale
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        lse = torch.logsumexp(scores, -1)
        out = (torch.softmax(scores, -1) @ v.float()).to(q.dtype)
    return out.transpose(1, 2).reshape(n, S.heads, -1), lse.detach().transpose(1, 2).reshape(n, S.heads)


# --- the whole model ---------------------------------------------------------------------------------------------------------


class Model:
    """Parameters and the two ways to run them: `losses` to train, `run` to look inside."""

    def __init__(self, parameters, biases, compiled):
        self.p, self.biases = parameters, biases
        functions = (before_attention, after_dense, after_moe, join_draft, add_own_keys, token_loss)
        if compiled:
            functions = tuple(torch.compile(f, dynamic=False) for f in functions)
        (self.before, self.dense, self.moe, self.join, self.own_keys, self.token_loss) = functions
        self.counts = {}

    def weights(self, i, names):
        return [self.p[f"{i}.{n}"] for n in names]

    def mlp(self, i, x, a):
        if i == 0:
            return self.dense(x, a, *self.weights(0, DENSE))
        x, counts = self.moe(x, a, self.biases[i], *self.weights(i, MOE))
        self.counts[i] = self.counts.get(i, 0) + counts.detach()
        return x

    def embed(self, ids):
        return F.embedding(ids, self.p["embed"]).bfloat16()

    def states(self, ids, ropes, drafts):
        """Final residuals [N, hidden] of the model and of `drafts` chained drafts. ids [B, L + 4]; ropes[k] is rope_table's for
        shift k. The k-th draft of row i starts from the state before it and token i + k, and stands at position i + k - 1. It
        sees what an engine's cache holds then: the keys of first drafts up to row i, and those of this chain."""
        length = ids.shape[1] - 4
        n = ids.shape[0] * length
        x = self.embed(ids[:, :length].reshape(n))
        for i in range(S.layers):
            q, k, v = self.before(x, *ropes[0], *self.weights(i, ATTENTION))
            x = self.mlp(i, x, attention(q, k, v, length)[0])
        out = [x]
        i, keys, values = S.layers, [], []
        for step in range(drafts):
            token = self.embed(ids[:, step + 1 : step + 1 + length].reshape(n))
            x = self.join(rms(x), token, self.p["enorm"], self.p["hnorm"], self.p["eh"])
            q, k, v = self.before(x, *ropes[step], *self.weights(i, ATTENTION))
            if step == 0:
                first_k, first_v = k, v
                a, _ = attention(q, k, v, length)
            else:
                keys, values = [*keys, k], [*values, v]
                a = self.own_keys(*attention(q, first_k, first_v, length), q, keys, values)
            x = self.mlp(i, x, a)
            out.append(x)
        return out

    def losses(self, tokens, mask, ropes, drafts):
        """Their losses: mean cross-entropy, plus that of the answers' tokens alone. tokens, mask [B, L + 4]."""
        self.counts = {}
        length = tokens.shape[1] - 4
        ids, mask, n = tokens.long(), mask.float(), tokens.shape[0] * length
        out = []
        for k, x in enumerate(self.states(ids, ropes, drafts)):
            target = ids[:, k + 1 : k + 1 + length].reshape(n)
            answers = mask[:, k + 1 : k + 1 + length].reshape(n)
            out.append(self.token_loss(x, self.p["head"], target, 1 / n + answers / answers.sum().clamp(min=1)))
        return out

    @torch.no_grad()
    def run(self, ids, see=None, attend=None, draft_ids=None):
        """Final residuals [N, hidden] of ids [B, L].

        see(i, x, q, k)           is shown every layer's input and its queries and keys
        attend(i, x, q, k, v)     replaces causal attention
        draft_ids [B, L]          the next tokens: then the draft layer runs too, and its residuals are returned second
        """
        b, length = ids.shape
        rope = rope_table(length, b, 0, ids.device)
        x = self.embed(ids.reshape(-1))
        main = None
        for i in range(S.layers + (draft_ids is not None)):
            if i == S.layers:
                main = x
                x = self.join(rms(x), self.embed(draft_ids.reshape(-1)), self.p["enorm"], self.p["hnorm"], self.p["eh"])
            q, k, v = self.before(x, *rope, *self.weights(i, ATTENTION))
            if see:
                see(i, x, q, k)
            a = attend(i, x, q, k, v) if attend else attention(q, k, v, length)[0]
            if i == 0:
                x = self.dense(x, a, *self.weights(0, DENSE))
            else:
                x, _ = self.moe(x, a, self.biases[i], *self.weights(i, MOE))
        return x if main is None else (main, x)

    @torch.no_grad()
    def logits(self, x):
        return linear(rms(x), self.p["head"]).float()


_ropes = {}


def rope_table(length, rows, shift, device):
    """cos, sin [rows * length, rope / 2] of positions shift .. shift + length - 1, for each row."""
    key = (length, rows, shift)
    if key not in _ropes:
        angle = (torch.arange(shift, shift + length, dtype=torch.float64)[:, None] * S.rope_frequencies()).repeat(rows, 1)
        _ropes[key] = (angle.cos().float().to(device), angle.sin().float().to(device))
    return _ropes[key]


# --- the indexer -------------------------------------------------------------------------------------------------------------


def index_inputs(model, indexer, i, x, rope):
    """Index queries [N, heads, dim], keys [N, dim] and head weights [N, heads] of a layer's input x, float32."""
    with torch.no_grad():
        norm, q_a, q_a_norm = model.weights(i, ("input_norm", "q_a", "q_a_norm"))
        h = rms(x, norm)
        latent = rms(linear(h, q_a), q_a_norm).float()
        h = h.float()
    cos, sin = rope
    r = S.rope
    half = r // 2

    def turn_halves(t):  # The indexer rotates pairs (i, i + rope / 2).
        a, b, c, s = t[..., :half], t[..., half:r], cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, a * s + b * c, t[..., r:]), -1)

    q = turn_halves(F.linear(latent, indexer[f"{i}.wq_b"]).view(-1, S.index_heads, S.index_dim))
    k = F.layer_norm(F.linear(h, indexer[f"{i}.wk"]), (S.index_dim,), indexer[f"{i}.k_norm"], indexer[f"{i}.k_norm_bias"], 1e-6)
    return q, turn_halves(k[:, None])[:, 0], F.linear(h, indexer[f"{i}.weights"]) * S.index_heads**-0.5


def index_scores(q, weights, k):
    """[..., rows, keys]: q [..., rows, heads, dim], weights [..., rows, heads], k [..., keys, dim]."""
    s = torch.relu(torch.einsum("...rhd,...kd->...rhk", q, k) * S.index_dim**-0.5)
    return torch.einsum("...rhk,...rh->...rk", s, weights)
