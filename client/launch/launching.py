"""The shell of a launch: makes the cluster, writes the plan's files, runs its calls, and remembers how to end it.

A launch has a folder: `launch.json` says what was asked for and answered, `cluster/` is the cluster's. It is written
before the first call, so that a launch that was killed in the middle can be ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import IO

from headrace.client import EXIT_INTERRUPTED, CliError, UsageError, make_cluster, make_token
from headrace.client.launch.core.asked import (
    CONTROLLER_FILES,
    OPERATOR_FILES,
    Call,
    Launch,
    LaunchError,
    LaunchInput,
    check,
)
from headrace.client.launch.core.kubernetes import JOINS_PER_WORKER, PIPELINE_BYTES_MAX
from headrace.client.launch.core.plan import LAUNCHERS, read, shown
from headrace.cluster import NODES_PER_TOKEN_MAX, write_public, write_secret
from headrace.controller.membership import ClusterFiles, ClusterFilesError
from headrace.daemon import hear, printable, restore
from headrace.store.files import disk

#: Seconds of one call; calls that run together; bytes of its answer and of a remembered launch.
CALL_S, CALLS_MAX, ANSWER_BYTES_MAX, REMEMBERED_BYTES_MAX = 180.0, 16, 4096, 4 << 20
REMEMBERED = "launch.json"
_DRIVER = Path(__file__).with_name("ray_driver.py")


def start_launch(launcher: str, asked: Launch, *, dry_run: bool) -> int:
    """Start a launch, or print its plan. With a pipeline: wait for its end, and end all. Raises CliError."""
    kind, folder = LAUNCHERS[launcher], Path(asked.folder)
    try:
        check(asked)
        text = _pipeline(asked)
        plan = kind.plan(asked, LaunchInput(driver=str(_DRIVER), version=version("headrace"), pipeline=text))
    except LaunchError as error:
        raise UsageError(str(error)) from error
    if dry_run:
        print(shown(plan))
        return 0
    _own(folder)
    if (folder / REMEMBERED).exists():
        raise CliError(f"{folder} has a launch: end it with `headrace launch down --folder {folder}`")
    for program in sorted({call.argv[0] for step in plan.start for call in step}):
        if shutil.which(program) is None:
            raise CliError(f"{program} is not installed here")
    files = _cluster(asked, kind.address(asked))
    joins = min(NODES_PER_TOKEN_MAX, asked.nodes * (JOINS_PER_WORKER if launcher == "kubernetes" else 1))
    token = make_token(files, asked.name, asked.days, joins)
    plan = kind.plan(asked, LaunchInput(_texts(files.folder), token, text, version("headrace"), str(_DRIVER)))
    answers: dict[str, str] = {}
    _remember(folder, launcher, asked, answers)
    try:
        for file in plan.files:
            write_secret(folder / file.name, file.text.encode())
            (folder / file.name).chmod(file.mode)
        for step in plan.start:
            answers |= _run(step)
            _remember(folder, launcher, asked, answers)
    except CliError as error:
        _end_after(folder, error)
        raise
    if found := answers.get("address"):
        _address(files, found)
    print(f"headrace: {printable(plan.said.format_map(answers))}", file=sys.stderr)
    if not plan.run:
        print(f"headrace status --cluster {files.folder}")
        return 0
    try:
        return _to_its_end(plan.run, asked.cwd)
    finally:
        _end(folder)


def _to_its_end(words: Sequence[str], cwd: str) -> int:
    """Run a command; its exit code. The first Ctrl-C is left to it, which hears it too; the next signal kills it."""
    running = subprocess.Popen(words, cwd=cwd)  # noqa: S603 - no shell reads it
    try:
        # `wait` holds a Ctrl-C back for a moment, in which a second one would end this process and no other.
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        return running.wait()
    except KeyboardInterrupt:
        before = hear(lambda _number, _frame: running.kill())
        try:
            code = running.wait()
        finally:
            restore(before)
        return EXIT_INTERRUPTED if code in (-signal.SIGINT, -signal.SIGKILL) else code


def end_launch(folder: Path) -> int:
    """End the launch of a folder, if it has one yet; the cluster's folder stays. Raises CliError."""
    if not folder.is_dir():
        raise CliError(f"{folder} is no folder: give the --folder of the launch")
    if not (folder / REMEMBERED).exists():
        print(f"{folder} has no launch")
        return 0
    _own(folder)
    _end(folder)
    return 0


def _end_after(folder: Path, error: CliError) -> None:
    """End what a launch that failed may have begun. Raises CliError with both reasons where that fails, too."""
    try:
        _end(folder)
    except CliError as left:
        said = [str(error), *error.details]
        raise CliError(
            said[0], [*said[1:], *(line for line in (str(left), *left.details) if line not in said)]
        ) from error


