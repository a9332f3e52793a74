"""Muon for matrices and Adam for the rest, as few launches, all inside a CUDA graph."""
import torch

MUON_RATE, ADAM_RATE, HEAD_RATE = 0.02, 0.004, 0.002
ADAM_BETAS, MUON_MOMENTUM = (0.9, 0.95), 0.95
MOE_STACKS = ("gates", "ups", "downs")


def is_matrix(name, tensor):
    return tensor.dim() >= 2 and name not in ("embed", "head")


def orthogonalized(g):
    """Newton-Schulz iteration on g [n, rows, cols], rows <= cols: all singular values go to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.float()


class Optimizer:
    """step(grads) with a rate that `set_rate` scales."""

    def __init__(self, parameters):
        self.names = list(parameters)
        self.p = parameters
        device = next(iter(parameters.values())).device
        self.rate, self.steps = torch.zeros((), device=device), torch.zeros((), device=device)
        # Muon works on matrices of one shape at a time, each expert's by itself, lying on the side if they are tall.
        self.groups = {}
        for name, t in parameters.items():
            if is_matrix(name, t):
                rows, cols = t.shape[-2:]
                self.groups.setdefault((min(rows, cols), max(rows, cols)), []).append(name)
        self.momentum = {key: torch.zeros(sum(self.count(n) for n in names), *key, device=device)
                         for key, names in self.groups.items()}
        self.flat = [n for n in self.names if not is_matrix(n, parameters[n])]
        sizes = [parameters[n].numel() for n in self.flat]
        self.mean, self.square = torch.zeros(sum(sizes), device=device), torch.zeros(sum(sizes), device=device)
        self.flat_rate = torch.cat([torch.full((s,), HEAD_RATE if n == "head" else ADAM_RATE, device=device)
                                    for n, s in zip(self.flat, sizes)])
        self.sizes = sizes

    def count(self, name):
        return self.p[name].shape[0] if self.p[name].dim() == 3 else 1

    def set_rate(self, scale):
        self.rate.fill_(scale)

    @torch.no_grad()
    def step(self, grads):
        g = dict(zip(self.names, grads))
        g = {n: torch.zeros_like(self.p[n]) if t is None else t for n, t in g.items()}
        for key, names in self.groups.items():
            lying = [self.lying(g[n]) for n in names]
            stack, momentum = torch.cat(lying), self.momentum[key]
            momentum.lerp_(stack, 1 - MUON_MOMENTUM)
            update = orthogonalized(stack.lerp(momentum, MUON_MOMENTUM))
            for name, u in zip(names, update.split([len(x) for x in lying])):
                p = self.p[name]
                rows, cols = p.shape[-2:]
                if name.endswith("downs"):  # Stored transposed.
                    rows, cols = cols, rows
                u = u.transpose(-1, -2) if p.shape[-2] > p.shape[-1] else u
                p.sub_(u.reshape(p.shape) * (self.rate * MUON_RATE * max(1.0, rows / cols) ** 0.5))
        self.steps += 1
        flat = torch.cat([g[n].flatten() for n in self.flat])
        b1, b2 = ADAM_BETAS
        self.mean.lerp_(flat, 1 - b1)
        self.square.lerp_(flat * flat, 1 - b2)
        mean, square = self.mean / (1 - b1**self.steps), self.square / (1 - b2**self.steps)
        update = mean / (square.sqrt() + 1e-8) * self.flat_rate * self.rate
        for name, u in zip(self.flat, update.split(self.sizes)):
            self.p[name].sub_(u.view_as(self.p[name]))

    @staticmethod
    def lying(t):
        t = t if t.dim() == 3 else t[None]
        return t.transpose(-1, -2) if t.shape[-2] > t.shape[-1] else t
