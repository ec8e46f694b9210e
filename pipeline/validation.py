"""Checks of a whole pipeline: everything that can be known before a single record is read."""

from __future__ import annotations

import itertools
import re

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import MODULES_BYTES_MAX, STAGES_MAX, TRAINED_ON, Pipeline, Stage, StageKind, chain_order
from headrace.pipeline.masking import mask, secret_in
from headrace.pipeline.plain import check_plain

#: Tasks of one stage, and cores or bytes that each may take: more is a mistake.
REPLICAS_MAX = 1 << 16
TAKEN_MAX = 1 << 53
#: Stages of one pipeline that remember: each asks for a round of its own, and has an index.
STATEFUL_MAX = 8
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def validate(pipeline: Pipeline) -> None:
    """Raise PipelineError, naming stage and remedy, unless the pipeline can run."""
    if not _NAME.fullmatch(pipeline.name):
        raise PipelineError(f"pipeline name {pipeline.name!r}: use a-z, 0-9, - and _, a letter first, at most 63")
    if not pipeline.dataset:
        raise PipelineError(f"pipeline {pipeline.name!r} names no dataset: give it the URI to write to")
    if not pipeline.stages:
        raise PipelineError(f"pipeline {pipeline.name!r} has no stages: give it a source and a sink")
    if len(pipeline.stages) > STAGES_MAX:
        raise PipelineError(f"pipeline {pipeline.name!r} has {len(pipeline.stages)} stages, the limit is {STAGES_MAX}")
    size = sum(len(text) for text in pipeline.modules.values())
    if size > MODULES_BYTES_MAX:
        raise PipelineError(f"the user's modules hold {size} bytes, the limit is {MODULES_BYTES_MAX}")
    base = None if pipeline.base is None else pipeline.base.to_dict()
    check_plain([pipeline.dataset, pipeline.modules, pipeline.environment, base], f"pipeline {pipeline.name!r}")
    _validate_names(pipeline)
    for stage in pipeline.stages:
        _validate_stage(stage, pipeline)
    # Once what they hold is known to be no deeper than its limit.
    _validate_secrets(pipeline)
    chain_order(pipeline.stages)
    _validate_reach(pipeline)
    _validate_single_path(pipeline)
    _validate_tokens(pipeline)
    _validate_stateful(pipeline)


def _validate_secrets(pipeline: Pipeline) -> None:
    """A pipeline stands in its ledger, in status and in logs."""
    given: dict[str, object] = {"dataset": pipeline.dataset, "environment": dict(pipeline.environment)}
    given |= {} if pipeline.base is None else {"base": pipeline.base.dataset}
    given |= {f'stage "{stage.name}"': stage.to_dict() for stage in pipeline.stages}
    # by lines: a module is not quoted whole
    for name, text in pipeline.modules.items():
        lines = text.splitlines() if mask(text) != text else ()
        given |= {f"the code of {name!r}, line {number}": line for number, line in enumerate(lines, 1)}
    if found := secret_in(given):
        raise PipelineError(
            f"{found} carries a secret, and a pipeline stands in its ledger, in status and in logs: give credentials "
            "in files or in the environment of the workers (docs/guide/store.md)"
        )


def _validate_names(pipeline: Pipeline) -> None:
    seen: set[str] = set()
    for stage in pipeline.stages:
        if not _NAME.fullmatch(stage.name):
            raise PipelineError(f"stage name {stage.name!r}: use a-z, 0-9, - and _, a letter first, at most 63")
        if stage.name in seen:
            raise PipelineError(f"two stages are named {stage.name!r}: give one another name with name=...")
        seen.add(stage.name)
    for stage in pipeline.stages:
        for upstream in stage.after:
            if upstream not in seen:
                known = ", ".join(sorted(seen))
                raise PipelineError(f"stage {stage.name!r} reads from {upstream!r}, which is not here: {known}")


