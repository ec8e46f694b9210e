"""A batch in a task's hands: which rows it covers, and what becomes of it when a stage dies."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.task.batch.coverage import (
        ConservationError as ConservationError,
        Mask as Mask,
        apart as apart,
        fates as fates,
        join as join,
        ordinals_in as ordinals_in,
        part as part,
        ranges_of as ranges_of,
    )
    from headrace.worker.task.batch.in_flight import (
        RANGES_MAX as RANGES_MAX,
        STAGES as STAGES,
        WRITER as WRITER,
        InFlightPage as InFlightPage,
    )
    from headrace.worker.task.batch.isolation import (
        KILLED as KILLED,
        Isolation as Isolation,
        singly as singly,
        split_at as split_at,
        try_writing as try_writing,
    )
    from headrace.worker.task.batch.takeover import (
        Passed as Passed,
        Takeover as Takeover,
        build_or_defer as build_or_defer,
    )
    from headrace.worker.task.batch.tracing import Tracer as Tracer
else:
    __getattr__ = door(__name__)
