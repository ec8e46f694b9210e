"""What a saved state means for a loader: what is read from here on, and the journal that says how it came to that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from headrace.loader import Difference, StateMismatch
from headrace.loader.dataset import Source, Sources, known_parts, refuse_growth
from headrace.loader.order import Cut, Event, Grew, Mixture, Recut, Revised, Shuffle, versions_at
from headrace.loader.state.sequence import binding_of, mixture_of, pass_samples_of
from headrace.loader.state.state import check_state, parse_journal, require_format, unpacked

#: what becomes of a state whose dataset has more shards by now
Grown: TypeAlias = Literal["refuse", "finish"]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
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
    #: the last state over what the dataset was before
    before: Mapping[str, Any] | None


def resume(state: Mapping[str, Any], ours: Reading, grown: Grown) -> Resumed:
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
    return Resumed(sources, later, mixture, events, place.pass_, place.position, place.step, state.get("before"))


def _revised(position: int, events: tuple[Event, ...], versions: tuple[int, ...]) -> tuple[Event, ...]:
    """That from here on the datasets are read at other versions. Raises StateMismatch for older ones."""
    read = versions_at(position, events)
    if read == versions:
        return ()
    if read is not None:
        # an older version would show again what was retracted
        older = [Difference("version", *pair) for pair in zip(read, versions, strict=True) if pair[0] > pair[1]]
        if older:
            raise StateMismatch(older)
    return (Revised(position, versions),)
