"""What can be known of a pipeline's inputs before any process is started for it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable

from headrace.pipeline import Pipeline, PipelineError, Stage, StageKind
from headrace.stages.sources.objects.formats import SOURCES, check_format, globs_of

#: Files of each input pattern whose names are looked at; a listing of all of them is the run's.
FILES_LOOKED_AT = 1000


def preflight(pipeline: Pipeline) -> None:
    """Raise PipelineError or InputError, naming the thing and the remedy, for what would stop the run at its start.

    Globs match, tokenizers are there and the same in every stage, functions can be imported.
    """
    for stage in pipeline.stages:
        check = _CHECKS.get(stage.target)
        if check is not None:
            check(stage, pipeline)


def _check_input(stage: Stage, pipeline: Pipeline) -> None:
    """Each pattern names files, the first of a kind that the source reads, and none that the run itself writes."""
    from headrace.stages.sources.objects.inputs import Inputs, first_named, to_path
    from headrace.stages.sources.objects.patterns import PARAMETER

    formats, follow = SOURCES[stage.target], bool(stage.parameters.get(PARAMETER))
    globs = globs_of(formats)
    for pattern in stage.parameters["input"]:
        if first_named(pattern, globs, pipeline.dataset, _OF_A_DATASET):
            raise PipelineError(
                f'stage "{stage.name}": input {pattern!r} also names what the run writes to {pipeline.dataset}: it '
                "would read its own output; put the output elsewhere, or narrow the input"
            )
        for found in itertools.islice(Inputs([pattern], globs, follow_links=follow), FILES_LOOKED_AT):
            check_format(to_path(found.uri), formats)


def _check_tokenizer(stage: Stage, pipeline: Pipeline) -> None:
    del pipeline
    import pathlib

    path = pathlib.Path(stage.parameters["tokenizer"])
    if not path.is_file():
        raise PipelineError(f'stage "{stage.name}": tokenizer {path} is gone: put it back')


def _check_function(stage: Stage, pipeline: Pipeline) -> None:
    from headrace.stages.runtime import install_modules, load_target

    install_modules(pipeline.modules)
    function = stage.parameters["function"]
    loaded = load_target(function, stage.name)
    if not callable(loaded):
        raise PipelineError(f'stage "{stage.name}": {function} is not a function: give the path of one')
    try:
        inspect.signature(loaded).bind(None)
    except TypeError as error:
        # Else each record would be quarantined for it.
        raise PipelineError(
            f'stage "{stage.name}": {function} cannot be called with one argument, the record or the batch ({error})'
        ) from error
    except ValueError:
        return  # one of C, which does not say what it takes


def _check_split(stage: Stage, pipeline: Pipeline) -> None:
    """A part has one number: no record is split twice on its way."""
    _check_function(stage, pipeline)
    for other in _before(stage, pipeline):
        if other.target in _SPLITS and other.name != stage.name:
            raise PipelineError(
                f'stage "{stage.name}" splits records that stage "{other.name}" has split: do both in one function'
            )


def _check_sink(stage: Stage, pipeline: Pipeline) -> None:
    """The sink's facts are those of each tokenizer before it."""
    tokenizers = [other for other in _before(stage, pipeline) if "tokenizer_sha256" in other.identity]
    makers = [other for other in tokenizers if other.kind is StageKind.TRANSFORM]
    if not makers:
        raise PipelineError(f'sink "{stage.name}" has no tokenizer before it: put tokenize(...) there')
    for maker in makers:
        for fact, value in stage.identity.items():
            if maker.identity.get(fact) != value:
                raise PipelineError(
                    f'sink "{stage.name}" and stage "{maker.name}" differ in {fact} ({value!r} and '
                    f"{maker.identity.get(fact)!r}): give the sink the stage, write_tokens(tokenize_stage, ...)"
                )


def _before(stage: Stage, pipeline: Pipeline) -> list[Stage]:
    """The stage and all from which records come to it, in declared order."""
    from headrace.pipeline import chain_order

    before = {stage.name}
    for other in reversed(chain_order(pipeline.stages)):
        if other.name in before:
            before.update(other.after)
    return [other for other in pipeline.stages if other.name in before]


#: Names of a dataset's objects that a source could take for input.
_OF_A_DATASET = ("shards/1/0.documents.parquet", "shards/1/0.jsonl.zst", "manifest.json")

#: The stages that make several records of one.
_SPLITS = ("headrace.stages.functions.split:SplitRecords", "headrace.stages.functions.split:SplitBatches")

_CHECKS: dict[str, Callable[[Stage, Pipeline], None]] = {
    **dict.fromkeys(SOURCES, _check_input),
    "headrace.stages.tokenizer.tokenize:Tokenize": _check_tokenizer,
    "headrace.stages.functions.functions:MapRecords": _check_function,
    "headrace.stages.functions.functions:MapBatches": _check_function,
    **dict.fromkeys(_SPLITS, _check_split),
    "headrace.stages.sinks.tokens:TokenSink": _check_sink,
}
