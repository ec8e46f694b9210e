"""Decontamination: its cost against many items, how many planted ones it finds, and how many clean texts it loses.

    python benchmarks/decontaminate.py CORPUS [--json] [--items 100000] [--workers 2] [--clean 20000] [--seed 1]

Method. Items are made of templates and word lists of this file: word problems with worked answers, questions with four
choices, and passages with a question and an answer. They lie in three files of JSON Lines. `declare_s` is the
declaration, which reads and hashes them; `index_s` is the first task's stage with an empty cache, which reads them
again, makes the index and maps it (each also by processor time); `open_s` is the next task's. CORPUS is a folder of
JSON Lines with `text`; its largest files are dealt out to as many processes as there are workers. Each has its batches
in memory before the clock starts, runs the stage over them, then reads and filters the files from the page cache; a
rate is all bytes of text by the slowest process's time, and `a_cpu_second` by the processor time of all.

Found: items of each shape in each form stand in a text of the corpus, or alone; an item is found if the verdict names
it. Clean: texts of the corpus, of which none may be filtered, and what resembles items: their words in another order,
their sentences in another order, the same templates filled otherwise, and their first halves.

The limit is reading: a pass over the bytes that hashes them and asks a filter of bits at each word.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MB = 1_000_000
PLANTED = 1000
#: Bytes of text before and behind a planted item.
AROUND = 20_000


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SYLLABLES = words("ba bel cor da den fa gar hol in jo ka lan mi mor ne ol per qua ra sel ta tor u val wen xi yor zu")
NAMES = words(
    "Ada Bela Chidi Dagny Emre Farah Gwen Hiro Ines Jamal Kofi Lena Maren Noor Otto Priya Quinn Rosa Sami Tove"
)
THINGS = words(
    "apples bolts candles drums envelopes figs gloves hats inkwells jars kites lamps mugs nails oars pencils quilts "
    "ropes shells tiles umbrellas vases wheels yams zippers baskets cushions doors engines flutes"
)
PLACES = words("market harbour mill school bakery quarry orchard station library workshop theatre dairy brewery garden")
BEGIN = (
    "{a} runs a stall at the {p} and starts the week with {n} {t}.",
    "Every morning {a} carries {n} {t} from the {p} to the old bridge.",
    "{a}'s grandfather left a {p} in which {n} {t} had been stored.",
    "A cooperative led by {a} orders {n} {t} for the {p} each month.",
    "While cleaning the {p}, {a} counts {n} {t} on the shelves.",
    "At the fair beside the {p}, {a} wins {n} {t} in three rounds.",
)
MIDDLE = (
    "On Tuesday {b} buys {m} of them and gives back {k} that don't fit.",
    "A third of what is left goes to {b}, who pays ${k}.50 for each.",
    "{b} then brings twice as many, but {m} turn out to be broken.",
    "After a storm only {m} can be used, so {b} lends another {k}.",
    "{b} packs them in boxes of {k} and keeps {m} aside for repairs.",
    "Because the price rises by {k} percent, {b} sells {m} fewer than before.",
)
END = (
    "How many {t} does {a} have at the end of the week?",
    "How much money, in dollars, do {a} and {b} share when everything is sold?",
    "What is the least number of boxes that {a} needs for the remaining {t}?",
    "If the same happens in each of {k} weeks, how many {t} are missing in total?",
)
ASK = (
    "Which of the following best describes the role of the {x} in a {y} {z}?",
    "In the {y} theory of {z}, what follows when the {x} exceeds its {w} bound?",
    "A {w} sample of {x} is mixed with {y}; which quantity does not change?",
    "According to the school of {x}, a {y} act is justified only if it is",
    "Which statement about {x} and {y} is true?",
)
TELL = (
    "The {x} of {y} was built by {a} after the flood, and it took {n} masons to raise its {w} tower.",
    "Travellers from {y} wrote that {a} kept {n} {t} in the cellar, though nobody had seen the {x}.",
    "When the {w} council met, {a} proposed that the {p} should be moved nearer to the {x} of {z}.",
    "It is said that {n} {t} were buried beneath the {p}, and that {a} alone knew of the {w} door.",
)


class Maker:
    """Items and texts from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.words = [
            "".join(self.chance.choices(SYLLABLES, k=self.chance.choice((2, 2, 3, 3, 4)))) for _ in range(6000)
        ]

    def fill(self, template: str, slots: dict[str, str]) -> str:
        return template.format_map(slots)

    def slots(self) -> dict[str, str]:
        pick = self.chance.choice
        numbers = {name: f"{self.chance.randrange(2, 4000):,}" for name in "nmk"}
        words = {name: pick(self.words) for name in "wxyz"}
        return {**numbers, **words, "a": pick(NAMES), "b": pick(NAMES), "t": pick(THINGS), "p": pick(PLACES)}

    def problem(self) -> dict[str, Any]:
        slots = self.slots()
        parts = [BEGIN, *[MIDDLE] * self.chance.choice((1, 2, 2, 3)), END]
        question = " ".join(self.fill(self.chance.choice(part), slots) for part in parts)
        steps = [f"{slots['n']} - {slots['m']} = {self.chance.randrange(9999)} {slots['t']}." for _ in range(2)]
        return {"question": question, "answer": "\n".join([*steps, f"#### {self.chance.randrange(9999)}"])}

    def choices(self) -> dict[str, Any]:
        question = self.fill(self.chance.choice(ASK), self.slots())
        choices = [" ".join(self.chance.choices(self.words, k=self.chance.choice((1, 2, 4)))) for _ in range(4)]
        return {"question": question, "choices": choices, "answer": self.chance.randrange(4)}

    def passage(self) -> dict[str, Any]:
        slots = self.slots()
        told = " ".join(self.fill(self.chance.choice(TELL), {**self.slots(), "a": slots["a"]}) for _ in range(6))
        question = self.fill("Who moved the {x} of {y} to the {p}, and why did the {w} council of {z} agree?", slots)
        return {"passage": told, "question": question, "answer": told.split(". ")[2]}


