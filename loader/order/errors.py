"""The ways a loader can fail; what the store reports stays the store's (`headrace.store`)."""

from collections.abc import Sequence
from dataclasses import dataclass


class LoaderError(Exception):
    """The base of every error that `headrace.loader` raises for reasons outside its caller's code."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which a saved state and this loader disagree."""

    field: str
    theirs: object
    ours: object

    def __str__(self) -> str:
        return f"{self.field}: the state has {self.theirs!r}, this loader has {self.ours!r}"


class StateMismatch(LoaderError):  # noqa: N818 - named after what is so
    """A saved state belongs to another order of samples; `differences` say in what."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        lines = "".join(f"\n  {difference}" for difference in self.differences)
        super().__init__(
            f"the state was saved over another order of samples; what differs:{lines}\n"
            "open the dataset and the arguments that it was saved with, or start a pass of its own without it"
        )


@dataclass(frozen=True, slots=True)
class SourceGrew:
    """A dataset, the `source`-th of a mixture, that has more by now: (shards, samples) as a state knows it, and now."""

    source: int
    uri: str
    known: tuple[int, int]
    now: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"{self.uri} has {self.now[0]} shards of {self.now[1]} samples, and the state was saved over the first "
            f"{self.known[0]} of {self.known[1]} samples"
        )


class DatasetGrew(StateMismatch):
    """A saved state belongs to the first shards of a dataset, or of some of a mixture's, which has more by now."""

    def __init__(self, grown: Sequence[SourceGrew], sources: int) -> None:
        self.grown, self.sources = tuple(grown), sources
        self.differences = tuple(
            Difference(f"sources[{one.source}].{field}" if sources > 1 else field, known, now)
            for one in grown
            for field, known, now in zip(("shards", "samples"), one.known, one.now, strict=True)
        )
        super(StateMismatch, self).__init__(self._said())

    def _said(self) -> str:
        if self.sources == 1:
            return (
                f'{self.grown[0]}; load_state_dict(state, grown="finish") reads these to the end of the pass, and all '
                "of them from the next pass on"
            )
        lines = "".join(f"\n  sources[{one.source}]: {one}" for one in self.grown)
        return (
            f"{len(self.grown)} of the {self.sources} sources have more shards than the state knows:{lines}\n"
            'load_state_dict(state, grown="finish") reads what it knows to the end of the pass that each source is in, '
            "and all of it from that source's next pass on"
        )

    def __reduce__(self) -> tuple[type["DatasetGrew"], tuple[tuple[SourceGrew, ...], int]]:
        return type(self), (self.grown, self.sources)


class LoaderClosed(LoaderError):  # noqa: N818 - named after what is so
    """The iteration was ended from outside: by `close`, by `load_state_dict`, or by a newer iteration."""
