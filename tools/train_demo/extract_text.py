#!/usr/bin/env python3
"""extract_text.py ROOT BIBLE OUT.txt.xz: plain text from the unpacked packages that fetch_text.sh names.

The output is UTF-8 text in one xz file: sources one after another, each beginning with a line "\\x1e NAME", paragraphs apart by
an empty line, each paragraph on one line.
"""
import gzip
import html
import lzma
import re
import sys
from pathlib import Path

# Typographic characters that a tiny vocabulary should not spend tokens on.
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " ", "´": "'",
                       "\u200b": "", "•": "*", "→": "->", "\u2011": "-"})


def tidy(paragraphs):
    """Paragraphs on one line each; short ones, tables and doubles are dropped."""
    seen, out = set(), []
    for text in paragraphs:
        text = re.sub(r"\s+", " ", text.translate(PLAIN)).strip()
        letters = sum(c.isalpha() or c == " " for c in text)
        if len(text) < 40 or letters < 0.75 * len(text) or text in seen:
            continue
        seen.add(text)
        out.append(text)
    return out


def from_plain(text):
    return tidy(re.split(r"\n\s*\n", text))


def from_dictionary(path):
    """A dictd database: references stand in braces."""
    text = gzip.open(path, "rt", encoding="utf-8", errors="replace").read()
    about = text.rfind("00-database-")
    text = text[text.index("\n\n", about) :]
    return from_plain(re.sub(r"\{\s*([^{}]*?)\s*\}", r"\1", text))


def from_markup(paths, tags):
    """What stands inside the given elements of HTML or XML pages."""
    element = re.compile(rf"<({tags})(?:\s[^>]*)?>((?:(?!<(?:{tags})[\s>]).)*?)</\1>", re.DOTALL)  # Innermost ones.
    out = []
    for path in paths:
        for _, body in element.findall(path.read_text(encoding="utf-8", errors="replace")):
            out.append(html.unescape(re.sub(r"<[^>]*>", "", body)))
    return tidy(out)


def from_campaigns(paths):
    """The translatable strings of Wesnoth's scenarios: dialogue and story. One scenario's strings are joined in order."""
    out = []
    for path in paths:
        strings = re.findall(r'_\s*"((?:[^"]|"")*)"', path.read_text(encoding="utf-8", errors="replace"))
        long = [re.sub(r"<[^>]*>", "", s.replace('""', '"')) for s in strings if len(s) > 60]
        out += long
    return tidy(out)


def from_bible(path):
    """Chapters with numbered verses; ten verses make a paragraph."""
    text = path.read_text(encoding="utf-8").partition("Rev22:21\n")[2]  # After the prompt, which answers with the first verse.
    verses = re.split(r"^ {0,2}\d+ ", text, flags=re.MULTILINE)[1:]
    assert len(verses) > 30000, f"{path}: {len(verses)} verses"
    verses = [re.sub(r"\n\s*\n.*", "", v, flags=re.DOTALL) for v in verses]
    return tidy(" ".join(verses[i : i + 10]) for i in range(0, len(verses), 10))


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    root, bible, out = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    share = root / "usr/share"
    sources = {
        "bible": from_bible(bible),
        "wesnoth": from_campaigns(sorted(share.glob("games/wesnoth/*/data/campaigns/**/*.cfg"))),
        "devil": from_dictionary(share / "dictd/devil.dict.dz"),
        "jargon": from_dictionary(share / "dictd/jargon.dict.dz"),
        "foldoc": from_dictionary(share / "dictd/foldoc.dict.dz"),
        "debian-reference": from_markup(sorted(share.glob("debian-reference/ch*.en.html")), "p"),
        "debian-handbook": from_markup(sorted(share.glob("doc/debian-handbook/html/en-US/*.html")), "p|div"),
        "gnome-help": from_markup(sorted(share.glob("help/C/**/*.page")), "p"),
    }
    text = ""
    for name, paragraphs in sources.items():
        body = "\n\n".join(paragraphs)
        print(f"{name:18s} {len(paragraphs):6d} paragraphs {len(body):9d} characters")
        text += f"\x1e {name}\n{body}\n"
    with lzma.open(out, "wt", encoding="utf-8", preset=9) as f:
        f.write(text)


if __name__ == "__main__":
    main()
