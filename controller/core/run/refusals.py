"""Why a run does not do what it is asked for, and whether that passes by itself."""

from __future__ import annotations

from headrace.controller.core.messages import AnswerRequest
from headrace.pipeline import PipelineError


class NotYetError(PipelineError):
    """What is asked for cannot be done now, and may be in a while: whoever asks does so again."""


def refusal(request: int, error: PipelineError) -> AnswerRequest:
    """The answer to a request that `error` forbids."""
    return AnswerRequest(request, accepted=False, reason=str(error), passes=isinstance(error, NotYetError))
