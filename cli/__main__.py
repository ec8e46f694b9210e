"""The first lines of the `headrace` command: what a run waits for longest is started before anything is imported.

The command line is not understood yet. Where it turns out to be wrong, controller and worker see this process end and
go as well (`headrace.client.embedded`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

from headrace.client import EXIT_INTERRUPTED, EXIT_USAGE
from headrace.daemon import mend_streams
from headrace.pipeline import SecretShownError, check_arguments

#: They change a run that may be at work on this host, and give way to it: their imports take half a second of a core.
_GIVE_WAY = ("insert", "replace", "remove", "scale", "move", "relink", "drain")
#: And those that do with an option. The controller has indexes of traces written.
_GIVE_WAY_WITH = {"apply": "--amend", "dataset": "--index"}
#: How much, as nice(2) counts.
_NICE = 10
#: With these a run starts no processes.
_ALONE = ("-h", "--help", "--limit")


def main() -> None:
    """The console script."""
    try:
        _main()
    except KeyboardInterrupt:
        # Before there was a command that could have said so.
        print("headrace: interrupted", file=sys.stderr)
        os._exit(EXIT_INTERRUPTED)


def _main() -> None:
    mend_streams()
    # Before there is a child with the same words in its own command line.
    try:
        check_arguments(sys.argv[1:], os.environ)
    except SecretShownError as error:
        print(f"headrace: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
    # What gRPC complains of, in words of its own, is said by ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # What is imported stays: looking for garbage in it is a tenth of the time that imports take.
    gc.disable()
    if sys.platform == "linux":
        from headrace.daemon import be_interrupted, end_with_starter

        end_with_starter()
        be_interrupted()
    if _gives_way(sys.argv[1:]):
        os.nice(_NICE)
    if sys.platform == "linux" and _starts_processes(sys.argv[1:]):
        from headrace.client import begin

        with contextlib.suppress(OSError):
            begin()
        from headrace.cli.run_options import parse_run, run_command

        if (given := parse_run(sys.argv[1:])) is not None:
            from headrace.cli.ending import leave, outcome

            gc.enable()
            leave(outcome(lambda: run_command(given)))
    from headrace.cli.main import main as command

    gc.enable()
    command()


def _starts_processes(arguments: Sequence[str]) -> bool:
    return arguments[:1] == ["run"] and not any(item.partition("=")[0] in _ALONE for item in arguments)


def _gives_way(arguments: Sequence[str]) -> bool:
    command = arguments[0] if arguments else ""
    return command in _GIVE_WAY or _GIVE_WAY_WITH.get(command) in arguments


if __name__ == "__main__":
    main()
