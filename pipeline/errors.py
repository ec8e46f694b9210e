"""Errors of a declaration: each names the stage or parameter, what is wrong with it, and the remedy."""


class PipelineError(ValueError):
    """A pipeline that cannot run as it is declared."""
