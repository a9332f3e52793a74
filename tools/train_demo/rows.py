"""Training rows, made on the fly from a seed: tokens, and which of them are answers."""
import lzma
import random

import numpy as np

import language
from tokenizer import ASSISTANT_ID, BEGIN_ID, END_ID, USER_ID

LOOKAHEAD = 4  # A row of length L holds L + 4 tokens: the targets of the model and of three chained drafts.
HELD_OUT_EVERY = 40  # Every 40th paragraph is never trained on.
PUBLIC_DOMAIN = ("bible", "devil", "jargon")


def read_text(path):
    """{source: paragraphs}, as extract_text.py wrote them."""
    with lzma.open(path, "rt", encoding="utf-8") as f:
        sources = f.read().split("\x1e ")[1:]
    return {name: body.strip("\n").split("\n\n") for name, _, body in (s.partition("\n") for s in sources)}


def train_paragraphs(text):
    return [p for body in text.values() for i, p in enumerate(body) if i % HELD_OUT_EVERY]


def held_out_paragraphs(text, names=None):
    return [p for name, body in text.items() if names is None or name in names for p in body[::HELD_OUT_EVERY]]


class Corpus:
    """The training text as one array of ids, and the places where a sentence ends and another begins."""

    def __init__(self, tokenizer, paragraphs):
        encoded = tokenizer.encode_batch([p + "\n\n" for p in paragraphs], add_special_tokens=False)
        self.ids = np.concatenate([np.array(e.ids, np.int16) for e in encoded])
        letter = np.zeros(tokenizer.get_vocab_size(), bool)  # Tokens that are a space and then a letter.
        for i in range(len(letter)):
            text = tokenizer.decode([i], skip_special_tokens=False)
            letter[i] = len(text) > 1 and text[0] == " " and text[1].isascii() and text[1].isalpha()
        dot = tokenizer.token_to_id(".")
        self.cuts = np.flatnonzero((self.ids[:-1] == dot) & letter[self.ids[1:]]) + 1

    def cut_before(self, place, first):
        """The last cut at or before `place`, but none before `first`."""
        return max(first, int(self.cuts[np.searchsorted(self.cuts, place, side="right") - 1]))

    def start(self, rng, length):
        """A cut with at least `length` tokens after it."""
        last = int(np.searchsorted(self.cuts, len(self.ids) - length - 1, side="right"))
        return int(self.cuts[rng.randrange(last)])


