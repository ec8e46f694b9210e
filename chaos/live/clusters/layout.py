"""On which worker of a scenario's cluster each stage runs, and by what the links between stages are made."""

from __future__ import annotations

from headrace.chaos.live import Cluster
from headrace.client import UsageError
from headrace.controller.core.plan import QUIC, places_of
from headrace.pipeline import Pipeline, chain_order


def places_in(shape: Cluster, pipeline: Pipeline) -> dict[str, str]:
    """The worker of each stage that the scenario places, by the stage's name; {} where it places none.

    With `spread` each stage stands on another worker than the first of the stages before it. Raises UsageError for a
    stage that the pipeline has not.
    """
    known = [stage.name for stage in pipeline.stages]
    strange = sorted(shape.place.keys() - {*known})
    if strange:
        raise UsageError(
            f"[cluster.place] of the scenario: pipeline {pipeline.name!r} has no stage {strange[0]!r}; it has "
            f"{', '.join(known)}"
        )
    if not shape.spread:
        return dict(shape.place)
    workers = shape.worker_names
    found: dict[str, str] = {}
    for stage in chain_order(pipeline.stages):
        before = workers.index(found[stage.after[0]]) if stage.after else -1
        found[stage.name] = workers[(before + 1) % len(workers)]
    return found


def layout_options(shape: Cluster, pipeline: Pipeline, *, fuse: bool) -> list[str]:
    """What `headrace apply` is told of places and transports.

    Every link between workers is made to be QUIC, and where stages are not fused, every link: one host has others.
    """
    asked = places_in(shape, pipeline)
    places = places_of(pipeline, asked)
    options = [part for stage, place in asked.items() for part in ("--place", f"{stage}={place}")]
    for stage in pipeline.stages:
        apart = any(places[before] != places[stage.name] for before in stage.after)
        if stage.after and (apart or not fuse):
            options += ["--transport", f"{stage.name}={QUIC}"]
    return options