def _validate_stage(stage: Stage, pipeline: Pipeline) -> None:
    if not _TARGET.fullmatch(stage.target):
        raise PipelineError(f"stage {stage.name!r}: target {stage.target!r} is not of the form package.module:name")
    check_plain([stage.parameters, stage.identity, stage.volatile, stage.on, stage.near], f"stage {stage.name!r}")
    if stage.replicas is not None and not 1 <= stage.replicas <= REPLICAS_MAX:
        raise PipelineError(f"stage {stage.name!r}: replicas is {stage.replicas}; give from 1 to {REPLICAS_MAX:,}")
    if not 0 <= stage.cores <= TAKEN_MAX or not 0 <= stage.memory_bytes <= TAKEN_MAX:
        raise PipelineError(
            f"stage {stage.name!r}: cores is {stage.cores:g} and memory_bytes {stage.memory_bytes}; 0 reserves nothing"
        )
    if stage.kind is StageKind.SOURCE and stage.after:
        raise PipelineError(f"source {stage.name!r} reads from {stage.after[0]!r}: a source has nothing before it")
    if stage.kind is not StageKind.SOURCE and not stage.after:
        raise PipelineError(f"stage {stage.name!r} reads from nothing: put it behind a source")
    if stage.kind is StageKind.SINK and pipeline.downstream(stage.name):
        raise PipelineError(f"sink {stage.name!r} feeds {pipeline.downstream(stage.name)[0]!r}: a sink ends its path")


def _validate_reach(pipeline: Pipeline) -> None:
    if not pipeline.of_kind(StageKind.SOURCE):
        raise PipelineError(f"pipeline {pipeline.name!r} has no source: begin it with read_jsonl or another source")
    if not pipeline.of_kind(StageKind.SINK):
        raise PipelineError(f"pipeline {pipeline.name!r} has no sink: end it with write_tokens or another sink")
    for stage in pipeline.stages:
        if stage.kind is not StageKind.SINK and not pipeline.downstream(stage.name):
            raise PipelineError(f"nothing reads from stage {stage.name!r}: its records would vanish; add a sink")


def _validate_single_path(pipeline: Pipeline) -> None:
    """A record that reached a sink on two paths would be counted twice."""
    for source in pipeline.of_kind(StageKind.SOURCE):
        paths: dict[str, int] = {source.name: 1}
        for stage in chain_order(pipeline.stages):
            if stage.after:
                paths[stage.name] = sum(paths.get(upstream, 0) for upstream in stage.after)
            if paths.get(stage.name, 0) > 1:
                raise PipelineError(
                    f"two paths lead from source {source.name!r} to stage {stage.name!r}: "
                    "each record would arrive twice; end one path in a sink of its own"
                )


def _validate_tokens(pipeline: Pipeline) -> None:
    """Each sink sees every record, and who trains reads one."""
    sinks = [stage.name for stage in pipeline.of_kind(StageKind.SINK) if stage.target.endswith(TRAINED_ON)]
    if len(sinks) > 1:
        raise PipelineError(
            f"sinks {sinks[0]!r} and {sinks[1]!r} both write tokens, and training would read those of one: "
            "give each a pipeline and a dataset of its own"
        )


def _validate_stateful(pipeline: Pipeline) -> None:
    """Stages that decide on duplicates stand in one line: a record that one keeps comes to the next."""
    stateful = pipeline.stateful
    if len(stateful) > STATEFUL_MAX:
        raise PipelineError(f"{len(stateful)} stages deduplicate; the limit is {STATEFUL_MAX}")
    for one, other in itertools.pairwise(stateful):
        behind = [{stage.name for stage in pipeline.behind(item.name)} for item in (one, other)]
        sinks = [{stage.name for stage in pipeline.of_kind(StageKind.SINK)} & names for names in behind]
        if other.name not in behind[0] or sinks[0] != sinks[1]:
            raise PipelineError(
                f"stages {one.name!r} and {other.name!r} both deduplicate: each sink after one of them must stand "
                "after both, and the one after the other"
            )
        if one.name in other.after:
            raise PipelineError(
                f"stage {other.name!r} reads from stage {one.name!r}: dedup() gives two stages, put both into the "
                "pipeline"
            )
    for stage in stateful:
        if stage.replicas is None:
            raise PipelineError(f"stage {stage.name!r}: replicas is None; give 1, or 1 and the partitions of its index")