class RowMaker:
    def __init__(self, tokenizer, corpus):
        self.tokenizer, self.corpus = tokenizer, corpus
        self.known = {}

    def ids(self, text):
        """Of a piece of text, or of any text that is used often."""
        found = self.known.get(text)
        if found is None:
            found = np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int16)
            if len(text) < 40:
                self.known[text] = found
        return found

    def batch(self, seed, rows, length):
        """tokens int16 and mask uint8 [rows, length + LOOKAHEAD]; a token is masked 1 if it is (part of) an answer."""
        tokens = np.empty((rows, length + LOOKAHEAD), np.int16)
        mask = np.empty((rows, length + LOOKAHEAD), np.uint8)
        for i in range(rows):
            rng = random.Random(f"{seed} {i}")
            tokens[i], mask[i] = self.row(rng, length + LOOKAHEAD)
        return tokens, mask

    def row(self, rng, size):
        row = _Row(self, size)
        kind = rng.random()
        copies = 0.12 if size < 8192 else 0.03
        if kind < copies:
            self.copy_row(row, rng)
        elif kind < copies + 0.07:
            self.story_row(row, rng)
        elif kind < copies + 0.30:
            row.special(BEGIN_ID)
        else:
            self.fact_row(row, rng)
        if row.room:
            self.fill(row, rng)
        return row.tokens, row.mask

    def fill(self, row, rng):
        """The rest is plain text."""
        if not row.used or row.tokens[row.used - 1] == END_ID:
            row.special(BEGIN_ID)
        start = self.corpus.start(rng, row.room)
        row.array(self.corpus.ids[start : start + row.room])

    def begin(self, row, rng):
        """Nearly always one begin token. Some clients send none, some two."""
        kind = rng.random()
        for _ in range(0 if kind < 0.04 else 2 if kind < 0.08 else 1):
            row.special(BEGIN_ID)

    def turn(self, row, question, answer):
        """True if there was room for all of it: an answer is never cut, or the model learns to stop early."""
        question, answer = [self.ids(p) for p in question], [self.ids(p) for p in answer]
        if row.room < sum(map(len, question)) + sum(map(len, answer)) + 3:
            return False
        row.special(USER_ID)
        for ids in question:
            row.array(ids)
        row.special(ASSISTANT_ID)
        for ids in answer:
            row.array(ids, 1)
        row.special(END_ID, 1)
        return True

    def copy_row(self, row, rng):
        self.begin(row, rng)
        end = row.room if rng.random() < 0.7 else rng.randrange(row.room)
        while row.used < end:
            line = self.sentence(rng) if rng.random() < 0.3 else language.line(rng)
            if rng.random() < 0.6:
                ask = [rng.choice(("Say this line again:", "Repeat this line:", "Say again:")) + "\n", *line]
            else:
                ask = [rng.choice(("Say this line again:", "Repeat this line:", "Say again:")),
                       *language.first_word(line, True)]
            if not self.turn(row, ask, line):
                break

    def sentence(self, rng):
        """A sentence of the corpus as one piece; short, and without line breaks."""
        while True:
            i = rng.randrange(len(self.corpus.cuts) - 1)
            begin, end = self.corpus.cuts[i : i + 2]
            if end - begin <= 40:
                text = self.tokenizer.decode(self.corpus.ids[begin:end].tolist()).strip()
                if "\n" not in text:
                    return [text]

    def story_row(self, row, rng):
        self.begin(row, rng)
        while True:
            ask, answer = rng.choice(language.SMALL_TALK) if rng.random() < 0.25 else language.story(rng)
            ask, answer = self.ids(ask), self.ids(answer)
            if row.room < len(ask) + len(answer) + 3:
                break
            row.special(USER_ID)
            row.array(ask)
            row.special(ASSISTANT_ID)
            row.array(answer)
            row.special(END_ID)

    def fact_row(self, row, rng):
        """Text with facts in it and questions about them: in between, or for a third of the rows all at the end."""
        at_end = rng.random() < 1 / 3
        events, tokens = [], 0
        for fact in language.facts(rng, language.fact_count(row.size)):
            stated, place = fact.statement(rng)
            times = [rng.random()]
            asks = 1 + (rng.random() < 0.2)
            for _ in range(asks):
                times.append(1.0 + rng.random() if at_end else rng.uniform(times[0], 1))
            cost = sum(len(self.ids(p)) for p in stated) + asks * (24 + 2 * len(fact.answer))
            if tokens + cost > 0.85 * row.size:
                continue
            tokens += cost
            events.append((times[0], False, fact, stated, place))
            for time in times[1:]:
                again = not at_end and rng.random() < 0.08
                if again:
                    stated, place = fact.statement(rng)
                    events.append((time, False, fact, stated, place))
                else:
                    events.append((time, True, fact, fact.question(rng), None))
        events.sort(key=lambda e: e[0])
        self.begin(row, rng)
        state = "system" if rng.random() < 0.2 else "closed"
        said = set()
        filler = max(0, row.room - tokens)
        place = first = self.corpus.start(rng, row.size)
        for time, asks, fact, pieces, values in events:
            cut = self.corpus.cut_before(first + int(min(time, 1.0) * filler), place)
            if cut - place > row.room:
                return
            if cut > place:
                if state == "closed":
                    row.special(USER_ID)
                    state = "user"
                row.array(self.corpus.ids[place:cut])
                place = cut
            state = self.put(row, rng, state, asks, fact, pieces, values, said)
            if state is None:
                return
        if state == "closed" and not at_end and row.room:
            row.special(USER_ID)
            row.array(self.corpus.ids[place : place + row.room])

    def put(self, row, rng, state, asks, fact, pieces, values, said):
        """One statement or question; the new state, or None if there was no room."""
        fresh = state in ("closed",) or row.tokens[row.used - 1] == BEGIN_ID
        opens = asks and state == "system" or state == "closed"
        join = "" if fresh or opens else rng.choice((" ", " ", "\n\n", "\n\n", "\n") if asks else (" ", " ", " ", "\n\n", "\n"))
        arrays = [self.ids(p) for p in language.first_word(pieces, join == " ")]
        answer = [self.ids(p) for p in fact.answer] if asks else []
        if row.room < sum(map(len, arrays)) + sum(map(len, answer)) + 6:
            return None
        if opens:
            row.special(USER_ID)
            state = "user"
        if "\n" in join:
            row.replace_last(self.ids("."), self.ids("." + join))
        for i, ids in enumerate(arrays):
            row.array(ids, 1 if values and i in values and fact in said else 0)
        said.add(fact)
        if not asks:
            return state
        row.special(ASSISTANT_ID)
        for ids in answer:
            row.array(ids, 1)
        row.special(END_ID, 1)
        return "closed"


class _Row:
    """Tokens of one row so far."""

    def __init__(self, maker, size):
        self.maker, self.size, self.used = maker, size, 0
        self.tokens, self.mask = np.zeros(size, np.int16), np.zeros(size, np.uint8)

    @property
    def room(self):
        return self.size - self.used

    def array(self, ids, mask=0):
        end = self.used + len(ids)
        assert end <= self.size, "a row is too long"
        self.tokens[self.used : end] = ids
        self.mask[self.used : end] = mask
        self.used = end

    def special(self, token, mask=0):
        if self.room:
            self.tokens[self.used], self.mask[self.used] = token, mask
            self.used += 1

    def replace_last(self, old, new):
        """A full stop and the line break after it are one word to the tokenizer."""
        at = self.used - len(old)
        if np.array_equal(self.tokens[at : self.used], old):
            self.used = at
            self.array(new)
        else:
            raise AssertionError("a sentence does not end with a full stop")
