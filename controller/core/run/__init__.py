"""Pure: one run of a pipeline, from its opening to its end."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run import proposals as proposals
    from headrace.controller.core.run.amendment import (
        GIVES_WAY as GIVES_WAY,
        Amendment as Amendment,
        why_an_epoch as why_an_epoch,
    )
    from headrace.controller.core.run.opening import (
        REJOIN_S as REJOIN_S,
        Inheritance as Inheritance,
        Surroundings as Surroundings,
    )
    from headrace.controller.core.run.proposals import Committer as Committer, ProposalJudgement as ProposalJudgement
    from headrace.controller.core.run.publishing import Publishing as Publishing
    from headrace.controller.core.run.refusals import NotYetError as NotYetError, refusal as refusal
    from headrace.controller.core.run.run import Run as Run
    from headrace.controller.core.run.states import (
        ENDED as ENDED,
        AmendTurn as AmendTurn,
        RunState as RunState,
    )
    from headrace.controller.core.run.sweeps import Sweeps as Sweeps
    from headrace.controller.core.run.work import RunEvent as RunEvent, Works as Works
else:
    __getattr__ = door(__name__)
