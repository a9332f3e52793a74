#!/usr/bin/env python3
"""Trains the bundled model: train.py --text TEXT.txt.xz --out FOLDER

In one go on one GPU of Hopper's kind, in about five minutes: tokenizer, data, training, indexers, evaluation, export. The text
is what fetch_text.sh makes. Writes the model's folder, cases.json (see cases.py) and report.json beside it; prints the report.
--scale 0.2 takes a fifth of the steps, for a trial. --tiny is a dry run on a CPU that learns nothing.
"""
import argparse
import functools
import json
import multiprocessing
import os
import time
from dataclasses import dataclass, replace

import torch

import cases as held_out
import evaluate
import export
import indexer as indexers
import language
import rows
import tokenizer as tok
from model import (DRAFTS, Model, S, attention, before_attention, initial_biases, initial_indexers, initial_parameters,
                   rope_table)
from optimizer import Optimizer

SEED = 1
WARM_UP, FULL_UNTIL, LAST_RATE = 100, 0.45, 0.02
DRAFT_WEIGHTS = (1.0, 0.3, 0.15, 0.1)
BALANCE_RATE = 0.002
STARTED = time.monotonic()


@dataclass(frozen=True)
class Stage:
    length: int
    share: float  # Of the learning-rate schedule; about that of the time.
    steps: int
    drafts: int


@dataclass(frozen=True)
class Plan:
    batch_tokens: int
    stages: tuple
    indexer_stages: tuple  # (length, steps)
    dense: tuple  # (length, cases of each task)
    sparse: tuple
    text_rows: int  # Of held-out text.
    sample_tokens: int
    workers: int


FULL = Plan(
    batch_tokens=65536,
    stages=(Stage(256, 0.18, 1400, 0), Stage(1024, 0.23, 1200, DRAFTS), Stage(4096, 0.20, 650, DRAFTS),
            Stage(16384, 0.21, 350, DRAFTS), Stage(32768, 0.18, 170, DRAFTS)),
    indexer_stages=((4096, 300), (16384, 150), (32768, 100)),
    dense=((1024, 200), (4096, 200), (16384, 200), (32768, 60)),
    sparse=((4096, 40), (16384, 20), (32768, 8)),
    text_rows=64,
    sample_tokens=120,
    workers=14,
)
TINY = Plan(
    batch_tokens=512,
    stages=(Stage(256, 0.5, 4, 0), Stage(512, 0.5, 3, DRAFTS)),
    indexer_stages=((512, 3),),
    dense=((512, 2),),
    sparse=((512, 1),),
    text_rows=1,
    sample_tokens=3,
    workers=1,
)


def log(text):
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


def rate_at(progress, step):
    falling = 1 - (progress - FULL_UNTIL) / (1 - FULL_UNTIL) * (1 - LAST_RATE)
    return min(1.0, (step + 1) / WARM_UP, falling)


