"""The models that score texts: KenLM, fastText, and a classifier in ONNX. Each is loaded once a host (`model_host`).

A text is scored alone, never in a batch with others: sums of floating-point numbers depend on the shape of a batch, and
a record that is read again must get the same score.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: What has to be installed for each kind of model: pip install "headrace[scores]".
PACKAGES = {"kenlm": ("kenlm",), "fasttext": ("fasttext",), "onnx": ("onnxruntime", "tokenizers")}
_LABEL = "__label__"
_BREAKS = re.compile(r"[\n\r\x00]+")
_DIGITS = re.compile(r"\d")


class ModelError(ValueError):
    """A model file that is none, or does not fit what was asked of it."""


class Model(Protocol):
    """A loaded model."""

    def score(self, text: str) -> float:
        """The text's score."""
        ...


def load_model(kind: str, path: str, options: dict[str, Any]) -> Model:
    """Load a model of one of PACKAGES from its file. Raises ModelError, ImportError, and what the library raises."""
    made: Model = {"kenlm": KenlmModel, "fasttext": FasttextModel, "onnx": OnnxModel}[kind](path, **options)
    return made


class KenlmModel:
    """Perplexity by an n-gram model (Heafield 2011), in ARPA or KenLM's binary form, over words between white space.

    Lines are scored as sentences: 10 ** (-sum of log10 / (words + lines)), which is what CCNet calls perplexity
    (Wenzek et al. 2020). A text without words has an infinite one.
    """

    def __init__(self, path: str, normalize: bool) -> None:
        import kenlm

        self._normalize = normalize
        self._model: Any = kenlm.Model(path)

    def score(self, text: str) -> float:
        """The text's perplexity."""
        if self._normalize:
            text = plain_form(text)
        total, count = 0.0, 0
        for line in text.replace("\0", " ").splitlines():
            words = line.split()
            if words:
                total += self._model.score(" ".join(words))
                count += len(words) + 1
        return min(10.0 ** min(-total / count, 300.0), 1e300) if count else math.inf


def plain_form(text: str) -> str:
    """Lower case, no accents, digits as 0: the form in which CCNet trains its models."""
    split = unicodedata.normalize("NFD", text.lower())
    return _DIGITS.sub("0", "".join(character for character in split if unicodedata.category(character) != "Mn"))


class FasttextModel:
    """The probability of one label by a fastText classifier (Joulin et al. 2016), `.bin` or `.ftz`."""

    def __init__(self, path: str, label: str) -> None:
        import fasttext

        self._label = label if label.startswith(_LABEL) else _LABEL + label
        self._model: Any = fasttext.load_model(path)
        known = self._labels("a")
        if self._label not in known:
            raise ModelError(f"{path} has no label {self._label!r}; it has {', '.join(sorted(known)[:10]) or 'none'}")

    def _labels(self, text: str) -> dict[str, float]:
        labels, chances = self._model.predict(text, -1)
        return dict(zip(labels, chances, strict=True))

    def score(self, text: str) -> float:
        """The label's probability, 0 for a text of which the model knows no part."""
        return min(1.0, float(self._labels(_BREAKS.sub(" ", text)).get(self._label, 0.0)))


class OnnxModel:
    """One class's score by a classifier in ONNX, on texts as strings, or on the ids of a `tokenizer.json`.

    A model with one input of strings gets the text; one with `input_ids` (int64 `[1, tokens]`, with `attention_mask`
    and `token_type_ids` where it has them) gets the tokens. The output is `[1]` or `[1, classes]`.
    """

    def __init__(self, path: str, tokenizer: str, tokens_max: int, output: str, label: int, activation: str) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        # Threads do not outlive a fork, and each task has a core of its own.
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}
        self._output = _output_of(self._session, output, path)
        self._label = label
        self._activation = activation
        self._tokenizer: Any = None
        strings = [name for name, kind in self._inputs.items() if kind == "tensor(string)"]
        if tokenizer:
            self._tokenizer = _open_tokenizer(tokenizer, tokens_max)
        elif len(strings) != 1 or len(self._inputs) != 1:
            raise ModelError(f"{path} takes {self._inputs}: give its tokenizer, or a model with one input of strings")
        else:
            self._rank = len(self._session.get_inputs()[0].shape)

    def score(self, text: str) -> float:
        """The class's score."""
        (found,) = self._session.run([self._output], self._feed(text))
        scores = np.asarray(found, np.float64).reshape(-1)
        if not self._label < scores.size:
            raise ModelError(f"output {self._output!r} has {scores.size} classes, none of number {self._label}")
        return float(_activate(scores, self._activation)[self._label])

    def _feed(self, text: str) -> dict[str, Any]:
        if self._tokenizer is None:
            (name,) = self._inputs
            return {name: np.array([text], object).reshape((1,) * self._rank)}
        encoded = self._tokenizer.encode(text)
        known = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        missing = [name for name in self._inputs if name not in known]
        if missing:
            raise ModelError(f"the model takes {missing[0]!r}; known are {', '.join(known)}")
        return {name: np.array([known[name] or [0]], np.int64) for name in self._inputs}


def _open_tokenizer(path: str, tokens_max: int) -> Any:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(path)
    found.no_padding()
    found.enable_truncation(tokens_max)
    return found


def _output_of(session: Any, wanted: str, path: str) -> str:
    numbers = [item.name for item in session.get_outputs() if item.type in ("tensor(float)", "tensor(double)")]
    if wanted in numbers or (not wanted and numbers):
        return wanted or numbers[-1]
    found = {item.name: item.type for item in session.get_outputs()}
    raise ModelError(f"{path} has no output {wanted or 'of numbers'!r}: it has {found} (scikit-learn: zipmap=False)")


def _activate(scores: npt.NDArray[np.float64], activation: str) -> npt.NDArray[np.float64]:
    if activation == "softmax":
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())
    if activation == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-np.clip(scores, -700, 700))))
    return scores
