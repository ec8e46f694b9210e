"""Errors of stages that end a run: in the input as a whole, or in the code of a stage. A record's fault is none."""

import errno

from headrace.pipeline import mask

#: A file that was mended is another object than the one that was listed, and one that is gone is none.
_THEN = "and run again with --changed-input reread, or drop"


class InputError(Exception):
    """A source cannot be listed or read: what, where, and what to do. Ends the run with exit code 1."""

    def __str__(self) -> str:
        """The message; it may quote a URI, whose secrets are hidden."""
        return mask(super().__str__())


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
            f"{name!r} is damaged: {why}; fetch it again or take it out of the input, {_THEN}, "
            'or declare the source with damaged="quarantine", which keeps what can be read before the damage'
        )


class WrongFormat(DamagedInput):
    """A file holds another format than its name promises."""

    def __init__(self, name: str, what: str, promised: str = "JSON Lines") -> None:
        self.why = f"no {promised} but {what}"
        InputError.__init__(
            self,
            f"{name!r} holds {self.why}, or take it out of the input, {_THEN}, "
            'or declare the source with damaged="quarantine", which goes on without it',
        )


#: What a system says of a device, or of a server behind a mount, that has failed; trying again later may help.
_DEVICE_ERRORS = frozenset(
    {errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG, errno.ETIMEDOUT}
)


class DeviceFailed(DamagedInput):
    """The bytes of a file cannot be got from its device. Its fragment halts alone: what lies elsewhere is read on."""

    def __init__(self, name: str, at: int, error: OSError) -> None:
        self.why = f"its device failed ({error.strerror}) at byte {at}"
        InputError.__init__(
            self,
            f"cannot read {name!r}: {error.strerror} at byte {at}; look into the kernel log and see to the disk or the "
            'mount, then run again; or declare the source with damaged="quarantine", which keeps what could be read',
        )


def is_device_error(error: OSError) -> bool:
    """Whether it is the device that failed, and not the file or the right to it."""
    return error.errno in _DEVICE_ERRORS


class StageContractError(Exception):
    """A stage gave back something that is no answer to the batch it was given; ends the run and names the stage."""
