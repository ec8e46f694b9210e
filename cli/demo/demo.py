"""A model small enough to learn something from a dataset in twenty seconds on two cores, for the quickstart.

It shows that shards become falling loss through the loader, and is no example of training (see `examples/`). The
vocabulary is cut to the most frequent tokens of the first batches, since a softmax over a full one of 129,000 would
take all of the time; what is not among them is one token `unknown`, read as input and never counted in the loss.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.cli.demo.windows import VOCABULARY, Windows, frequent_tokens, window_tokens, windows_of
from headrace.loader import Loader
from headrace.loader.dataset import open_dataset
from headrace.loader.order import LastBatch

ROWS_A_STEP: Final = 16
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
    """Train on the dataset for `steps` steps or `deadline_s` seconds of training, whichever ends first.

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
    known = frequent_tokens(loader)
    model = _make_model(engine, seed, window_tokens(dataset.seq_len))
    steps = STEPS_DEFAULT[engine] if steps is None else steps
    losses: list[float] = []
    counted = 0
    learning_began = time.monotonic()
    try:
        for windows in windows_of(loader, known):
            losses.append(model.step(windows))
            counted += windows.tokens.size
            if on_step is not None:
                on_step(len(losses), losses[-1])
            if len(losses) >= steps or time.monotonic() - learning_began >= deadline_s:
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
