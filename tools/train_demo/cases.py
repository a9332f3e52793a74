#!/usr/bin/env python3
"""The held-out cases: one long message with a question at its end, and the answer.

  cases.py MODEL_FOLDER TEXT.txt.xz OUT.json     writes those that tests run: 20 a task at 1,024, 4,096 and 16,384 tokens

A case depends on its task, length and number, the text and the tokenizer. The text is of the held-out paragraphs of
public-domain sources. In the file a message is a list of parts: a string, or [begin, end) of the string "filler" (which is ASCII).

  passkey     a number of five digits, said once
  key_value   the code (a letter and three digits) of one of many named things
  copy        the motto (four to eight words) of one of many named animals, word for word
"""
import json
import random
import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

import language
import rows

TASKS = {"passkey": "passkey", "key_value": "code", "copy": "motto"}
LENGTHS_IN_TESTS, CASES_IN_TESTS = (1024, 4096, 16384), 20
ROOM_FOR_ANSWER = 48


@dataclass
class Case:
    task: str
    length: int  # The prompt and its answer have at most so many tokens.
    depth: float  # Where in the text the fact stands.
    parts: list
    answer: str


class Filler:
    """A text that may be cut after any sentence, and how many tokens lie between two cuts."""

    def __init__(self, tokenizer, paragraphs):
        self.text = "\n\n".join(p for p in paragraphs if p.isascii())
        self.cuts = [m.start() + 1 for m in re.finditer(r"\.(?= [A-Za-z])", self.text)]
        pieces = [self.text[a:b] for a, b in zip(self.cuts, self.cuts[1:])]
        counts = [len(e.ids) for e in tokenizer.encode_batch(pieces, add_special_tokens=False)]
        self.tokens = [0, *accumulate(counts)]  # From the first cut.


def make(tokenizer, filler, task, length, number, of):
    rng = random.Random(f"case {task} {length} {number}")
    facts = language.facts(rng, language.fact_count(length))
    while not any(f.kind == TASKS[task] for f in facts):
        facts = language.facts(rng, language.fact_count(length))
    asked = rng.choice([f for f in facts if f.kind == TASKS[task]])

    def count(text):
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    said = {f: language.text_of(language.first_word(f.statement(rng)[0], True)) for f in facts}
    cost = {f: count(text) for f, text in said.items()}
    question = "\n\n" + language.text_of(asked.question(rng))
    room = length - ROOM_FOR_ANSWER - count(question) - sum(cost.values())
    while room < length / 4:  # Short texts hold fewer facts.
        facts.remove(next(f for f in facts if f is not asked))
        room = length - ROOM_FOR_ANSWER - count(question) - sum(cost[f] for f in facts)
    # From a random cut as many sentences as fit.
    tokens = filler.tokens
    for _ in range(30):
        first = rng.randrange(bisect_right(tokens, tokens[-1] - room))
        end = bisect_right(tokens, tokens[first] + room) - 1
        if tokens[first] + room - tokens[end] < 20:
            break
    depth = (number + rng.random()) / of
    places = {f: depth if f is asked else rng.random() for f in facts}
    parts, at = [], first
    for fact in sorted(facts, key=places.get):
        cut = max(at, min(end, bisect_left(tokens, tokens[first] + places[fact] * room)))
        if cut > at:
            parts.append([filler.cuts[at] + (at == first), filler.cuts[cut]])  # Without the space in front of the first.
        at = cut
        parts.append(said[fact] if parts else said[fact][1:])
    if end > at:
        parts.append([filler.cuts[at], filler.cuts[end]])
    merged = []
    for part in [*parts, question]:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return Case(task, length, depth, merged, language.text_of(asked.answer))


def message(case, filler):
    return "".join(p if isinstance(p, str) else filler.text[p[0] : p[1]] for p in case.parts)


def make_all(tokenizer, filler, length, count):
    return [make(tokenizer, filler, task, length, number, count) for task in TASKS for number in range(count)]


def held_out_filler(tokenizer, text):
    return Filler(tokenizer, rows.held_out_paragraphs(text, rows.PUBLIC_DOMAIN))


def write_cases(path, tokenizer, filler):
    cases = [c for length in LENGTHS_IN_TESTS for c in make_all(tokenizer, filler, length, CASES_IN_TESTS)]
    used = max(p[1] for c in cases for p in c.parts if not isinstance(p, str))
    lines = ",\n".join(json_of(c) for c in cases)
    about = "The user's message is its parts joined: a string, or [begin, end) of filler."
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'{{"about": {json.dumps(about)},\n"filler": {json.dumps(filler.text[:used])},\n"cases": [\n{lines}\n]}}\n')


def json_of(case):
    return json.dumps({"task": case.task, "length": case.length, "depth": round(case.depth, 3), "user": case.parts,
                       "answer": case.answer}, separators=(",", ":"))


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")
    write_cases(sys.argv[3], tokenizer, held_out_filler(tokenizer, rows.read_text(sys.argv[2])))


if __name__ == "__main__":
    main()
