"""From datasets, arguments and a journal to the sequence that is read: what fixes it, and the sequence itself."""

from collections.abc import Sequence
from typing import Any

from headrace.loader import Difference, LoaderError, StateMismatch
from headrace.loader.dataset import Sources
from headrace.loader.order import (
    CONSTRUCTION,
    SCHEDULE,
    Event,
    Grew,
    Growth,
    Layout,
    Mixture,
    OrderMode,
    Reweighted,
    Shuffle,
)


def pass_samples_of(layouts: Sequence[Layout], events: Sequence[Event]) -> int:
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


def binding_of(sources: Sources, layouts: Sequence[Layout], shuffle: Shuffle, samples: int) -> dict[str, Any]:
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
