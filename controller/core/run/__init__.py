"""Pure: one run of a pipeline, from its opening to its end."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run import commit as commit, run_input as run_input
    from headrace.controller.core.run.allowance import ANY_LOSS as ANY_LOSS, Allowance as Allowance
    from headrace.controller.core.run.commit import Committer as Committer, Judgement as Judgement
    from headrace.controller.core.run.needs import (
        NEEDS_EVENTS as NEEDS_EVENTS,
        AnswerNeeds as AnswerNeeds,
        NeedsAsked as NeedsAsked,
        Records as Records,
        ReleaseClaims as ReleaseClaims,
        VerdictsLetGo as VerdictsLetGo,
    )
    from headrace.controller.core.run.run import Run as Run
    from headrace.controller.core.run.run_states import ENDED as ENDED, RunState as RunState
else:
    __getattr__ = door(__name__)
