"""Two versions of a pipeline over some fragments of its dataset, and what becomes otherwise of their records.

Each version runs in a process of its own on this machine: two texts of one module need two, and a record that kills its
process ends no command. Nothing is written. The fragments are chosen by the hash of their ids, so that another look at
the same dataset, or at one that has grown, chooses the same ones.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headrace.daemon import said_aside
from headrace.pipeline import Pipeline, PipelineError, StageKind
from headrace.stages.runtime import ROW, Batch, FragmentEnd, ordinals_of, reason_class
from headrace.stages.shipping import SAMPLE_CHARACTERS_MAX
from headrace.stages.sinks import fates_by_record
from headrace.store.ledger import UNBOUNDED, Fragment, Gap, LedgerState, main_sink
from headrace.worker.rebuild.shard_rebuild import path_between
from headrace.worker.task import Chain

#: Records that are judged at most, and of each kind of difference, records that are shown.
RECORDS_MAX = 100_000
SAMPLES_MAX = 3
KEPT, OTHER_TEXT = "kept", "kept, other text"

#: The number of the fragment among those chosen, and the ordinal.
Place = tuple[int, int]


class CanaryError(PipelineError):
    """A version could not judge the records; the message says which one, and why."""


@dataclass(slots=True)
class Judged:
    """What one version made of the records: fates, ids and texts by place; of what is kept a hash, too."""

    fates: dict[Place, str] = field(default_factory=dict[Place, str])
    kept: dict[Place, int] = field(default_factory=dict[Place, int])
    ids: dict[Place, str] = field(default_factory=dict[Place, str])
    #: As they were read, and as they were kept.
    texts: dict[Place, str] = field(default_factory=dict[Place, str])
    texts_kept: dict[Place, str] = field(default_factory=dict[Place, str])


@dataclass(frozen=True, slots=True)
class ChangedSample:
    """A record whose fate or text is another one; `text_kept` is what the next version makes of its text."""

    id: str
    source: str
    row: int
    text: str
    text_kept: str = ""


@dataclass(slots=True)
class Canary:
    """What two versions make of the same records. `whole`: all records of the chosen fragments were judged."""

    fragments: int
    fragments_known: int
    records: int = 0
    whole: bool = True
    #: By fate before and after: "kept", "kept, other text", or verdict, stage and reason.
    changed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    samples: dict[tuple[str, str], list[ChangedSample]] = field(
        default_factory=dict[tuple[str, str], list[ChangedSample]]
    )


def chosen(fragments: Iterable[Fragment], share: float) -> list[Fragment]:
    """About this share (0 to 1) of the fragments, in the order of their hashes; one at least, where there is one."""
    ranked = sorted((xxhash.xxh3_64_intdigest(b"canary" + item.id), item.id, item) for item in fragments)
    below = sum(number < share * 2.0**64 for number, _, _ in ranked)
    return [item for _, _, item in ranked[: max(1, below)]]


def compare_versions(
    state: LedgerState, before: Pipeline, after: Pipeline, share: float, records_max: int = RECORDS_MAX
) -> Canary:
    """Have both versions judge some fragments of the dataset with this ledger. Raises CanaryError.

    It runs the code of both, with this process's rights.
    """
    for pipeline in (before, after):
        if pipeline.stateful:
            raise CanaryError(
                f"stage {pipeline.stateful[0].name!r} remembers what it has seen: what it says of some fragments says "
                "nothing of all; a canary needs a pipeline without such a stage"
            )
    sink = main_sink(state.counts) or after.of_kind(StageKind.SINK)[0].name
    known = [one.fragment for one in state.fragments.values() if one.dropped is None]
    if not known:
        raise CanaryError("the dataset has no input yet that both versions could judge: try again when it has")
    fragments = [state.as_it_stands(item) for item in chosen(known, share)]
    was, now = _both(before, after, fragments, sink, records_max)
    found = Canary(len(fragments), len(known), len(was.fates), len(was.fates) < records_max)
    note_changes(was, now, fragments, found)
    return found


def note_changes(was: Judged, now: Judged, fragments: Sequence[Fragment], found: Canary) -> None:
    """Add to `found` each record of which the two say something else."""
    for place in sorted(was.fates.keys() | now.fates.keys()):
        kind = (was.fates.get(place, "absent"), now.fates.get(place, "absent"))
        if kind == (KEPT, KEPT) and was.kept[place] != now.kept[place]:
            kind = (KEPT, OTHER_TEXT)
        if kind[0] == kind[1]:
            continue
        found.changed[kind] += 1
        held = found.samples.setdefault(kind, [])
        if len(held) < SAMPLES_MAX:
            name = was.ids.get(place) or now.ids.get(place, "")
            text = was.texts.get(place) or now.texts.get(place, "")
            kept = now.texts_kept.get(place, "")
            source = fragments[place[0]].uri
            held.append(ChangedSample(name, source, place[1], text, kept if kept != text else ""))


def judge(pipeline: Pipeline, fragments: Sequence[Fragment], sink: str, records_max: int) -> Judged:
    """What a pipeline makes of the first records of these fragments, in this process.

    Raises PipelineError, InputError, StageContractError, and what its stages raise at their beginning.
    """
    found = Judged()
    chains: dict[str, Chain] = {}
    for number, fragment in enumerate(fragments):
        if fragment.stage not in chains:
            chains[fragment.stage] = Chain(pipeline, path_between(pipeline, fragment.stage, sink)[:-1])
        chain = chains[fragment.stage]
        for batch in chain.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if isinstance(batch, FragmentEnd):
                break
            _note(found, number, batch, chain.process(batch), records_max)
            if len(found.fates) >= records_max:
                return found
    return found


def _note(found: Judged, number: int, read: Batch, behind: Batch, records_max: int) -> None:
    """Note the fates of a batch, up to so many in all."""
    texts = _texts(read)
    for row, raw in zip(_ordinals(read.verdicts, "row"), read.verdicts.column("raw").to_pylist(), strict=True):
        texts.setdefault(row, (raw or b"")[: 4 * SAMPLE_CHARACTERS_MAX].decode("utf-8", "replace"))
    lost = fates_by_record(behind)
    fates = {row: f"{verdict} {stage}/{reason_class(reason)}" for row, (stage, verdict, reason) in lost.items()}
    hashes: dict[int, int] = {}
    for row, data in _contents(behind):
        # As in a diff: of a record that was split the texts of all parts together.
        hashes[row] = (hashes.get(row, 0) + xxhash.xxh3_64_intdigest(data)) % 2**64
    texts_kept = _texts(behind)
    ids = _ids(read) | _ids(behind)
    for row in range(read.first, read.first + read.count)[: records_max - len(found.fates)]:
        place = (number, row)
        if row in hashes:
            found.fates[place], found.kept[place] = KEPT, hashes[row]
            found.texts_kept[place] = texts_kept.get(row, "")
        elif row in fates:
            found.fates[place] = fates[row]
        else:
            continue
        found.ids[place], found.texts[place] = ids.get(row, ""), texts.get(row, "")


def _contents(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Of each row that is kept its ordinal and its tokens, else its text."""
    rows = _ordinals(batch.rows, ROW)
    names = batch.rows.schema.names
    if "tokens" in names:
        lists: Any = batch.rows.column("tokens")
        offsets, values = np.asarray(lists.offsets), np.asarray(lists.values)
        yield from ((row, values[offsets[at] : offsets[at + 1]].tobytes()) for at, row in enumerate(rows))
        return
    texts: list[Any] = batch.rows.column("text").to_pylist() if "text" in names else [""] * len(rows)
    yield from ((row, str(text or "").encode("utf-8", "surrogatepass")) for row, text in zip(rows, texts, strict=True))


