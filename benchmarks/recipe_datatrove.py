"""datatrove's side of `recipe.py`, in an interpreter that has datatrove: one worker, told by its arguments what to do.

    python recipe_datatrove.py MODE FILE

It prints a line when it is warm, waits for one, and prints its result as JSON. MODE: `recipe` and `repetition` are
timed; `each` holds every filter against every text.
"""

import hashlib
import importlib.metadata  # noqa: F401 (datatrove uses it without importing it)
import json
import sys
import time
from collections.abc import Iterable, Iterator
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


def reason_against(chosen: Any, document: Document) -> str:
    """Why the filter drops the document, or nothing.

    datatrove raises on some texts (of no line, of no word); it is taken to drop them.
    """
    try:
        answer = chosen.filter(document)
    except ZeroDivisionError:
        return "ZeroDivisionError"
    return "" if answer is True else str(answer[1] if isinstance(answer, tuple) else answer)


def run(mode: str, read: Iterable[Document]) -> dict[str, Any]:
    stages = filters()
    if mode == "repetition":
        stages = {"gopher-repetition": stages["gopher-repetition"]}
    lost: dict[str, dict[str, str]] = {name: {} for name in stages}
    edited: dict[str, str] = {}
    for document in read:
        for name, stage in stages.items():
            text = document.text
            reason = reason_against(stage, document)
            if reason:
                lost[name][document.id] = reason
                if mode != "each":
                    break
            if mode == "each":
                if name == "c4-quality" and not reason:
                    edited[document.id] = hashlib.sha256(document.text.encode()).hexdigest()[:16]
                document.text = text
    return {"lost": lost, "edited": edited}


def main() -> None:
    mode, path = sys.argv[1:]
    for stage in filters().values():
        reason_against(stage, Document(text="The words of a line that warms it up. " * 40, id="warm"))
    # Alone, the filter is timed without reading.
    read = list(documents(path)) if mode == "repetition" else documents(path)
    print("ready", flush=True)
    sys.stdin.readline()
    begun, cpu = time.perf_counter(), time.process_time()
    found = run(mode, read)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, **found}), flush=True)


if __name__ == "__main__":
    main()
