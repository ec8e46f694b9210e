"""A model small enough to learn something from a dataset in twenty seconds on two cores, for the quickstart.

It shows that shards become falling loss through the loader, and is no example of training (see `examples/`). The
vocabulary is cut to the most frequent tokens of the first batches, since a softmax over a full one of 129,000 would
take all of the time; what is not among them is one token `unknown`, read as input and never counted in the loss.

The quickstart's model where no torch is installed: two tokens of context, one hidden layer, softmax, Adam.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.demo.windows import VOCABULARY, Windows, frequent_tokens, window_tokens, windows_of
from headrace.loader import Loader
from headrace.loader.batch import IGNORED_LABEL
from headrace.loader.dataset import open_dataset
from headrace.loader.order import LastBatch

if TYPE_CHECKING:
    from headrace.cli.demo.demo_torch import TinyTransformer

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


def _make_model(engine: str, seed: int, window_tokens: int) -> "TinyBigram | TinyTransformer":
    if engine == "torch":
        from headrace.cli.demo.demo_torch import TinyTransformer

        return TinyTransformer(VOCABULARY, window_tokens, seed)
    return TinyBigram(VOCABULARY, seed)


WIDTH: Final = 64
LEARNING_RATE: Final = 0.01
#: labels a step that are learned from: a softmax over the vocabulary for each is most of the work
LABELS_MAX: Final = 1024

F32 = NDArray[np.float32]


class TinyBigram:
    """Predicts the next token from this one and the one before it, within a segment."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)

        def made(*shape: int, scale: float) -> F32:
            return (self._random.standard_normal(shape) * scale).astype(np.float32)

        self._weights: dict[str, F32] = {
            "this": made(vocabulary, WIDTH, scale=0.1),
            "before": made(vocabulary, WIDTH, scale=0.1),
            "out": made(WIDTH, vocabulary, scale=0.02),
            "bias": np.zeros(vocabulary, dtype=np.float32),
        }
        self._means = {name: np.zeros_like(value) for name, value in self._weights.items()}
        self._squares = {name: np.zeros_like(value) for name, value in self._weights.items()}
        self._steps = 0
        parameters = sum(value.size for value in self._weights.values())
        self.engine = f"numpy {np.__version__}, a bigram network of {parameters / 1e6:.1f} M parameters"

    def step(self, windows: Windows) -> float:
        """Train on the windows; the mean loss over counted labels, in nats, before the update."""
        this, before, labels = self._examples(windows)
        weights = self._weights
        hidden = np.tanh(weights["this"][this] + weights["before"][before])
        logits = hidden @ weights["out"] + weights["bias"]
        logits -= logits.max(axis=1, keepdims=True)
        lines = np.arange(labels.size)
        right = logits[lines, labels].copy()
        np.exp(logits, out=logits)
        total = logits.sum(axis=1, keepdims=True)
        loss = float((np.log(total[:, 0]) - right).mean())
        # from here on `logits` holds the gradient of the mean loss by the logits
        logits /= total
        logits[lines, labels] -= 1
        logits /= labels.size
        inner = (logits @ weights["out"].T) * (1 - hidden * hidden)
        gradients = {"out": hidden.T @ logits, "bias": logits.sum(axis=0)}
        for name, index in (("this", this), ("before", before)):
            gradients[name] = np.zeros_like(weights[name])
            np.add.at(gradients[name], index, inner)
        self._update(gradients)
        return loss

    def _examples(self, windows: Windows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        before = np.roll(windows.tokens, 1, axis=1)
        # the first token of a segment or a window has none before it: itself stands in
        fresh = windows.positions == 0
        fresh[:, 0] = True
        before = np.where(fresh, windows.tokens, before).reshape(-1)
        labels = windows.labels.reshape(-1)
        chosen = np.flatnonzero(labels != IGNORED_LABEL)
        if chosen.size > LABELS_MAX:
            chosen = self._random.choice(chosen, LABELS_MAX, replace=False)
        return windows.tokens.reshape(-1)[chosen], before[chosen], labels[chosen]

    def _update(self, gradients: dict[str, F32]) -> None:
        self._steps += 1
        rate = LEARNING_RATE * np.sqrt(1 - 0.99**self._steps) / (1 - 0.9**self._steps)
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += 0.1 * (gradient - mean)
            square += 0.01 * (gradient * gradient - square)
            self._weights[name] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))
