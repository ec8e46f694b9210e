"""What users call: a stage as a block of datatrove or a function of Ray Data, and a block of datatrove as a stage.

Light: neither is imported before it is needed.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import orjson

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.runtime import check_integer, check_text

#: Documents that a block takes at once.
BATCH_DOCUMENTS = 1000


def to_datatrove(stage: Stage, *, exclusion_writer: Any = None, batch_size: int = BATCH_DOCUMENTS) -> Any:
    """A transform, such as `gopher_quality()`, as a filter of datatrove: a step of its pipelines.

    Reasons are datatrove's: `dropped_<reason>` in its statistics, `filter_reason` in what `exclusion_writer` writes. A
    text that the stage changes is the document's. Raises PipelineError for another kind of stage, or without datatrove.
    """
    _check_kind(stage)
    check_integer(stage.name, "batch_size", batch_size, 1, 1 << 20)
    try:
        from headrace.stages.interop.datatrove_steps import StageFilter
    except ImportError as error:
        raise PipelineError(f'datatrove cannot be imported ({error}): pip install datatrove "xxhash<4"') from error
    return StageFilter(stage, exclusion_writer, batch_size)


def to_ray(stage: Stage, *, text_key: str = "text", id_key: str = "id", verdicts: bool = False) -> Any:
    """A transform as a function for `Dataset.map_batches(..., batch_format="pyarrow")` of Ray Data.

    It takes and gives Arrow tables. The rows that the stage keeps come back, with their texts as it left them; other
    columns are its metadata, and come back as they were. With `verdicts` all rows come back, with two columns more:
    `verdict` ("kept", "filtered" or "quarantined") and `reason`. Raises PipelineError for another kind of stage.
    """
    from headrace.stages.interop.applied import StageFunction

    _check_kind(stage)
    check_text(stage.name, "text_key", text_key)
    check_text(stage.name, "id_key", id_key)
    return StageFunction(stage, text_key, id_key, verdicts=verdicts)


def datatrove_block(block: str, *, name: str = "", **arguments: Any) -> Stage:
    """A filter or formatter of datatrove as a stage, by its path: `"datatrove.pipeline.filters:C4QualityFilter"`.

    `arguments` are those of its class, as JSON has them. A document that it drops is filtered with the block's reason,
    or the name of its class where it gives none; a text that it changes counts as an edit.
    """
    check_text(name or "datatrove_block", "block", block)
    module, _, attribute = block.partition(":")
    if not module or not attribute:
        raise PipelineError(f"block {block!r} is not of the form package.module:Class")
    try:
        orjson.dumps(arguments)
    except TypeError as error:
        raise PipelineError(f"block {block!r}: its arguments are no JSON: {error}") from error
    try:
        version = importlib.metadata.version("datatrove")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    called = name or attribute.rpartition(".")[2].lower()
    target = "headrace.stages.interop.datatrove_stage:DatatroveBlock"
    parameters = {"block": block, "arguments": arguments}
    return Stage(called, StageKind.TRANSFORM, target, parameters, identity={"datatrove": version})


def _check_kind(stage: Stage) -> None:
    if not isinstance(stage, Stage) or stage.kind is not StageKind.TRANSFORM:
        what = (
            f'"{stage.name}" is a {stage.kind.value}' if isinstance(stage, Stage) else f"{type(stage).__name__} given"
        )
        raise PipelineError(f"{what}: only a stage that judges or changes single records can be exported")
