"""The checker of a run with faults: the evidence, the source, and the findings."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.checks.checker import (
        CheckResult as CheckResult,
        check_dataset as check_dataset,
        check_run as check_run,
        felt_on_network as felt_on_network,
        unaffected_ways as unaffected_ways,
    )
    from headrace.chaos.live.checks.evidence import Fates as Fates, compare as compare, read_fates as read_fates
else:
    __getattr__ = door(__name__)
