"""datatrove's side of `recipe.py`, in an interpreter that has datatrove: one worker, told by its arguments what to do.

    python recipe_datatrove.py MODE FILE

It prints a line when it is warm, waits for one, and prints its result as JSON. MODE: `recipe` and `repetition` are
timed; `each` holds every filter against every text.
"""

import importlib.metadata  # noqa: F401 (datatrove uses it without importing it)
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)


def filters() -> dict[str, Any]:
    return {
        "gopher-repetition": GopherRepetitionFilter(),
        "gopher-quality": GopherQualityFilter(),
        "c4-quality": C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb-quality": FineWebQualityFilter(),
    }


def documents(path: str) -> Iterator[Document]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield Document(text=record["text"], id=str(record["id"]))


def keeps(chosen: Any, document: Document) -> bool:
    """datatrove raises on some texts (of no line, of no word); it is taken to drop them."""
    try:
        return chosen.filter(document) is True
    except ZeroDivisionError:
        return False


def run(mode: str, path: str) -> dict[str, Any]:
    stages = filters()
    if mode == "repetition":
        stages = {"gopher-repetition": stages["gopher-repetition"]}
    lost: dict[str, list[str]] = {name: [] for name in stages}
    for document in documents(path):
        for name, stage in stages.items():
            text = document.text
            if not keeps(stage, document):
                lost[name].append(document.id)
                if mode != "each":
                    break
            if mode == "each":
                document.text = text
    return lost


def main() -> None:
    mode, path = sys.argv[1:]
    for stage in filters().values():
        keeps(stage, Document(text="The words of a line that warms it up. " * 40, id="warm"))
    print("ready", flush=True)
    sys.stdin.readline()
    begun, cpu = time.perf_counter(), time.process_time()
    lost = run(mode, path)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "lost": lost}), flush=True)


if __name__ == "__main__":
    main()
