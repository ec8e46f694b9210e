"""What runs in a Python that has datatrove and Ray: Headrace's stages in their runners, and a block of theirs in ours.

`python -m tests.kits.stages.peers datatrove|ray|blocks FOLDER`: reads `FOLDER/in.jsonl`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import headrace

STAGES = {
    "gopher": headrace.gopher_quality(words_min=20),
    "pii": headrace.redact_pii(),
}
BLOCK = "datatrove.pipeline.filters:GopherQualityFilter"
LIMITS = {"min_doc_words": 20}


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((folder / "in").iterdir()) for line in path.read_text().splitlines()]


def in_datatrove(folder: Path) -> None:
    from datatrove.executor.local import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.writers import JsonlWriter  # type: ignore[import-not-found]

    dropped = JsonlWriter(str(folder / "dropped"), compression=None)
    steps = [
        JsonlReader(str(folder / "in")),
        headrace.to_datatrove(STAGES["gopher"], exclusion_writer=dropped),
        headrace.to_datatrove(STAGES["pii"]),
        JsonlWriter(str(folder / "kept"), compression=None),
    ]
    LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir=str(folder / "logs")).run()


def in_ray(folder: Path) -> None:
    import ray  # type: ignore[import-untyped, unused-ignore]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    data: Any = ray.data.from_items(records_in(folder), override_num_blocks=2)
    found = data.map_batches(headrace.to_ray(STAGES["gopher"], verdicts=True), batch_format="pyarrow").take_all()
    (folder / "ray.json").write_text(json.dumps(found))


def blocks(folder: Path) -> None:
    stages = (
        headrace.read_jsonl(str(folder / "in")),
        headrace.datatrove_block(BLOCK, name="gopher", **LIMITS),
        headrace.write_documents(),
    )
    pipeline = headrace.Pipeline.chain("blocks", f"file://{folder}/out", *stages)
    seen = headrace.preview(pipeline, limit=1000)
    found = {reason: removed.count for reason, removed in seen.removed.items()}
    (folder / "blocks.json").write_text(json.dumps({"kept": seen.kept, "removed": found}))
    (folder / "alone.json").write_text(json.dumps(alone(records_in(folder))))


def alone(records: list[dict[str, Any]]) -> dict[str, int]:
    """What the block says without us."""
    from datatrove.data import Document  # type: ignore[import-not-found]
    from datatrove.pipeline.filters import GopherQualityFilter  # type: ignore[import-not-found]

    block, found = GopherQualityFilter(**LIMITS), dict[str, int]()
    for record in records:
        answer = block.filter(Document(text=record["text"], id=record["id"]))
        reason = "" if answer is True else f"gopher/{answer[1]}"
        found[reason] = found.get(reason, 0) + 1
    return found


if __name__ == "__main__":
    {"datatrove": in_datatrove, "ray": in_ray, "blocks": blocks}[sys.argv[1]](Path(sys.argv[2]))