def _end(folder: Path) -> None:
    try:
        data = (folder / REMEMBERED).read_bytes()
        if len(data) > REMEMBERED_BYTES_MAX:
            raise LaunchError("it is too large")
        said = json.loads(data)
        asked = read(said["launcher"], said["asked"])
        answers = {str(name): str(value) for name, value in said["answers"].items()}
        steps = LAUNCHERS[said["launcher"]].stop(asked, {**answers, "driver": str(_DRIVER)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, LaunchError) as error:
        raise CliError(f"{folder / REMEMBERED} remembers no launch: {error}") from error
    faults: list[str] = []
    for step in steps:
        try:
            _run(step)
        except CliError as error:
            faults += [str(error), *error.details]
    if faults:
        again = "try again with `headrace launch down`; if the cluster itself is gone, delete the folder"
        raise CliError(f"{folder}: not all has ended; {again}", list(dict.fromkeys(faults)))
    (folder / REMEMBERED).unlink()


def _run(step: Sequence[Call]) -> dict[str, str]:
    """Run calls together; what they answered. Raises CliError with the words of all that failed."""
    answers: dict[str, str] = {}
    faults: list[str] = []
    with ThreadPoolExecutor(min(CALLS_MAX, len(step) or 1)) as pool:
        for call, (code, said, why) in zip(step, pool.map(_call, step), strict=True):
            if code:
                faults.append(f"{_brief(call)}: {why or f'it ended with {code}'}")
            elif call.keep:
                answers[call.keep] = said
    if faults:
        raise CliError(faults[0], faults[1:])
    return answers


def _brief(call: Call) -> str:
    """A call in a line: the program, and the words without the script; of options that end with `--`, what follows."""
    if "--" in call.argv:
        return f"{call.argv[0]} {call.argv[call.argv.index('--') + 1]}"
    return " ".join(word for word in call.argv if len(word) <= 80 and "\n" not in word)


def _call(call: Call) -> tuple[int, str, str]:
    """Its exit code, the last line that it printed, and the last lines of its complaint. No more is held of either."""
    until = time.monotonic() + CALL_S
    try:
        with os.fdopen(os.memfd_create("stdin"), "wb") as given:
            given.write(call.stdin)
            given.seek(0)
            pipe = subprocess.PIPE
            running = subprocess.Popen(call.argv, stdin=given, stdout=pipe, stderr=pipe)  # noqa: S603 - no shell reads it
    except FileNotFoundError:
        return 127, "", f"{call.argv[0]} is not installed here"
    except OSError as error:
        return 1, "", str(error)
    with running:
        try:
            said, why = _tails(running.stdout, running.stderr, until=until)
            running.wait(max(0.0, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            return 1, "", f"no answer within {CALL_S:.0f} s"
        finally:
            running.kill()
    lines, words = said.splitlines(), [_message(line) for line in why.splitlines()[-5:]]
    return running.returncode, lines[-1] if lines else "", "; ".join(words)


def _message(line: str) -> str:
    """What a line of a log says; another line as it stands."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(line)["message"])
    return line


def _tails(*streams: IO[bytes] | None, until: float) -> list[str]:
    """The last ANSWER_BYTES_MAX of each, to their ends. Raises TimeoutError."""
    held = {stream.fileno(): b"" for stream in streams if stream is not None}
    left = set(held)
    while left:
        if time.monotonic() > until:
            raise TimeoutError
        for number in select.select(left, [], [], 1.0)[0]:
            part = os.read(number, 1 << 16)
            held[number] = (held[number] + part)[-ANSWER_BYTES_MAX:]
            if not part:
                left.discard(number)
    return [text.decode(errors="replace").strip() for text in held.values()]


def _remember(folder: Path, launcher: str, asked: Launch, answers: dict[str, str]) -> None:
    said = {"launcher": launcher, "asked": asdict(asked), "answers": answers}
    write_secret(folder / REMEMBERED, json.dumps(said, indent=1).encode())


def _own(folder: Path) -> None:
    """Make the folder, closed to others. Raises CliError for one that another user may change."""
    disk.make_folder(folder, 0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CliError(f"{folder} holds keys, so only you may reach it: chmod 700")


def _cluster(asked: Launch, address: str) -> ClusterFiles:
    """The cluster of the folder: made, or the one of an earlier launch under the address of this one."""
    folder = Path(asked.folder) / "cluster"
    if not (folder / "cluster.json").exists():
        return make_cluster(folder, asked.name, [address])
    try:
        files = ClusterFiles.read(folder)
    except ClusterFilesError as error:
        raise CliError(str(error)) from error
    _address(files, address)
    return ClusterFiles.read(folder)


def _address(files: ClusterFiles, address: str) -> None:
    described = {"name": files.name, "controllers": [address]}
    write_public(files.folder / "cluster.json", json.dumps(described).encode())


def _texts(folder: Path) -> dict[str, str]:
    """The files of the cluster's folder, each byte a character."""
    return {name: (folder / name).read_bytes().decode("latin-1") for name in {*CONTROLLER_FILES, *OPERATOR_FILES}}


def _pipeline(asked: Launch) -> str:
    """The text of the pipeline file, which must be there. Raises CliError."""
    if not asked.pipeline:
        return ""
    path = Path(asked.cwd) / asked.pipeline[0]
    try:
        with path.open("rb") as file:
            return file.read(PIPELINE_BYTES_MAX + 1).decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: after -- comes a pipeline file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no Python file: {error}") from error