def _texts(batch: Batch) -> dict[int, str]:
    """The beginning of the text of each record; of a split one that of its first part."""
    found: dict[int, str] = {}
    if "text" in batch.rows.schema.names:
        rows = _ordinals(batch.rows, ROW)
        for row, text in zip(rows, batch.rows.column("text").to_pylist(), strict=True):
            found.setdefault(row, str(text or "")[:SAMPLE_CHARACTERS_MAX])
    return found


def _ordinals(table: pa.RecordBatch, column: str) -> list[int]:
    found: list[int] = ordinals_of(table.column(column)).tolist()
    return found


def _ids(batch: Batch) -> dict[int, str]:
    found: dict[int, str] = {}
    for table, column in ((batch.verdicts, "row"), (batch.rows, ROW)):
        names: list[Any] = table.column("id").to_pylist()
        found.update(zip(_ordinals(table, column), names, strict=True))
    return found


def _both(
    before: Pipeline, after: Pipeline, fragments: Sequence[Fragment], sink: str, records_max: int
) -> tuple[Judged, Judged]:
    """What each says, in processes of their own, at the same time. Raises CanaryError."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        running: list[tuple[str, Any, Connection]] = []
        for words, pipeline in (("in force", before), ("asked for", after)):
            mine, other = context.Pipe(duplex=False)
            given = (other, pipeline.to_dict(), list(fragments), sink, records_max)
            process = context.Process(target=_judge_there, args=given)
            process.start()
            stack.callback(_ended, process)
            other.close()
            running.append((words, process, mine))
        said = [_said(*one) for one in running]
    return said[0], said[1]


def _said(words: str, process: Any, answers: Connection) -> Judged:
    try:
        answer: Judged | str = answers.recv()
    except EOFError:
        process.join()
        how = f"by signal {-process.exitcode}" if process.exitcode < 0 else f"with exit code {process.exitcode}"
        raise CanaryError(f"the process of the version {words} ended {how} while it judged the records") from None
    if not isinstance(answer, Judged):
        raise CanaryError(f"the version {words} could not judge the records: {answer}")
    return answer


def _ended(process: Any) -> None:
    process.terminate()
    process.join()


def _judge_there(
    answers: Connection, pipeline: Mapping[str, Any], fragments: Sequence[Fragment], sink: str, records_max: int
) -> None:
    """The main function of a version's process. Standard output is the command's, whose answer others may read."""
    try:
        with said_aside():
            answer: Judged | str = judge(Pipeline.from_dict(pipeline), fragments, sink, records_max)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is said, and ends nothing else
        answer = f"{type(error).__name__}: {error}"
    answers.send(answer)
