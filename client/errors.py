"""Errors of commands, each a line for people with an exit code for scripts, and the checks of arguments."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

#: Faults of a file, the store, a pipeline or a daemon.
EXIT_FAULT = 1
#: A command line that cannot be understood.
EXIT_USAGE = 2
#: Ended by Ctrl-C: 128 and the number of SIGINT, as shells have it.
EXIT_INTERRUPTED = 130

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65535
#: What a write fails with that names no file, such as one to standard output.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class CliError(Exception):
    """A failed command: one line with cause and remedy, then details, a line each."""

    exit_code = EXIT_FAULT

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        self.details = tuple(details)
        super().__init__(message)


class UsageError(CliError):
    """A command line that names something absent or malformed."""

    exit_code = EXIT_USAGE


class Interrupted(CliError):  # noqa: N818 - named after what is so
    """The user ended the command."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted")


class ProcessDied(CliError):  # noqa: N818 - named after what is so
    """The controller or the worker of a local run died."""


class ControllerDied(ProcessDied):
    """The controller of a local run died; it can be restarted."""


def explain(error: BaseException) -> CliError | None:
    """An error of the system around us as a CliError; None where it is a fault of Headrace itself.

    The classes are looked up only now: importing them at the start would cost each command what few need.
    """
    if isinstance(error, CliError):
        return error
    if _is_ours(error):
        first, *details = str(error).splitlines() or [type(error).__name__]
        return CliError(first, details)
    if isinstance(error, OSError) and error.filename is not None:
        return CliError(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _FULL:
        return CliError(f"{error.strerror}: free some, then try again")
    if isinstance(error, FileNotFoundError):
        return CliError("the current folder is gone: change to one that stands")
    return None


def _is_ours(error: BaseException) -> bool:
    from headrace.loader import LoaderError
    from headrace.pipeline import PipelineError
    from headrace.stages.runtime import InputError, StageContractError
    from headrace.store import StoreError
    from headrace.store.ledger import EntryError, FoldError

    kinds = (PipelineError, InputError, StageContractError, StoreError, LoaderError, EntryError, FoldError)
    return isinstance(error, kinds)


def check_address(option: str, address: str, *, host_needed: bool = True) -> None:
    """Raises UsageError unless this is HOST:PORT, or PORT alone where no host is needed."""
    found = _ADDRESS.fullmatch(address if host_needed or ":" in address else f"127.0.0.1:{address}")
    if found is None or int(found[2]) > _PORT_MAX:
        raise UsageError(f"{option} {address!r}: give HOST:PORT, such as 127.0.0.1:7420")


def check_without_cluster(option: str, address: str) -> None:
    """Raises UsageError for an address at which nothing is said without mutual TLS."""
    from headrace.daemon import AddressError, check_plain

    try:
        check_plain(address)
    except AddressError as error:
        raise UsageError(f"{option} {error}") from error


def pairs_by_stage(option: str, given: Sequence[str]) -> dict[str, str]:
    """`STAGE=VALUE` pairs of a repeated option. Raises UsageError."""
    pairs = [item.partition("=") for item in given]
    for item, (stage, _, value) in zip(given, pairs, strict=True):
        if not stage or not value:
            raise UsageError(f"{option} {item!r}: give a stage and its value as STAGE=VALUE")
    return {stage: value for stage, _, value in pairs}


def check_pairs(option: str, given: Sequence[str]) -> None:
    """Raises UsageError unless each is KEY=VALUE."""
    for item in given:
        key, _, value = item.partition("=")
        if not key or not value:
            raise UsageError(f"{option} {item!r}: give it as KEY=VALUE, such as disk=ssd")
