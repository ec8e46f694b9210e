"""`headrace dataset bisect`: the first version of a dataset for which a command fails."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

from headrace.cli.ui import console, safe, title
from headrace.client import CliError, UsageError
from headrace.store.datasets import Dataset
from headrace.store.history import version_named

#: What a command ends with for a version that it cannot judge, as in git.
SKIPPED = 125
#: The highest status by which a command says that a version is bad; beyond it, it was killed.
BAD_MAX = 127
#: The variable in which the command finds the version's address.
VARIABLE = "HEADRACE_DATASET"


def bisect(uri: str, command: str, *, good: str, bad: str, as_json: bool) -> int:
    """Run a command on versions between a good and a bad one, and name the first bad one; the exit code."""
    words = shlex.split(command)
    if not words:
        raise UsageError("give the command by --run, with {} for the version's address")
    dataset = Dataset.open(uri)
    first, last = (version_named(dataset.store, dataset.state, name) for name in (good, bad or str(dataset.version)))
    if first >= last:
        raise UsageError(f"the good version {first} is not before the bad one {last}")
    versions = [version for version in sorted(dataset.state.published) if first <= version <= last]

    def judge(version: int) -> bool | None:
        address = f"{uri}@{version}"
        status = _status([word.replace("{}", address) for word in words], address)
        verdict = None if status == SKIPPED else status == 0
        print(f"version {version}: {_WORDS[verdict]}", file=sys.stderr, flush=True)
        return verdict

    candidates = first_bad(versions, judge)
    if as_json:
        print(json.dumps({"dataset": dataset.uri, "good": first, "bad": last, "first_bad": candidates}))
        return 0
    found = " or ".join(map(str, candidates))
    skipped = "; those between were skipped" if len(candidates) > 1 else ""
    console(sys.stdout).print(title(dataset.uri, f"version {found} is the first bad one{skipped}"))
    return 0


_WORDS = {True: "good", False: "bad", None: "skipped"}


def first_bad(versions: Sequence[int], judge: Callable[[int], bool | None]) -> list[int]:
    """The first bad one of versions, of which the first is good and the last is bad.

    Several, where those that `judge` skips (None) lie between. Each is judged once at most.
    """
    good, bad = 0, len(versions) - 1
    skipped: set[int] = set()
    while True:
        middle = (good + bad) // 2
        untried = [place for place in range(good + 1, bad) if place not in skipped]
        if not untried:
            return [versions[place] for place in range(good + 1, bad + 1)]
        place = min(untried, key=lambda one: (abs(one - middle), one))
        verdict = judge(versions[place])
        if verdict is None:
            skipped.add(place)
        elif verdict:
            good = place
        else:
            bad = place


def _status(words: list[str], address: str) -> int:
    """What the command ends with; its output goes to standard error. Raises CliError where it did not end by itself."""
    try:
        done = subprocess.run(  # noqa: S603 - the command is the user's own
            words, stdout=sys.stderr, env={**os.environ, VARIABLE: address}, check=False
        )
    except OSError as error:
        raise CliError(f"cannot run {safe(words[0])}: {error.strerror}") from error
    if not 0 <= done.returncode <= BAD_MAX:
        raise CliError(f"{safe(words[0])} ended with {done.returncode} at {address}: it judged nothing")
    return done.returncode
