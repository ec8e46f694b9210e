"""What a saved state means for a loader: what is read from here on, and the journal that says how it came to that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from headrace.loader.dataset import Source, Sources, known_parts, refuse_growth
from headrace.loader.order import (
    CONSTRUCTION,
    SCHEDULE,
    Cut,
    Difference,
    Event,
    Grew,
    Growth,
    LoaderError,
    Mixture,
    OrderMode,
    Recut,
    Revised,
    Reweighted,
    SampleLayout,
    Shuffle,
    StateMismatch,
    versions_at,
)
from headrace.loader.state.state import check_state, parse_journal, require_format, unpacked

#: what becomes of a state whose dataset has more shards by now
Grown: TypeAlias = Literal["refuse", "finish"]


@dataclass(frozen=True, slots=True, eq=False)
class Resumption:
    """What a loader reads: `sources`, as a dataset was that grew, and all of it `later`, from the next pass on."""

    sources: Sources
    later: Sources | None
    shuffle: Shuffle
    cut: Cut
    #: of a mixture's pass, where the caller gave a number
    pass_samples: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """Where a state stands, and what is read from there on."""

    sources: Sources
    later: Sources | None
    mixture: Mixture
    events: tuple[Event, ...]
    pass_: int
    position: int
    step: int
    #: the last states over what the dataset was before, each time that it grew
    before: tuple[Mapping[str, Any], ...]


def resume(state: Mapping[str, Any], ours: Resumption, grown: Grown) -> Resumed:
    """What `state` means here. Raises DatasetGrew, StateMismatch, LoaderError."""
    if grown not in get_args(Grown):
        raise ValueError(f'grown is "refuse" or "finish", got {grown!r}')
    require_format(state)
    state = unpacked(state)
    everything = ours.later or ours.sources
    if ours.later is not None and state.get("layout_root") == ours.sources.datasets[0].layout.root:
        # the pass that is being finished: the choice was made
        parts = ours.sources.datasets
    else:
        parts = known_parts(everything.datasets, state)
    layouts = [part.layout for part in parts]
    if len(layouts) == 1:
        samples = layouts[0].samples
    else:
        samples = ours.pass_samples or pass_samples_of(layouts, parse_journal(state.get("journal")))
    place = check_state(state, binding_of(everything, layouts, ours.shuffle, samples))
    if grown == "refuse" and parts is not ours.sources.datasets:
        refuse_growth(parts, everything.datasets)
    absolute = place.pass_ * samples + place.position
    sources, later, events = everything, None, place.events
    if len(layouts) > 1:
        events += tuple(
            Grew(absolute, number, part.layout.samples, part.layout.root)
            for number, (part, dataset) in enumerate(zip(parts, everything.datasets, strict=True))
            if part is not dataset
        )
    elif parts is ours.sources.datasets:
        sources, later = ours.sources, ours.later
    elif parts[0] is not everything.datasets[0]:
        sources = Sources([Source(parts[0], everything.weights[0], everything.names[0])])
        later = everything
    events += _revised(absolute, events, sources.versions)
    cuts = [event for event in events if isinstance(event, Recut)]
    if not cuts or cuts[-1].cut != ours.cut:
        events += (Recut(absolute, place.step, ours.cut),)
    mixture = mixture_of(sources, ours.shuffle, sources.weights, samples, events)
    return Resumed(
        sources, later, mixture, events, place.pass_, place.position, place.step, tuple(state.get("before", ()))
    )


def _revised(position: int, events: tuple[Event, ...], versions: tuple[int, ...]) -> tuple[Event, ...]:
    """That from here on the datasets are read at other versions. Raises StateMismatch for older ones, LoaderError."""
    read = versions_at(position, events)
    if read == versions:
        return ()
    if read is not None:
        if len(read) != len(versions):
            raise LoaderError(f"the journal names {len(read)} versions of {len(versions)} datasets: use another state")
        # an older version would show again what was retracted
        older = [Difference("version", *pair) for pair in zip(read, versions, strict=True) if pair[0] > pair[1]]
        if older:
            raise StateMismatch(older)
    return (Revised(position, versions),)


def pass_samples_of(layouts: Sequence[SampleLayout], events: Sequence[Event]) -> int:
    """The samples of a pass where nobody gave a number: those that all sources had when the journal began.

    Raises LoaderError for an event that names no source.
    """
    samples = [layout.samples for layout in layouts]
    for event in reversed([event for event in events if isinstance(event, Grew)]):
        _require_source(event, len(samples))
        samples[event.source] = event.samples
    return sum(samples)


def mixture_of(
    sources: Sources, shuffle: Shuffle, weights: Sequence[float], samples: int, events: Sequence[Event]
) -> Mixture:
    """The sequence over `sources` with passes of `samples`, as the journal's events changed it.

    Raises LoaderError for events that name no source, StateMismatch where a source does not begin with the shards
    that it had.
    """
    count = len(sources.datasets)
    changes = [event for event in events if isinstance(event, Reweighted)]
    if any(len(change.weights) != count for change in changes):
        raise LoaderError(f"the state's journal has weights of other than {count} sources")
    grown = [_growth(sources, event) for event in events if isinstance(event, Grew)]
    return Mixture([one.layout for one in sources.datasets], shuffle, weights, samples, changes, grown)


def _require_source(event: Grew, sources: int) -> None:
    if sources == 1 or event.source >= sources:
        raise LoaderError(f"the state's journal says that source {event.source} of a mixture grew; there are {sources}")


def _growth(sources: Sources, event: Grew) -> Growth:
    _require_source(event, len(sources.datasets))
    before = sources.layout_before(event.source, event.samples, event.layout_root)
    if before is None:
        ours = sources.datasets[event.source].layout
        raise StateMismatch(
            [
                Difference(
                    f"sources[{event.source}] before position {event.position}",
                    f"{event.samples} samples of the root {event.layout_root}",
                    f"{ours.samples} samples that do not begin so",
                )
            ]
        )
    return Growth(event.position, event.source, before)


def binding_of(sources: Sources, layouts: Sequence[SampleLayout], shuffle: Shuffle, samples: int) -> dict[str, Any]:
    """What fixes the order of samples, as a state holds it: over these layouts, in passes of `samples`."""
    first = sources.datasets[0]
    manifest = first.manifest
    windowed = shuffle.mode is OrderMode.WINDOWED
    binding: dict[str, Any] = {
        "dataset": manifest.dataset,
        "uri": first.store.uri,
        "layout_root": layouts[0].root,
        "samples": samples,
        "tokenizer": manifest.tokenizer,
        "seq_len": manifest.seq_len,
        "seed": shuffle.seed,
        "order": {
            "mode": shuffle.mode.value,
            "construction": CONSTRUCTION,
            "window_blocks": shuffle.window_blocks if windowed else None,
            "block_rows": shuffle.block_rows if windowed else None,
        },
    }
    if len(layouts) > 1:
        binding["schedule"] = SCHEDULE
        binding["weights"] = list(sources.weights)
        binding["sources"] = [
            {"name": name, "uri": dataset.store.uri, "layout_root": layout.root, "samples": layout.samples}
            for name, dataset, layout in zip(sources.names, sources.datasets, layouts, strict=True)
        ]
    return binding
