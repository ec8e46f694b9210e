"""One dataset has one run in a cluster: by the one name of the place that its URI leads to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.controller.core.messages import PipelineRequested
from headrace.controller.core.run import Run


@dataclass(frozen=True, slots=True)
class Writer:
    """A pipeline, the URI of its dataset, and the one name of that place."""

    name: str
    dataset: str
    place: str


def writer_asked(event: PipelineRequested) -> Writer:
    """Who is being applied: to be in the cluster's log soon."""
    dataset = str(event.pipeline["dataset"])
    return Writer(str(event.pipeline["name"]), dataset, event.place or dataset)


def writer_that_runs(run: Run) -> Writer:
    """Who runs."""
    return Writer(run.pipeline.name, run.pipeline.dataset, run.place)


def taken(place: str, dataset: str, writers: Iterable[Writer]) -> str:
    """Why a dataset is not to be had, since one of these writes there; empty where none does."""
    for writer in writers:
        if writer.place == (place or dataset):
            same = "" if dataset == writer.dataset else f" (it says {writer.dataset}, which is the same place)"
            return f"pipeline {writer.name!r} writes to {dataset}{same}: stop it first, or choose another dataset"
    return ""
