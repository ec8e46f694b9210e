"""`headrace dataset blame`: from spikes of a loss to the documents that its steps read, and what these share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.commands.dataset.blame_texts import ENCODING, Texts, edges_of, has_broken_encoding
from headrace.cli.commands.maintenance import loader_state_in, sources_of
from headrace.cli.ui import FAINT, console, plain_table, print_json, safe, title
from headrace.client import CliError
from headrace.loader import Trace
from headrace.loader.blame import (
    LOSSES_BYTES_MAX,
    ORDER,
    REPEATED,
    WORDS,
    Cause,
    Evidence,
    Losses,
    LossesError,
    ProfiledRead,
    ReadDocument,
    Spike,
    collect,
    find_spikes,
    parse_losses,
    rank_causes,
    traits,
)
from headrace.loader.order import Event, Grew, LoaderError, Recut, Revised, Reweighted, Skipped
from headrace.store import counted

#: Steps before a spike in which a change of world, version or weights may have made it.
CHANGE_STEPS = 20
#: Causes, documents and spikes that are shown; characters of a text; `--json` has all that were found.
CAUSES_SHOWN, DOCUMENTS_SHOWN, SPIKES_SHOWN = 8, 5, 10
CHARACTERS_SHOWN = 300
#: Documents whose properties are worked out: as many of spikes, and as many others.
DOCUMENTS_MAX = 4000


@dataclass(frozen=True, slots=True)
class BlameQuestion:
    """What the command line asks."""

    uri: str
    checkpoint: str
    losses: str
    columns: Sequence[str] = ()
    offset: int = 0
    before: int = 1
    height: float = 6.0
    moved: Sequence[str] = ()
    trusted: bool = False
    tokenizer: str = ""


@dataclass(slots=True)
class Diagnosis:
    """What was found."""

    spikes: list[Spike]
    notes: list[str]
    causes: list[Cause] = field(default_factory=list[Cause])
    documents: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    changes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    proposals: list[str] = field(default_factory=list[str])


def blame_dataset(question: BlameQuestion, *, as_json: bool) -> int:
    """Find spikes and what their steps have in common; the exit code. Raises CliError."""
    found = diagnose(question)
    if as_json:
        plain = asdict(found)
        for spike in plain["spikes"]:
            spike |= {name: value if math.isfinite(value) else None for name, value in spike.items()}
        print_json(plain)
    else:
        _print(found)
    return 0


def diagnose(question: BlameQuestion) -> Diagnosis:
    """All of it. Raises CliError."""
    losses = _losses(question)
    spikes = find_spikes(losses, question.height)
    found = Diagnosis(spikes, list(losses.notes))
    if not spikes:
        return found
    state = loader_state_in(question.checkpoint)
    try:
        sources = sources_of(question.checkpoint, state, question.uri, question.moved, trusted=question.trusted)
        trace = Trace(state, sources)
        evidence = collect(trace, spikes, losses.step.tolist(), question.before)
    except IndexError as error:
        raise CliError(str(error)) from error
    except LoaderError as error:
        raise CliError(f"{question.checkpoint!r}: {error}") from error
    found.notes += evidence.notes
    if not evidence.others:
        found.notes.append("no other step is known to compare with: give losses of more steps")
    _compare(found, trace, evidence, question.tokenizer)
    found.changes = _changes(trace, spikes)
    found.proposals = _proposals(found, evidence, question)
    return found


def _losses(question: BlameQuestion) -> Losses:
    path = question.losses
    try:
        with Path(path).open("rb") as file:
            data = file.read(LOSSES_BYTES_MAX + 1)
        if len(data) > LOSSES_BYTES_MAX:
            raise CliError(f"{path!r} is above {LOSSES_BYTES_MAX >> 20} MiB: export fewer steps")
        losses = parse_losses(data.decode("utf-8-sig"), question.columns)
    except OSError as error:
        raise CliError(f"cannot read the losses {path!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path!r} is no text in UTF-8: export the losses as CSV") from error
    except LossesError as error:
        raise CliError(f"{path!r}: {error}") from error
    step = losses.step - question.offset
    inside = step >= 0
    notes = losses.notes
    if not inside.all():
        notes = (*notes, f"{int((~inside).sum())} steps lie before step {question.offset}, the loader's first")
    return Losses(step[inside], losses.loss[inside], notes)


def _compare(found: Diagnosis, trace: Trace, evidence: Evidence, tokenizer: str) -> None:
    """Fill in causes and documents."""
    odd = _once(one for one in evidence.documents if one.spike >= 0)[:DOCUMENTS_MAX]
    usual = _once(one for one in evidence.documents if one.spike < 0)[:DOCUMENTS_MAX]
    of_tokens = traits([one.tokens for one in usual], [one.tokens for one in odd])
    texts = Texts(trace.places, tokenizer)
    shown = texts.of([*usual, *odd])
    if texts.problem:
        found.notes.append(f"texts cannot be shown: {texts.problem}")
    properties: dict[tuple[int, int], set[tuple[str, str]]] = {}
    for one, traits_here, text in zip([*usual, *odd], of_tokens, shown, strict=True):
        here = properties.setdefault((one.piece.shard, one.piece.document), set())
        here |= {("property", name) for name in traits_here} | set(texts.known(one))
        if text is not None and has_broken_encoding(text):
            here.add(("property", ENCODING))
            # letters that were broken are tokens that the rest has not, which says no more
            here -= {("property", WORDS), ("property", ORDER)}
    for one, names in zip([*usual, *odd], edges_of(texts, [*usual, *odd], shown), strict=True):
        properties[one.piece.shard, one.piece.document] |= {("edge", name) for name in names}
    documents = [*((one, -1) for one in usual), *((one, one.spike) for one in odd)]
    found.causes = rank_causes(
        [ProfiledRead(spike, frozenset(properties[one.piece.shard, one.piece.document])) for one, spike in documents]
    )
    found.documents = _documents(
        found.causes, evidence, properties, dict(zip(map(id, [*usual, *odd]), shown, strict=True)), odd
    )


def _once(documents: Iterable[ReadDocument]) -> list[ReadDocument]:
    """Each document of each spike once: the longest piece of it that was read there."""
    held: dict[tuple[int, int, int], ReadDocument] = {}
    for one in documents:
        key = (one.spike, one.piece.shard, one.piece.document)
        if key not in held or held[key].piece.length < one.piece.length:
            held[key] = one
    return list(held.values())


def _documents(
    causes: Sequence[Cause],
    evidence: Evidence,
    properties: dict[tuple[int, int], set[tuple[str, str]]],
    texts: dict[int, str | None],
    odd: Sequence[ReadDocument],
) -> list[dict[str, Any]]:
    """The documents of the spikes, those with the likeliest cause and in most spikes first."""
    elsewhere = {(one.piece.shard, one.piece.document) for one in evidence.documents if one.spike < 0}
    weight = {(cause.kind, cause.value): cause.score for cause in causes}
    spikes: dict[tuple[int, int], set[int]] = {}
    for one in odd:
        spikes.setdefault((one.piece.shard, one.piece.document), set()).add(one.spike)

    def rank(one: ReadDocument) -> tuple[float, ...]:
        key = (one.piece.shard, one.piece.document)
        likely = max((weight.get(each, 0.0) for each in properties[key]), default=0.0)
        return (-likely, key in elsewhere, -len(spikes[key]), -one.piece.length)

    found: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    for one in sorted(odd, key=rank):
        key = (one.piece.shard, one.piece.document)
        if key in seen or len(found) == 100:
            continue
        seen.add(key)
        found.append(
            {
                **one.facts,
                "dataset": one.piece.source,
                "shard": one.piece.tokens_key,
                "spikes": sorted(spikes[key]),
                "step": one.step,
                "tokens": one.piece.length,
                "causes": sorted(value for kind, value in properties[key] if (kind, value) in weight),
                "text": (texts.get(id(one)) or "")[:CHARACTERS_SHOWN] or None,
            }
        )
    return found


def _changes(trace: Trace, spikes: Sequence[Spike]) -> list[dict[str, Any]]:
    """What the journal says of a few steps before each spike; the first cut of a run is no change."""
    journal = [(step, event) for step, event in trace.journal() if step > 0]
    return [
        {"spike": number, "step": step, "change": said_of(event)}
        for number, spike in enumerate(spikes)
        for step, event in journal
        if spike.first - CHANGE_STEPS <= step <= spike.first
    ]


def said_of(event: Event) -> str:
    """An event of the journal for people."""
    match event:
        case Recut(cut=cut):
            return f"the world is of {cut.world_size} ranks with {cut.batch_size} sequences each"
        case Revised(versions=versions):
            return f"the datasets are read at version {', '.join(map(str, versions))}"
        case Reweighted(weights=weights):
            return f"the weights are {', '.join(f'{weight:g}' for weight in weights)}"
        case Skipped(count=count):
            return f"{count} positions are skipped"
        case Grew(source=source):
            return f"source {source} has grown"


def _proposals(found: Diagnosis, evidence: Evidence, question: BlameQuestion) -> list[str]:
    lines: list[str] = []
    uri = question.uri or "URI"
    best = found.causes[0] if found.causes else None
    if best is None and found.changes:
        lines.append("nothing in the documents stands out; look at the changes of the journal first")
    if best is not None:
        lines.append(_remedy(best, uri, found.documents))
    for number, steps in enumerate(evidence.steps[:SPIKES_SHOWN]):
        positions = [one.piece.position for one in evidence.documents if one.spike == number]
        if positions:
            first, count = min(positions), max(positions) - min(positions) + 1
            lines.append(
                f"skip: load a state from before step {steps[0]}, then loader.skip({first}, {count}) on each rank"
            )
    return lines


def _remedy(cause: Cause, uri: str, documents: Sequence[dict[str, Any]]) -> str:
    """What to do about a cause."""
    ids = " ".join(str(one["id"]) for one in documents if cause.value in one["causes"])[:200]
    match cause.kind, cause.value:
        case "source", source:
            return f"retract: headrace dataset retract {uri} --source {source}"
        case "property", text if text == REPEATED:
            return "rule: dedup_passages(INDEX) in the next recipe, or headrace dataset dedup"
        case "property", text if text == ENCODING:
            return "rule: filter_records() against broken letters in the next recipe, or mend the source's encoding"
        case "edge", limit:
            return f"rule: a stricter limit, {limit}, in the next recipe"
        case "round" | "recipe", made:
            return f"look at what came in with {made}: headrace dataset log {uri}; go back with dataset rollback"
        case "dataset", name:
            return f"weights: loader.reweight() with less of {name}"
        case _:
            return f"retract: headrace dataset retract {uri} {ids}" if ids else f"look at {cause.value}"


def _print(found: Diagnosis) -> None:
    out = console()
    if not found.spikes:
        out.print(title("losses", "no loss stands out", good=True))
    else:
        out.print(title("losses", f"{counted(len(found.spikes), 'spike')}", good=False))
        rows = [
            (f"{s.first} to {s.last}", f"{s.loss:.4g}", f"{s.usual:.4g}", f"{s.height:.1f}")
            for s in found.spikes[:SPIKES_SHOWN]
        ]
        out.print(plain_table(("steps", "loss", "usual", "deviations"), rows, right=(1, 2, 3)))
        causes = [
            (f"{at}. {c.kind}", safe(c.value), f"{c.hits} of {c.among}", f"{c.usual} of {c.rest}", f"{c.times:,.1f}")
            for at, c in enumerate(found.causes[:CAUSES_SHOWN], 1)
        ]
        out.print()
        if causes:
            head = ("cause", "", "in spikes", "elsewhere", "times as often")
            out.print(plain_table(head, causes, right=(2, 3, 4)))
        else:
            out.print("  no cause stands out from chance", style=FAINT)
        for one in found.documents[:DOCUMENTS_SHOWN]:
            where = f"{one.get('source', '')} record {one.get('row', '')}"
            out.print(f"\n  {safe(str(one.get('id')))}  step {one['step']}  {safe(where)}", markup=False)
            if one["text"]:
                out.print(f"    {safe(one['text'])}", style=FAINT, markup=False)
        for change in found.changes[:SPIKES_SHOWN]:
            out.print(f"  step {change['step']}: {safe(change['change'])}", markup=False)
        for line in found.proposals:
            out.print(f"  {safe(line)}", markup=False)
    for note in found.notes:
        out.print(f"  {safe(note)}", style=FAINT, markup=False)
