"""The quickstart's model where no torch is installed: two tokens of context, one hidden layer, softmax, Adam."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.demo.windows import Windows
from headrace.loader.batch import IGNORED_LABEL

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
        """See `headrace.cli.demo.demo.Model.step`."""
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
