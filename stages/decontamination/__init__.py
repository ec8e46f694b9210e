"""Decontamination: the items of test suites, an index of them that a host's tasks share, and the search in texts."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.decontamination.datasets import (
        Contaminated as Contaminated,
        kept_texts as kept_texts,
        search_dataset as search_dataset,
    )
    from headrace.stages.decontamination.stage import compile_search as compile_search
    from headrace.stages.decontamination.suites import describe_suites as describe_suites
else:
    __getattr__ = door(__name__)
