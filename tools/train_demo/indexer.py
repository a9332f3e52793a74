"""Fits the indexers of a finished, frozen model: of each query the index scores, as a softmax, come close to the attention
averaged over heads. No sparse training is needed afterwards."""
import numpy as np
import torch

from model import S, index_inputs, index_scores, rope_table

RATE = 0.003
QUERIES = 256  # Of each sequence, half of them at answers.


def pick_queries(mask, length, rng):
    """Positions [B, QUERIES] whose next token is an answer for the first half, as far as there are any; the rest anywhere."""
    count = min(QUERIES, length)
    rows = []
    for row in mask[:, 1 : length + 1]:
        answers = np.flatnonzero(row)
        answers = rng.permutation(answers)[: count // 2]
        rows.append(np.concatenate((answers, rng.integers(0, length, count - len(answers)))))
    return np.stack(rows)


def divergence(model, indexer, i, x, q, k, queries):
    """Mean KL of a layer, and how much attention the picked keys hold."""
    b, length = queries.shape[0], x.shape[0] // queries.shape[0]
    with torch.no_grad():
        q, k = q.view(b, length, S.heads, -1), k.view(b, length, S.heads, -1)
        picked = q.gather(1, queries[..., None, None].expand(-1, -1, S.heads, S.qk))
        later = torch.arange(length, device=x.device) > queries[..., None]
        p = torch.zeros_like(later, dtype=torch.float32)
        for head in range(S.heads):
            s = (picked[:, :, head] @ k[:, :, head].transpose(1, 2)).float() * S.softmax_scale
            p += torch.softmax(s.masked_fill(later, -torch.inf), -1) / S.heads
    index_q, index_k, weights = index_inputs(model, indexer, i, x, rope_table(length, b, 0, x.device))

    def rows_of(t):
        t = t.view(b, length, *t.shape[1:])
        return t.gather(1, queries.view(b, -1, *[1] * (t.dim() - 2)).expand(-1, -1, *t.shape[2:]))

    scores = index_scores(rows_of(index_q), rows_of(weights), index_k.view(b, length, -1)).masked_fill(later, -1e9)
    loss = -(p * torch.log_softmax(scores, -1)).sum(-1).mean() + torch.special.xlogy(p, p).sum(-1).mean()
    with torch.no_grad():
        held = p.gather(-1, scores.topk(min(S.index_topk, length), -1).indices).sum(-1).mean()
    return loss, held


def fit(model, indexer, batches, total, device, log):
    """`batches` yields tokens and mask as RowMaker makes them, `total` of them."""
    optimizer = torch.optim.Adam(list(indexer.values()), lr=RATE)
    rng = np.random.default_rng(0)
    for step, (tokens, mask) in enumerate(batches):
        length = tokens.shape[1] - 4
        queries = torch.from_numpy(pick_queries(mask, length, rng)).to(device)
        ids = torch.from_numpy(tokens).to(device).long()
        seen = []

        def see(i, x, q, k, queries=queries, seen=seen):
            with torch.enable_grad():
                loss, held = divergence(model, indexer, i, x, q, k, queries)
                loss.backward()
            seen.append((loss.detach(), held))

        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20, 0.02 + 1.4 * (1 - step / total))
        optimizer.zero_grad()
        model.run(ids[:, :length], see=see, draft_ids=ids[:, 1 : length + 1])
        optimizer.step()
        if step % 50 == 0 or step == total - 1:
            log(f"indexer step {step} length {length} KL {[round(float(v), 3) for v, _ in seen]} "
                f"held by {S.index_topk} {[round(float(h), 3) for _, h in seen]}")
