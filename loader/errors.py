"""The ways a loader can fail; what the store reports stays the store's (`headrace.store.errors`)."""

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
            f"the state was saved over another order of samples, {len(self.differences)} fields differ:{lines}\n"
            "open the dataset and the arguments that it was saved with, or start a pass of its own without it"
        )


class DatasetGrew(StateMismatch):
    """A saved state belongs to the first shards of this dataset, which has more by now."""

    def __init__(self, uri: str, known: tuple[int, int], now: tuple[int, int]) -> None:
        self.uri, self.known, self.now = uri, known, now
        pairs = zip(("shards", "samples"), known, now, strict=True)
        self.differences = tuple(Difference(*pair) for pair in pairs)
        Exception.__init__(
            self,
            f"{uri} has {now[0]} shards of {now[1]} samples, and the state was saved over the first {known[0]} of "
            f'{known[1]} samples; load_state_dict(state, grown="finish") reads these to the end of the pass, and all '
            "of them from the next pass on",
        )

    def __reduce__(self) -> tuple[type["DatasetGrew"], tuple[str, tuple[int, int], tuple[int, int]]]:
        return type(self), (self.uri, self.known, self.now)


class LoaderClosed(LoaderError):  # noqa: N818 - named after what is so
    """The iteration was ended from outside: by `close`, by `load_state_dict`, or by a newer iteration."""
