"""Errors of stages that end a run: in the input as a whole, or in the code of a stage. A record's fault is none."""

import errno


class InputError(Exception):
    """A source cannot be listed or read: what, where, and what to do. Ends the run with exit code 1."""


def unreadable(verb: str, path: str, error: OSError) -> InputError:
    """The error of a file or folder that the system does not let us read or list."""
    denied = error.errno in (errno.EACCES, errno.EPERM)
    remedy = "let this user read it" if denied else "see to the link or the disk"
    return InputError(f"cannot {verb} {path!r}: {error.strerror}; {remedy}, or take it out of the input")


class FragmentChanged(InputError):  # noqa: N818 (named for what happened)
    """The object behind a fragment is not the one that was listed."""


class DamagedInput(InputError):  # noqa: N818 (named after what is so)
    """The bytes of a file are not what its name promises: cut off, corrupt, or of another kind."""

    def __init__(self, name: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"{name!r} is damaged: {why}; fetch it again or take it out of the input, "
            'or declare the source with damaged="quarantine", which keeps what can be read before the damage'
        )


class StageContractError(Exception):
    """A stage gave back something that is no answer to the batch it was given; ends the run and names the stage."""
