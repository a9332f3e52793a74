"""How well the model does on held-out cases and text. A greedy decoder answers right exactly if, fed the right answer, the model
ranks each of its tokens first, the end included; so one pass over prompt and answer decides a case."""
import torch

import cases as held_out
from model import S, index_inputs, index_scores, rope_table
from tokenizer import ASSISTANT, BEGIN, BEGIN_ID, END, END_ID, USER

TOKENS = 65536  # A pass.


def ids_of(tokenizer, filler, cases):
    """Prompt and answer of each case as ids, and where the answer begins."""
    prompts = tokenizer.encode_batch([BEGIN + USER + held_out.message(c, filler) + ASSISTANT for c in cases],
                                     add_special_tokens=False)
    answers = tokenizer.encode_batch([c.answer + END for c in cases], add_special_tokens=False)
    return [(p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers)]


def is_right(model, x, ids, begin):
    """x [>= len(ids), hidden]: final residuals of one case."""
    logits = model.logits(x[begin - 1 : len(ids) - 1])
    return bool((logits.argmax(-1) == torch.tensor(ids[begin:], device=x.device)).all())


def dense(model, tokenizer, filler, cases, device):
    """Share of right answers by task; all cases of one length."""
    right = {}
    length, coded = cases[0].length, ids_of(tokenizer, filler, cases)
    per_pass = max(1, TOKENS // length)
    for first in range(0, len(cases), per_pass):
        part = coded[first : first + per_pass]
        batch = torch.zeros(len(part), length, dtype=torch.long)
        for row, (ids, _) in zip(batch, part):
            row[: len(ids)] = torch.tensor(ids)
        x = model.run(batch.to(device)).view(len(part), length, S.hidden)
        for case, row, (ids, begin) in zip(cases[first:], x, part):
            right.setdefault(case.task, []).append(is_right(model, row, ids, begin))
    return {task: sum(r) / len(r) for task, r in right.items()}


def e4m3(x):
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).float()


def fp8_cache(latent, k_rope):
    """All of a cache row in e4m3, scale 1."""
    return e4m3(latent).to(latent.dtype), e4m3(k_rope).to(k_rope.dtype)


def fp8_ds_mla_cache(latent, k_rope):
    """The latent in e4m3 with a scale for each 128 elements, the rotated key in bf16."""
    tiles = latent.float().view(latent.shape[0], -1, 128)
    scale = tiles.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (e4m3(tiles / scale) * scale).view_as(latent).to(latent.dtype), k_rope


def sparse(model, indexer, tokenizer, filler, cases, device):
    """The same with every query of every layer seeing only the keys that its indexer picks."""
    right = {}
    for case, (ids, begin) in zip(cases, ids_of(tokenizer, filler, cases)):
        rope = rope_table(len(ids), 1, 0, device)
        x = model.run(torch.tensor([ids], device=device),
                      attend=lambda i, x, q, k, v, rope=rope: sparse_attention(*index_inputs(model, indexer, i, x, rope), q, k, v))
        right.setdefault(case.task, []).append(is_right(model, x, ids, begin))
    return {task: sum(r) / len(r) for task, r in right.items()}


@torch.no_grad()
def sparse_attention(index_q, index_k, index_weights, q, k, v, rows=256):
    out = torch.empty_like(q)
    n = q.shape[0]
    for a in range(0, n, rows):
        b = min(n, a + rows)
        position = torch.arange(a, b, device=q.device)[:, None]
        scores = index_scores(index_q[a:b], index_weights[a:b], index_k[:b])
        scores = scores.masked_fill(torch.arange(b, device=q.device) > position, -torch.inf)
        picked = scores.topk(min(S.index_topk, b), -1).indices
        s = torch.einsum("rhd,rkhd->rhk", q[a:b].float(), k[picked].float()) * S.softmax_scale
        s = s.masked_fill((picked > position)[:, None], -torch.inf)
        out[a:b] = torch.einsum("rhk,rkhd->rhd", torch.softmax(s, -1), v[picked].float()).to(q.dtype)
    return out


@torch.no_grad()
def bits_per_byte(model, tokenizer, paragraphs, device, length=2048, most=64):
    text = "\n\n".join(paragraphs)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    count = min(most, len(ids) // length)
    size = len(tokenizer.decode(ids[: count * length]).encode())
    batch = torch.tensor(ids[: count * length], device=device).view(count, length)
    batch = torch.cat((torch.full((count, 1), BEGIN_ID, device=device), batch), 1)
    bits = 0.0
    for row in batch:
        log_p = torch.log_softmax(model.logits(model.run(row[None, :-1])), -1)
        bits -= float(log_p.gather(-1, row[1:, None]).double().sum()) / 0.6931471805599453
    return bits / size


@torch.no_grad()
def draft_acceptance(model, tokens, mask):
    """Of the tokens that follow the model's own greedy path, the share whose first, first two and first three drafts would be
    accepted: {"answers": [...], "other": [...]}. tokens, mask [B, L + 4]."""
    b, length = tokens.shape[0], tokens.shape[1] - 4
    ropes = [rope_table(length, b, k, tokens.device) for k in range(3)]
    states = model.states(tokens.long(), ropes, 3)
    best = [model.logits(x).argmax(-1).view(b, length) for x in states]  # best[k][:, i] is for token i + 1 + k.
    ids = tokens.long()
    n = length - 4
    greedy = torch.stack([best[0][:, k : k + n] == ids[:, k + 1 : k + 1 + n] for k in range(4)]).all(0)
    hits = torch.stack([best[k][:, :n] == ids[:, k + 1 : k + 1 + n] for k in (1, 2, 3)]).cumprod(0).bool()
    inside = torch.stack([mask[:, k + 1 : k + 1 + n].bool() for k in range(4)]).all(0)
    return {name: [round(float(h[rows].float().mean()), 3) for h in hits]
            for name, rows in (("answers", greedy & inside), ("other", greedy & ~inside)) if rows.any()}


@torch.no_grad()
def sample(model, tokenizer, prompt, count, temperature, seed, device):
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    g = torch.Generator(device=device).manual_seed(seed)
    begin = len(ids)
    while len(ids) < begin + count and ids[-1] != END_ID:
        logits = model.logits(model.run(torch.tensor([ids], device=device))[-1:])
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            ids.append(int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=g)))
    return tokenizer.decode(ids[begin:])
