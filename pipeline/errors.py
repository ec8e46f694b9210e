"""Errors of a declaration: each names the stage or parameter, what is wrong with it, and the remedy."""

from headrace.pipeline.masking import mask


class PipelineError(ValueError):
    """A pipeline that cannot run as it is declared."""

    def __str__(self) -> str:
        """The message; it may quote a URI, whose secrets are hidden."""
        return mask(super().__str__())