KINDS = {"problems": (Maker.problem, 0.4), "choices": (Maker.choices, 0.4), "passages": (Maker.passage, 0.2)}
FORMS: dict[str, Callable[[str], str]] = {
    "verbatim": lambda text: text,
    "upper case": str.upper,
    "lower case": str.lower,
    "without punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
    "spaces for punctuation": lambda text: re.sub(r"[^\w\s]", " ", text),
    "other punctuation": lambda text: re.sub(r"[^\w\s]", ";", text),
}


def printed(item: dict[str, Any]) -> str:
    """An item as a page prints it."""
    lines = [item.get("passage", ""), item["question"]]
    lines += [f"{letter}. {choice}" for letter, choice in zip("ABCD", item.get("choices", ()), strict=False)]
    lines.append(f"Answer: {'ABCD'[item['answer']] if 'choices' in item else item['answer']}")
    return "\n".join(line for line in lines if line)


def texts_of(folder: pathlib.Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]


def judged(stage: Any, texts: Sequence[str]) -> list[str]:
    """Why each text is filtered; empty where it is not."""
    from headrace.stages.quality.scorecard import judge

    return [judgement.reason for judgement in judge(texts, [stage])]


def plant(stage: Any, items: dict[str, list[dict[str, Any]]], corpus: Sequence[str], chance: random.Random) -> Any:
    """Of each form and shape the share of planted items that the verdict names; alone, and within long texts."""
    found: dict[str, float] = {}
    for kind, every in items.items():
        numbers = chance.sample(range(len(every)), min(PLANTED, len(every)))
        for form, change in FORMS.items():
            for where in ("alone", "within"):
                texts = [change(printed(every[number])) for number in numbers]
                if where == "within":
                    around = (chance.choice(corpus)[:AROUND] for _ in range(2 * len(texts)))
                    texts = [f"{next(around)}\n{text}\n{next(around)}" for text in texts]
                wanted = [f"contaminated: {kind} item {number} " for number in numbers]
                reasons = judged(stage, texts)
                hits = sum(reason.startswith(want) for reason, want in zip(reasons, wanted, strict=True))
                found[f"{kind}, {form}, {where}"] = hits / len(texts)
    return found


