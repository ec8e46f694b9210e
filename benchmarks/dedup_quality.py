"""What deduplication removes and keeps: families of forms, which must be kept, and changed copies, which must go.

    python benchmarks/dedup_quality.py CORPUS.jsonl ... [--documents 2000] [--json]

Method: all in this process, through the stages' own functions, with the judge and without it. Families have FAMILY
records each that differ by construction: the same parts, cut from documents of the corpus, with words of their own
between them. Changed copies are of documents of the corpus, each kind in an index of its own that saw the originals
first. An original that is itself a duplicate of another, or that is shorter than WORDS_MIN words, is left out. What is
counted is the share of a family that is kept, wanted 99.5 %, and the share of the copies that is removed, wanted 95 %.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.stages.dedup import DEFAULTS, RULE, KeyIndex, Scheme, make_sketches

BATCH = 512
FAMILY = 1000
WORDS_MIN = 40
BULLET, BULLETS_MAX = "•", 5
FRAGMENT = bytes(16)
SCHEMES = {"judged": Scheme(*DEFAULTS[True], RULE), "bands alone": Scheme(*DEFAULTS[False])}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def kept(texts: Sequence[str], scheme: Scheme, index: KeyIndex | None = None, first: int = 0) -> list[bool]:
    """Whether each text is kept, in this order."""
    index = index or KeyIndex(scheme)
    answers: list[bool] = []
    for at in range(0, len(texts), BATCH):
        keys, sketches = make_sketches(pa.array(texts[at : at + BATCH], pa.string()), scheme)
        rows = np.arange(first + at, first + at + len(keys))
        answers += [found is None for found in index.decide(FRAGMENT, rows, keys, sketches)]
    return answers


class Maker:
    """Makes families and copies out of the documents of a corpus."""

    def __init__(self, documents: Sequence[str], seed: int) -> None:
        self.chance = random.Random(seed)
        # Without the lists of links that many pages of a manual have in common.
        self._documents = [document.split() for document in documents if document.count(BULLET) < BULLETS_MAX]
        self._documents = [words for words in self._documents if len(words) > 700]
        self._vocabulary = [word for words in self._documents[:200] for word in words if word.isalpha()]
        self._taken = dict[int, int]()

    def span(self, count: int) -> str:
        """So many words in a row of a document."""
        words = self.chance.choice(self._documents)
        at = self.chance.randrange(len(words) - count)
        return " ".join(words[at : at + count])

    def own(self, count: int) -> str:
        """So many words in a row that no other record has."""
        while True:
            number = self.chance.randrange(len(self._documents))
            # Many documents begin alike.
            at = self._taken.get(number, 200)
            if at + count <= len(self._documents[number]):
                self._taken[number] = at + count
                return " ".join(self._documents[number][at : at + count])

    def words(self, count: int) -> str:
        """So many words of the corpus, drawn one by one."""
        return " ".join(self.chance.choices(self._vocabulary, k=count))

    def families(self) -> dict[str, Callable[[], str]]:
        """A maker of records for each family."""
        schemas = [self.span(90) for _ in range(12)]
        form, parts, licence = self.span(400), [self.span(50) for _ in range(8)], self.span(170)
        long, chance = self.span(600), self.chance
        year = lambda: chance.randint(1960, 2026)  # noqa: E731
        return {
            "calls, the same 4 schemas of 90 words, 40 own": lambda: f"{' '.join(schemas[:4])} {self.words(40)}",
            "calls, 4 of 12 schemas, 10 own behind each": lambda: " ".join(
                f"{schema} {self.words(10)}" for schema in chance.sample(schemas, 4)
            ),
            "forms of 400 words, 80 own": lambda: f"{form} {self.own(80)}",
            "forms of 8 parts, 3 own behind each": lambda: " ".join(f"{part} {self.words(3)}" for part in parts),
            "licences of 170 words, name and year, 60 own": lambda: (
                f"Copyright (c) {year()} {self.words(3)}\n{licence}\n{self.words(60)}"
            ),
            "licences of 600 words, name and year": lambda: f"Copyright (c) {year()} {self.words(2)}\n{long}",
            "logs of 1, 5 or 20 lines": lambda: "\n".join(self._line() for _ in range(chance.choice([1, 5, 20]))),
        }

    def _line(self) -> str:
        draw = self.chance.randint
        return (
            f"2026-{draw(1, 12):02}-{draw(1, 28):02}T{draw(0, 23):02}:{draw(0, 59):02} INFO worker {draw(0, 900)} took "
            f"task {draw(0, 99999)} from queue {self.chance.choice('abc')} and finished it in {draw(1, 999)} ms"
        )

    def copies(self) -> dict[str, Callable[[str], str]]:
        """What changes a document, by kind."""
        chance = self.chance
        around = lambda: self.span(chance.randint(8, 40))  # noqa: E731
        return {
            "5 % of the words edited": lambda text: " ".join(
                self.words(1) if chance.random() < 0.05 else word for word in text.split(" ")
            ),
            "a header": lambda text: f"{around()}\n\n{text}",
            "a footer": lambda text: f"{text}\n\n{around()}",
            "a header and a footer": lambda text: f"{around()}\n\n{text}\n\n{around()}",
            "cut to 90 %": lambda text: text[: int(len(text) * 0.9)],
            "case and white space": lambda text: text.upper().replace(" ", "  "),
            "a scan with 1 % of characters wrong": lambda text: "".join(
                chance.choice(LETTERS) if chance.random() < 0.01 else letter for letter in text
            ),
        }


def measure(documents: Sequence[str], count: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """For each scheme the share kept of each family, and the share removed of each kind of copy."""
    answer: dict[str, dict[str, dict[str, float]]] = {}
    several = [text for text in documents if len(text.split()) >= WORDS_MIN]
    alone = [text for text, only in zip(several, kept(several, SCHEMES["judged"]), strict=True) if only]
    for name, scheme in SCHEMES.items():
        maker = Maker(alone, seed)
        families = {
            family: float(np.mean(kept([make() for _ in range(FAMILY)], scheme)))
            for family, make in maker.families().items()
        }
        texts = maker.chance.sample(alone, len(alone))
        originals = [text for text, only in zip(texts, kept(texts, scheme), strict=True) if only][:count]
        removed: dict[str, float] = {}
        for kind, change in maker.copies().items():
            index = KeyIndex(scheme)
            kept(originals, scheme, index)
            copies = [change(text) for text in originals]
            removed[kind] = 1.0 - float(np.mean(kept(copies, scheme, index, len(originals))))
        answer[name] = {"families kept": families, "copies removed": removed}
    return answer


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", help="JSON Lines with a field text")
    parser.add_argument("--documents", type=int, default=2000, help="originals for each kind of copy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = (line for path in arguments.corpus for line in Path(path).read_text(encoding="utf-8").split("\n") if line)
    answer = measure([json.loads(line)["text"] for line in lines], arguments.documents, arguments.seed)
    if arguments.json:
        print(json.dumps(answer))
        return 0
    for part in ("families kept", "copies removed"):
        print(f"{part:50}" + "".join(f"{name:>14}" for name in SCHEMES))
        for row in answer["judged"][part]:
            print(f"  {row:48}" + "".join(f"{answer[name][part][row]:14.2%}" for name in SCHEMES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
