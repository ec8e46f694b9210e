"""A model small enough to learn something from a dataset in twenty seconds on two cores, for the quickstart.

It shows that shards become falling loss through the loader, and is no example of training (see `examples/`). The
vocabulary is cut to the most frequent tokens of the first batches, since a softmax over a full one of 129,000 would
take all of the time; what is not among them is one token `unknown`, read as input and never counted in the loss.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loader import Loader
from headrace.loader.batch import IGNORED_LABEL, Batch
from headrace.loader.dataset import open_dataset
from headrace.loader.order import LastBatch

#: known tokens and `unknown`, which is the last
VOCABULARY: Final = 4096
UNKNOWN: Final = VOCABULARY - 1
#: sequences are cut to windows of this many tokens, and a step takes one window of each row of a batch: many
#: documents in a step make the loss steady, and short windows make attention cheap
WINDOW_TOKENS: Final = 128
ROWS_A_STEP: Final = 16
#: rows over which the vocabulary is counted
COUNTED_ROWS: Final = 512
#: steps that fit the deadline on two cores, by engine
STEPS_DEFAULT: Final = {"torch": 150, "numpy": 400}
DEADLINE_S_DEFAULT: Final = 20.0


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a training run did: the loss of each step (nats a token), tokens a second, and the engine used."""

    losses: tuple[float, ...]
    tokens_s: float
    #: for example "torch 2.13.0, a transformer of 0.9 M parameters"
    engine: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One step's input: int64 arrays [windows, tokens]; -100 in `labels` is not counted."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    #: the number of the segment that each token lies in: attention does not cross from one to another
    segments: NDArray[np.int64]
    positions: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> "Windows":
        """The windows [k] where `chosen` [windows] is true, as arrays of their own."""
        return Windows(self.tokens[chosen], self.labels[chosen], self.segments[chosen], self.positions[chosen])


class Model(Protocol):
    """What both engines give: one step of training on some windows, and a name."""

    engine: str

    def step(self, windows: Windows) -> float:
        """Train on the windows; the mean loss over counted labels, in nats, before the update."""
        ...


def train(
    dataset_uri: str,
    steps: int | None = None,
    on_step: Callable[[int, float], None] | None = None,
    deadline_s: float = DEADLINE_S_DEFAULT,
    *,
    seed: int = 0,
    engine: str = "auto",
) -> TrainingResult:
    """Train on the dataset for `steps` steps or `deadline_s` seconds, whichever ends first.

    `on_step(step, loss)` is called after each step, counted from 1. `engine` is "auto" (torch where it is installed),
    "torch" or "numpy". The losses depend on dataset, seed and engine; only how many there are depends on the clock.
    Raises the loader's and the store's errors, and ValueError for a dataset without two known tokens in a row.
    """
    began = time.monotonic()
    if engine == "auto":
        engine = "torch" if importlib.util.find_spec("torch") else "numpy"
    if engine not in STEPS_DEFAULT:
        raise ValueError(f"engine {engine!r} is unknown; choose auto, {' or '.join(STEPS_DEFAULT)}")
    dataset = open_dataset(dataset_uri)
    loader = Loader(dataset, batch_size=ROWS_A_STEP, seed=seed, last=LastBatch.PAD, alone=True)
    known = _frequent_tokens(loader)
    model = _make_model(engine, seed, _window_tokens(dataset.seq_len))
    steps = STEPS_DEFAULT[engine] if steps is None else steps
    losses: list[float] = []
    counted = 0
    learning_began = time.monotonic()
    try:
        for windows in _windows(loader, known):
            losses.append(model.step(windows))
            counted += windows.tokens.size
            if on_step is not None:
                on_step(len(losses), losses[-1])
            if len(losses) >= steps or time.monotonic() - began >= deadline_s:
                break
    finally:
        loader.close()
    learning_s = max(time.monotonic() - learning_began, 1e-9)
    return TrainingResult(tuple(losses), counted / learning_s, model.engine, time.monotonic() - began)


def _make_model(engine: str, seed: int, window_tokens: int) -> Model:
    # the checker sees this module under two names, loader.demo and headrace.cli.demo.demo
    if engine == "torch":
        from headrace.cli.demo.demo_torch import TinyTransformer

        return TinyTransformer(VOCABULARY, window_tokens, seed)  # pyright: ignore[reportReturnType]
    from headrace.cli.demo.demo_numpy import TinyBigram

    return TinyBigram(VOCABULARY, seed)  # pyright: ignore[reportReturnType]


def _window_tokens(seq_len: int) -> int:
    return min(WINDOW_TOKENS, seq_len)


def _frequent_tokens(loader: Loader) -> NDArray[np.int64]:
    """The most frequent tokens [up to UNKNOWN] of the order's first rows, sorted by token."""
    layout = loader.dataset.layout
    shards, rows = loader.order.locate(np.arange(min(COUNTED_ROWS, layout.samples), dtype=np.uint64))
    parts = [loader.dataset.rows(number, rows[shards == number]).reshape(-1) for number in np.unique(shards).tolist()]
    tokens, counts = np.unique(np.concatenate(parts).astype(np.int64), return_counts=True)
    # ties break by token, so that the choice is the same everywhere
    return np.sort(tokens[np.lexsort((tokens, -counts))[:UNKNOWN]])


def _windows(loader: Loader, known: NDArray[np.int64]) -> Iterator[Windows]:
    """One step's windows after another, pass after pass; windows without a label to learn are left out."""
    while True:
        found = 0
        for batch in loader:
            for windows in _cut(batch, known):
                useful = (windows.labels != IGNORED_LABEL).any(axis=1)
                if useful.any():
                    found += 1
                    yield windows.only(useful)
        if not found:
            raise ValueError(f"{loader.dataset!r} has no piece of two known tokens to learn from")


def _cut(batch: Batch, known: NDArray[np.int64]) -> Iterator[Windows]:
    rows, seq_len = batch["tokens"].shape
    width = _window_tokens(seq_len)
    numbers = np.arange(batch["documents"].shape[0])
    segments = np.repeat(numbers, np.diff(batch["cu_seqlens"])).reshape(rows, seq_len)
    tokens = _reduced(batch["tokens"], known)
    labels = _reduced(batch["labels"], known)
    labels[(batch["labels"] == IGNORED_LABEL) | (labels == UNKNOWN)] = IGNORED_LABEL
    for start in range(0, seq_len - width + 1, width):
        part = slice(start, start + width)
        positions = batch["position_ids"][:, part].astype(np.int64)
        yield Windows(tokens[:, part], labels[:, part], segments[:, part], positions)


def _reduced(tokens: NDArray[np.int32], known: NDArray[np.int64]) -> NDArray[np.int64]:
    at = np.minimum(np.searchsorted(known, tokens), known.size - 1)
    return np.where(known[at] == tokens, at, UNKNOWN)