def resemble(stage: Any, items: dict[str, list[dict[str, Any]]], make: Maker) -> dict[str, int]:
    """How many of PLANTED texts that only resemble word problems are filtered."""
    chance = make.chance
    questions = [item["question"] for item in chance.sample(items["problems"], min(PLANTED, len(items["problems"])))]
    texts = {
        "words in another order": [" ".join(chance.sample(q.split(), len(q.split()))) for q in questions],
        "sentences in another order": [". ".join(reversed(q.rstrip("?").split(". "))) for q in questions],
        "templates filled otherwise": [make.problem()["question"] for _ in questions],
        "first halves": [q[: len(q) // 2] for q in questions],
    }
    return {name: sum(map(bool, judged(stage, some))) for name, some in texts.items()}


def work(stage: dict[str, Any], paths: list[str], begin: Any, answers: Any) -> None:
    """One process of the rates."""
    from headrace.pipeline import Stage
    from headrace.stages.library import read_jsonl
    from headrace.stages.runtime import FragmentEnd, build_stage
    from headrace.store.ledger import UNBOUNDED, Gap

    begun = time.perf_counter()
    transform = build_stage(Stage.from_dict(stage), {})
    opened = time.perf_counter() - begun

    def batches() -> Iterator[Any]:
        source = build_stage(read_jsonl(",".join(paths)), {})
        for fragment in source.list():
            for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
                if not isinstance(item, FragmentEnd):
                    yield item

    held = list(batches())
    size = sum(batch.rows.column("text").nbytes for batch in held)
    transform.process(held[0])
    spent: list[tuple[float, float]] = []
    for given in (held, batches()):
        begin.wait()
        begun, cpu = time.perf_counter(), time.process_time()
        for batch in given:
            transform.process(batch)
        spent.append((time.perf_counter() - begun, time.process_time() - cpu))
    answers.put((opened, size, spent))


def rates(stage: Any, corpus: pathlib.Path, workers: int) -> dict[str, float]:
    """MB/s of text of all workers together."""
    paths = sorted(map(str, corpus.glob("*.jsonl")), key=os.path.getsize, reverse=True)
    shares = [paths[at : at + 1] if len(paths) >= workers else paths for at in range(workers)]
    ways = multiprocessing.get_context("spawn")
    begin, answers = ways.Barrier(workers), ways.SimpleQueue()
    processes = [ways.Process(target=work, args=(stage.to_dict(), share, begin, answers)) for share in shares]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    size = sum(one[1] for one in found) / MB
    answer = {"megabytes": size, "open_s": max(one[0] for one in found)}
    for place, name in enumerate(("stage", "read_and_stage")):
        answer[f"{name}_mb_s"] = size / max(one[2][place][0] for one in found)
        answer[f"{name}_mb_a_cpu_second"] = size / sum(one[2][place][1] for one in found)
    return answer


def measure(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    from headrace.stages.decontamination import compile_search
    from headrace.stages.library import decontaminate
    from headrace.stages.runtime import build_stage

    make = Maker(arguments.seed)
    items = {
        kind: [make_one(make) for _ in range(int(share * arguments.items))] for kind, (make_one, share) in KINDS.items()
    }
    for kind, every in items.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in every), encoding="utf-8")
    compile_search()
    clocks = [(time.perf_counter(), time.process_time())]
    stage = decontaminate([str(folder / f"{kind}.jsonl") for kind in items])
    clocks.append((time.perf_counter(), time.process_time()))
    built = build_stage(stage, {})
    clocks.append((time.perf_counter(), time.process_time()))
    size = sum(path.stat().st_size for path in (folder / "headrace" / "suites").glob("*.index"))
    corpus = [text for text, _ in zip(texts_of(arguments.corpus), range(arguments.clean), strict=False)]
    return {
        "items": sum(map(len, items.values())),
        **dict(built.facts()),
        **{f"declare_{name}": clocks[1][at] - clocks[0][at] for at, name in enumerate(("s", "cpu_s"))},
        **{f"index_{name}": clocks[2][at] - clocks[1][at] for at, name in enumerate(("s", "cpu_s"))},
        "index_bytes_an_item": size / max(1, built.index.items),
        **rates(stage, arguments.corpus, arguments.workers),
        "found": plant(stage, items, corpus, make.chance),
        "clean": len(corpus),
        "clean_filtered": sum(map(bool, judged(stage, corpus))),
        "resembling_filtered": resemble(stage, items, make),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path, help="a folder of JSON Lines with a field text")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clean", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        answer = measure(arguments, pathlib.Path(folder))
    if arguments.json:
        print(json.dumps(answer))
        return 0
    for name, value in answer.items():
        if isinstance(value, dict):
            for inner, figure in value.items():
                print(f"  {inner:50} {figure:10,.4g}")
        else:
            print(f"{name:30} {value if isinstance(value, (str, int)) else format(value, ',.2f'):>20}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
