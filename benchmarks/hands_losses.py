"""Whether `dataset blame` ranks the cause of a planted loss spike first, 20 times.

Method: five runs write datasets of texts by a Markov chain over made-up words, from several sources, into each of which
four groups of documents are planted, one of each cause: a *source* whose texts are like all others; *duplicates*,
copies of one passage in documents of all sources; an *encoding*, letters of UTF-8 that were read as Latin 1; *shuffled*
words, whose every next token is another than in the language. A loader reads one pass; its state is the checkpoint.
For each group a loss is made: it falls with noise, and jumps at each step that read a document of the group. The
diagnosis sees the losses, the checkpoint and the dataset, and no more. Limit: the cause is first in 18 of 20.

    python benchmarks/hands_losses.py --json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.cli.commands.dataset import BlameQuestion, diagnose
from headrace.cli.ui import RunResult
from headrace.loader import Loader, Trace

KINDS = ("source", "duplicates", "encoding", "shuffled")
DATASETS = 5
#: Documents of a group, and of the rest.
PLANTED, RECORDS, SOURCES = 12, 3000, 12
WORDS, FOLLOWERS, TEXT_WORDS = 1500, 12, 90
SEQ_LEN, BATCH = 512, 2
FIRST_MIN = 18
#: What the first cause has to be called.
SAID = {
    "duplicates": "the same passage in several documents",
    "encoding": "letters broken by an encoding",
    "shuffled": "tokens in an order that is not that of the rest",
}


class Language:
    """Texts in which a word is followed by one of a few."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "abcdefghijklmnoprstuvé"
        self.words = ["".join(self.random.choices(letters, k=self.random.randint(3, 8))) for _ in range(WORDS)]
        self.after = [[self.random.randrange(WORDS) for _ in range(FOLLOWERS)] for _ in range(WORDS)]

    def text(self, count: int = TEXT_WORDS) -> str:
        """So many words."""
        at, found = self.random.randrange(WORDS), []
        for _ in range(count):
            found.append(self.words[at])
            at = self.random.choice(self.after[at])
        return " ".join(found)


def planted(language: Language, kind: str, number: int) -> list[tuple[str, dict[str, str]]]:
    """The documents of one group: the file of each, and the record."""
    passage = language.text(60)
    found: list[tuple[str, dict[str, str]]] = []
    for document in range(PLANTED):
        text, file = language.text(), f"web-{language.random.randrange(SOURCES)}"
        if kind == "source":
            file = f"bad-{number}"
        elif kind == "duplicates":
            text = f"{passage} {language.text(TEXT_WORDS - 60)}"
        elif kind == "encoding":
            text = text.encode().decode("latin-1")
        elif kind == "shuffled":
            words = text.split()
            language.random.shuffle(words)
            text = " ".join(words)
        found.append((file, {"id": f"{kind}-{number}-{document}", "text": text}))
    return found


def write_input(folder: Path, seed: int, records: int) -> None:
    """The files of the corpus, planted documents among the others."""
    language = Language(seed)
    rows = [
        (f"web-{language.random.randrange(SOURCES)}", {"id": f"r{number}", "text": language.text()})
        for number in range(records)
    ]
    for kind in KINDS:
        rows += planted(language, kind, seed)
    language.random.shuffle(rows)
    folder.mkdir()
    files: dict[str, list[str]] = {}
    for file, record in rows:
        files.setdefault(file, []).append(json.dumps(record))
    for file, lines in files.items():
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_dataset(place: Path) -> RunResult:
    """Tokenize and pack the corpus."""
    source = hr.read_jsonl(str(place / "in" / "*.jsonl"))
    trained = hr.train_tokenizer(source, place / "tokenizer.json", vocab_size=4000)
    tokens = hr.tokenize(trained.path)
    chain = hr.Pipeline.chain("losses", str(place / "out"), source, tokens, hr.write_tokens(tokens, seq_len=SEQ_LEN))
    return hr.run(chain, progress=False)


def steps_read(state: dict[str, Any]) -> dict[str, set[int]]:
    """The steps that read each planted group."""
    trace = Trace(state)
    found: dict[str, set[int]] = {}
    for step in range(trace.steps):
        pieces = trace.pieces_of(step, 1 << 20)
        for facts in trace.facts_of(pieces):
            kind, _, rest = str(facts["id"]).partition("-")
            if rest:
                found.setdefault(f"{kind}-{rest.partition('-')[0]}", set()).add(step)
    return found


def losses(steps: int, spikes: set[int], seed: int) -> str:
    """A table of losses that jump at these steps."""
    noise = np.random.default_rng(seed).normal(0, 0.03, steps)
    rows = [
        f"{step},{2.0 + 5.0 * np.exp(-step / 100) + noise[step] + (1.0 if step in spikes else 0.0):.5f}"
        for step in range(steps)
    ]
    return "\n".join(["step,loss", *rows, ""])


def is_right(kind: str, number: str, first: tuple[str, str]) -> bool:
    """Whether the first cause is the planted one."""
    if kind == "source":
        return first[0] == "source" and first[1].endswith(f"bad-{number}.jsonl")
    return first == ("property", SAID[kind])


def blame(place: Path, seed: int, records: int) -> dict[str, list[Any]]:
    """The likeliest causes of each planted group of one dataset; empty where the first is the planted one."""
    write_input(place / "in", seed, records)
    write_dataset(place)
    loader = Loader(str(place / "out"), batch_size=BATCH, seed=seed, alone=True)
    for _ in loader:
        pass
    state = loader.state_dict()
    loader.close()
    (place / "loader.json").write_text(json.dumps(state))
    answers: dict[str, list[Any]] = {}
    for at, (group, spikes) in enumerate(sorted(steps_read(state).items())):
        (place / "loss.csv").write_text(losses(state["step"], spikes, seed + at))
        found = diagnose(
            BlameQuestion(str(place / "out"), str(place / "loader.json"), str(place / "loss.csv"), before=0)
        )
        kind, _, number = group.partition("-")
        causes = [(cause.kind, cause.value) for cause in found.causes[:3]]
        right = bool(causes) and is_right(kind, number, causes[0])
        answers[group] = [] if right else [causes or "none", len(found.spikes), len(spikes)]
    return answers


def measure(seed: int, records: int) -> dict[str, Any]:
    right: Counter[str] = Counter()
    wrong: dict[str, list[Any]] = {}
    for number in range(DATASETS):
        with tempfile.TemporaryDirectory() as folder:
            answers = blame(Path(folder), DATASETS * seed + number, records)
        right.update(group.partition("-")[0] for group, answer in answers.items() if not answer)
        wrong |= {group: answer for group, answer in answers.items() if answer}
    return {
        "blame_planted": len(KINDS) * DATASETS,
        "blame_first": sum(right.values()),
        "blame_by_cause": dict(right),
        "blame_wrong": wrong,
        "blame_within": sum(right.values()) >= FIRST_MIN,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=RECORDS)
    given = parser.parse_args()
    found = measure(given.seed, given.records)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0 if found["blame_within"] else 1


if __name__ == "__main__":
    sys.exit(main())
