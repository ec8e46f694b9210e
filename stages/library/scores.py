"""The stages that score texts by a model from a user's file, as a pipeline file declares them.

A model is loaded once a host and shared by its tasks. Its content is part of the pipeline's version, its place is not.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.library.filters import check_switch
from headrace.stages.runtime import check_integer, check_number, check_path, check_text

_ACTIVATIONS = ("none", "softmax", "sigmoid")
_NUMBER_MAX = 1e300


def perplexity(
    model: str | os.PathLike[str],
    *,
    perplexity_max: float | None = None,
    perplexity_min: float | None = None,
    normalize: bool = False,
    tag: bool = False,
    name: str = "perplexity",
) -> Stage:
    """Filter texts that an n-gram model finds surprising, or too little so: KenLM's `.arpa` or `.binary` file.

    `normalize` brings texts into lower case, without accents and with digits as 0, as CCNet's models want them
    (Wenzek et al. 2020). Words are those between white space.
    """
    check_switch(name, "normalize", normalize)
    limits = (perplexity_min, perplexity_max)
    return _stage(name, "kenlm", "perplexity", model, {}, {"normalize": normalize}, limits, tag)


def fasttext_classifier(
    model: str | os.PathLike[str],
    label: str,
    *,
    score_min: float | None = None,
    score_max: float | None = None,
    tag: bool = False,
    name: str = "classifier",
) -> Stage:
    """Filter by the probability of a label under a fastText classifier (`.bin` or `.ftz`; Joulin et al. 2016)."""
    check_text(name, "label", label)
    return _stage(name, "fasttext", "score", model, {}, {"label": label}, (score_min, score_max), tag)


def onnx_classifier(
    model: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] = "",
    tokens_max: int = 512,
    output: str = "",
    label: int = 0,
    activation: str = "none",
    score_min: float | None = None,
    score_max: float | None = None,
    tag: bool = False,
    name: str = "classifier",
) -> Stage:
    """Filter by one class of a classifier in ONNX, on texts as strings or on the ids of a `tokenizer.json`.

    `output` is the name of an output `[1]` or `[1, classes]` (else the last of numbers), `label` the class, and
    `activation` what makes a score of it: "none", "softmax" or "sigmoid". Texts are cut at `tokens_max` tokens.
    """
    check_integer(name, "tokens_max", tokens_max, 1, 1 << 20)
    check_integer(name, "label", label, 0, 1 << 20)
    if activation not in _ACTIVATIONS:
        raise PipelineError(
            f'stage "{name}": activation is {activation!r}; it must be one of {", ".join(_ACTIVATIONS)}'
        )
    options = {"tokens_max": tokens_max, "output": output, "label": label, "activation": activation}
    files: dict[str, str | os.PathLike[str]] = {"tokenizer": tokenizer} if tokenizer else {}
    options |= {} if tokenizer else {"tokenizer": ""}
    return _stage(name, "onnx", "score", model, files, options, (score_min, score_max), tag)


def _stage(
    name: str,
    kind: str,
    score: str,
    model: str | os.PathLike[str],
    others: dict[str, str | os.PathLike[str]],
    options: dict[str, Any],
    limits: tuple[float | None, float | None],
    tag: bool,
) -> Stage:
    check_text(name, "name", name)
    check_switch(name, "tag", tag)
    for which, value in zip(("min", "max"), limits, strict=True):
        if value is not None:
            check_number(name, f"{score}_{which}", value, -_NUMBER_MAX, _NUMBER_MAX)
    if limits == (None, None) and not tag:
        raise PipelineError(f'stage "{name}": give {score}_min, {score}_max or tag=True, else it does nothing')
    given = {key: check_path(name, key, path) for key, path in {"model": model, **others}.items()}
    paths = {key: str(pathlib.Path(os.path.expanduser(path)).absolute()) for key, path in given.items()}
    files = list(paths.values())
    digests = [_digest(path, name) for path in files]
    parameters = {
        "kind": kind,
        "score": score,
        "model": paths["model"],
        "files": files,
        "digests": digests,
        "options": {**options, **{key: paths[key] for key in others}},
        "least": limits[0],
        "most": limits[1],
        "tag": tag,
    }
    identity = {"digests": digests, "options": options}
    target = "headrace.stages.quality.models.shared_model:ModelScore"
    places = ("model", "files", "options")
    return Stage(name, StageKind.TRANSFORM, target, parameters, identity=identity, volatile=places)


def _digest(path: str, stage: str) -> str:
    from headrace.stages.quality.models import file_digest

    try:
        return file_digest(path)
    except OSError as error:
        raise PipelineError(f'stage "{stage}": cannot read the model {path}: {error.strerror}') from error