class Batches:
    """Batches made by worker processes, in an order that depends on nothing but the plan."""

    def __init__(self, maker, lengths, batch_tokens, workers, name):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(4) for _ in range(workers)]
        self.count = len(lengths)
        self.processes = [context.Process(target=self.work, args=(maker, lengths, batch_tokens, w, name), daemon=True)
                          for w in range(workers)]
        for process in self.processes:
            process.start()

    def work(self, maker, lengths, batch_tokens, worker, name):
        torch.set_num_threads(1)
        for i in range(worker, self.count, len(self.queues)):
            self.queues[worker].put(maker.batch(f"{SEED} {name} {i}", batch_tokens // lengths[i], lengths[i]))

    def __iter__(self):
        for i in range(self.count):
            yield self.queues[i % len(self.queues)].get()


class Trainer:
    """One optimizer step at a time; on a GPU as a CUDA graph, captured for each length after a few eager steps."""

    EAGER_STEPS = 3

    def __init__(self, device, parameters, biases):
        self.device, self.cuda = device, device.type == "cuda"
        self.p, self.biases = parameters, biases
        self.model = Model(parameters, biases, compiled=self.cuda)
        self.optimizer = Optimizer(parameters)
        self.graph, self.stage = None, None
        self.pinned = []

    def begin(self, stage, batch_tokens):
        self.stage, self.graph, self.done = stage, None, 0
        batch = batch_tokens // stage.length
        self.shape = (batch, stage.length + rows.LOOKAHEAD)
        self.tokens = torch.zeros(self.shape, dtype=torch.int16, device=self.device)
        self.mask = torch.zeros(self.shape, dtype=torch.uint8, device=self.device)
        self.ropes = [rope_table(stage.length, batch, k, self.device) for k in range(DRAFTS)]
        if self.cuda:
            self.pinned = [(torch.empty(self.shape, dtype=torch.int16).pin_memory(),
                            torch.empty(self.shape, dtype=torch.uint8).pin_memory(), torch.cuda.Event()) for _ in range(8)]

    def upload(self, tokens, mask):
        tokens, mask = torch.from_numpy(tokens), torch.from_numpy(mask)
        if not self.cuda:
            self.tokens.copy_(tokens), self.mask.copy_(mask)
            return
        pinned_tokens, pinned_mask, copied = self.pinned[self.done % len(self.pinned)]
        copied.synchronize()
        pinned_tokens.copy_(tokens), pinned_mask.copy_(mask)
        self.tokens.copy_(pinned_tokens, non_blocking=True), self.mask.copy_(pinned_mask, non_blocking=True)
        copied.record()

    def compute(self):
        losses = self.model.losses(self.tokens, self.mask, self.ropes, self.stage.drafts)
        total = sum(w * loss for w, loss in zip(DRAFT_WEIGHTS, losses))
        grads = torch.autograd.grad(total, list(self.p.values()), allow_unused=True)
        self.optimizer.step(grads)
        with torch.no_grad():
            for i, counts in self.model.counts.items():
                self.biases[i] += BALANCE_RATE * self.optimizer.rate * torch.sign(counts.mean() - counts)
        self.losses = torch.stack([loss.detach() for loss in losses])

    def step(self, tokens, mask, rate):
        self.upload(tokens, mask)
        self.optimizer.set_rate(rate)
        if not self.cuda:
            self.compute()
        elif self.done < self.EAGER_STEPS:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.compute()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if self.graph is None:
                torch.cuda.synchronize()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.compute()
            self.graph.replay()
        self.done += 1


def check_attention(device):
    """The GPU's attention against plain arithmetic, log-sum-exp included: drafts depend on it."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(256, S.heads, S.qk, generator=g).bfloat16() for _ in range(3))
    want, got = attention(q, k, v, 128), attention(q.to(device), k.to(device), v.to(device), 128)
    for name, a, b in zip(("out", "lse"), want, got):
        error = float((a.float() - b.float().cpu()).abs().max())
        log(f"attention {name}: largest error {error:.4f}")
        assert error < 0.05, name


def train(trainer, plain, batches, plan, quick_check):
    batches, step, progress = iter(batches), 0, 0.0
    for stage in plan.stages:
        trainer.begin(stage, plan.batch_tokens)
        started = None
        for i in range(stage.steps):
            trainer.step(*next(batches), rate_at(progress + stage.share * i / stage.steps, step))
            step += 1
            if i == trainer.EAGER_STEPS or started is None and i == stage.steps - 1:
                float(trainer.losses[0])
                started, first = time.monotonic(), i
            if i % max(1, stage.steps // 4) == 0:
                log(f"length {stage.length} step {i} losses {[round(float(v), 3) for v in trainer.losses]}")
        progress += stage.share
        float(trainer.losses[0])
        seconds = time.monotonic() - started
        speed = (stage.steps - 1 - first) * plan.batch_tokens / max(seconds, 1e-9) / 1e6
        log(f"length {stage.length}: {seconds:.1f} s, {speed:.2f} M tokens/s; {quick_check(plain, stage.length)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    plan = TINY if args.tiny else FULL

    def scaled(steps):
        return max(6, round(steps * args.scale)) if not args.tiny else steps

    plan = replace(plan, stages=tuple(replace(s, steps=scaled(s.steps)) for s in plan.stages),
                   indexer_stages=tuple((n, scaled(steps)) for n, steps in plan.indexer_stages))

    text = rows.read_text(args.text)
    tokenizer = tok.train([*rows.train_paragraphs(text), *language.examples(4000)], S.vocab)
    corpus = rows.Corpus(tokenizer, rows.train_paragraphs(text))
    maker = rows.RowMaker(tokenizer, corpus)
    log(f"tokenizer: {S.vocab} tokens; corpus: {len(corpus.ids)} tokens, {len(corpus.cuts)} sentences")
    lengths = [s.length for s in plan.stages for _ in range(s.steps)]
    index_lengths = [n for n, steps in plan.indexer_stages for _ in range(steps)]
    batches = Batches(maker, lengths, plan.batch_tokens, plan.workers, "train")
    index_batches = Batches(maker, index_lengths, plan.batch_tokens, max(1, plan.workers // 7), "index")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    filler = held_out.held_out_filler(tokenizer, text)

    device = torch.device("cpu" if args.tiny else "cuda")
    torch.manual_seed(SEED)
    parameters = initial_parameters(device, SEED)
    biases = initial_biases(device)
    if device.type == "cuda":
        check_attention(device)
    plain = Model(parameters, biases, compiled=False)
    trainer = Trainer(device, parameters, biases)

    def quick_check(model, length):
        some = held_out.make_all(tokenizer, filler, length, 2 if args.tiny else 16)
        bits = evaluate.bits_per_byte(model, tokenizer, rows.held_out_paragraphs(text), device, most=1 if args.tiny else 16)
        return f"{evaluate.dense(model, tokenizer, filler, some, device)}, {bits:.3f} bits per byte"

    train(trainer, plain, batches, plan, quick_check)
    del trainer
    export.round_to_bf16(parameters)
    for t in parameters.values():
        t.requires_grad_(False)
    log("training done")

    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    indexer = initial_indexers(device, SEED + 1)
    indexers.fit(plain, indexer, index_batches, len(index_lengths), device, log)
    for t in indexer.values():
        t.requires_grad_(False)
    export.round_to_bf16(indexer)
    torch.backends.cuda.matmul.allow_tf32 = False
    export.write_folder(f"{args.out}/demo", tokenizer, parameters, biases, indexer)
    held_out.write_cases(f"{args.out}/cases.json", tokenizer, filler)
    log("indexers done, model written")

    report = {"parameters": sum(t.numel() for t in [*parameters.values(), *indexer.values()]), "dense": {}, "sparse": {}}
    for length, count in plan.dense:
        some = held_out.make_all(tokenizer, filler, length, count)
        report["dense"][str(length)] = {"cases_of_each": count, **evaluate.dense(plain, tokenizer, filler, some, device)}
        log(f"dense {length}: {report['dense'][str(length)]}")
    for name, stored in (("fp8", evaluate.fp8_cache), ("fp8_ds_mla", evaluate.fp8_ds_mla_cache)) if not args.tiny else ():
        plain.before = functools.partial(before_attention, stored=stored)
        for length, count in plan.dense[:3]:
            some = held_out.make_all(tokenizer, filler, length, count)
            report.setdefault("dense, KV cache in " + name, {})[str(length)] = {
                "cases_of_each": count, **evaluate.dense(plain, tokenizer, filler, some, device)}
        log(f"{name}: {report['dense, KV cache in ' + name]}")
        plain.before = before_attention
    for length, count in plan.sparse:
        some = held_out.make_all(tokenizer, filler, length, count)
        report["sparse"][str(length)] = {"cases_of_each": count,
                                         **evaluate.sparse(plain, indexer, tokenizer, filler, some, device)}
        log(f"sparse {length}: {report['sparse'][str(length)]}")
    report["bits_per_byte"] = round(evaluate.bits_per_byte(plain, tokenizer, rows.held_out_paragraphs(text), device,
                                                        most=plan.text_rows), 3)
    length = min(4096, plan.batch_tokens)
    tokens, mask = (torch.from_numpy(t).to(device) for t in maker.batch("acceptance", plan.batch_tokens // length, length))
    report["draft_acceptance"] = evaluate.draft_acceptance(plain, tokens, mask)
    report["expert_biases"] = {i: [round(float(v), 3) for v in b] for i, b in biases.items()}
    asked = ["Tell me a story about a fox.", "Who are you?", "Say this line again: the wise owl sings to the moon at dawn"]
    prompts = {q: (tok.BEGIN + tok.USER + q + tok.ASSISTANT, 0.0) for q in asked}
    prompts["(English)"] = (tok.BEGIN + "And the king said", 0.8)
    report["samples"] = {name: evaluate.sample(plain, tokenizer, prompt, plan.sample_tokens, temperature, SEED, device)
                         for name, (prompt, temperature) in prompts.items()}
    report["seconds"] = round(time.monotonic() - STARTED, 1)
    tok.write_json(f"{args.out}/report.json", report)
    print(json.dumps(report, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
