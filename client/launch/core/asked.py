"""A launch as values: what is asked for, what each word of it may look like, and what its plan is made of.

Every word of a launch stands in a command line, a shell script or a manifest: it is checked here and quoted there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

#: Nodes of one launch.
NODES_MAX = 4096
#: Characters of a path, an address or an argument; arguments of a pipeline.
TEXT_MAX, ARGUMENTS_MAX = 4096, 256
PORT = 7420
#: Days that a token is good for.
DAYS_MAX = 365

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@:-]{0,127}")
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
_MEMORY = re.compile(r"[1-9][0-9]{0,5}[MGT]i")
_TIME = re.compile(r"[0-9][0-9:-]{0,19}")
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f]")


class LaunchError(Exception):
    """A launch that cannot be: what is wrong, and what to give instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every launch says. `folder` and `cwd` are absolute."""

    name: str
    folder: str
    cwd: str
    nodes: int
    #: Of each worker; 0: all that it may use.
    cores: int = 0
    headrace: str = "headrace"
    #: Of the controller; nodes join on the next one. 0: one chosen by the job's number.
    port: int = PORT
    #: Store of the cluster's log; empty: the launcher's own choice.
    root: str = ""
    days: int = 1
    #: A pipeline file and what else `headrace apply` is given; empty: only start.
    pipeline: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(Launch):
    """A job of `nodes` nodes."""

    partition: str = ""
    account: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(Launch):
    """A worker on each host, and the controller on the first."""

    hosts: tuple[str, ...]
    ssh_config: str = ""
    #: The first host, as the others name it; empty: as ssh does.
    advertise: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Launch):
    """Actors in a placement group of a Ray cluster. `python` is one that can import Ray."""

    address: str = "auto"
    python: str = "python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes(Launch):
    """Pods of a namespace. `credentials` is a Secret there, whose variables the pods get."""

    namespace: str
    image: str
    memory: str = "4Gi"
    credentials: str = ""


#: What each field that others read as a word must look like, and how to say so.
WORDS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "name": (_LABEL, "use a-z, 0-9 and -, at most 40"),
    "partition": (_WORD, "a partition has letters, digits and _.,@:-"),
    "account": (_WORD, "an account has letters, digits and _.,@:-"),
    "time": (_TIME, "give Slurm's time, such as 1-12:00:00"),
    "hosts": (_HOST, "give HOST or USER@HOST; the rest stands in an ssh configuration"),
    "advertise": (_HOST, "give the name or address of a host"),
    "address": (_WORD, "give auto or HOST:PORT"),
    "namespace": (_LABEL, "use a-z, 0-9 and -, at most 40"),
    "image": (_IMAGE, "give an image such as registry/headrace:1"),
    "memory": (_MEMORY, "give it in Mi, Gi or Ti, such as 4Gi"),
    "credentials": (_LABEL, "name a Secret by a-z, 0-9 and -"),
}
#: Texts that may hold anything that prints; the first must be there.
_TEXTS = ("folder", "cwd", "headrace", "python", "root", "ssh_config", "pipeline")
_NEEDED = {"name", "hosts", "namespace", "image", "folder", "cwd", "headrace", "python", "memory", "address"}
_NUMBERS = {"nodes": (1, NODES_MAX), "cores": (0, 65536), "port": (0, 65534), "days": (1, DAYS_MAX)}


def known_as(launch: Launch) -> str:
    """What the launch is called where others are: none of the same name has the same folder."""
    return f"{launch.name}-{hashlib.sha256(launch.folder.encode()).hexdigest()[:12]}"


def check(launch: Launch) -> None:
    """Raises LaunchError for the first word that is not what it must be."""
    for name, value in asdict(launch).items():
        option = "--host" if name == "hosts" else f"--{name.replace('_', '-')}"
        if name in _NUMBERS:
            low, high = _NUMBERS[name]
            if type(value) is not int or not low <= value <= high:
                raise LaunchError(f"{option} {value!r}: give {low} to {high}")
            continue
        words = value if isinstance(value, tuple) else (value,)
        if len(words) > (NODES_MAX if name == "hosts" else ARGUMENTS_MAX):
            raise LaunchError(f"{option}: {len(words)} of them are too many")
        if name in _NEEDED and not all(words):
            raise LaunchError(f"{option}: it may not be empty")
        for word in words:
            _check_word(option, name, word)
    if isinstance(launch, Ssh) and len(set(launch.hosts)) != len(launch.hosts):
        raise LaunchError("--host: a host is named twice")


def _check_word(option: str, name: str, word: object) -> None:
    if not isinstance(word, str):
        raise LaunchError(f"{option} {word!r}: this is no text")
    if len(word) > TEXT_MAX or _UNPRINTED.search(word):
        raise LaunchError(f"{option} {word[:80]!r}: at most {TEXT_MAX} characters, and none that does not print")
    if name in ("folder", "cwd") and not word.startswith("/"):
        raise LaunchError(f"{option} {word!r}: the path must begin with /")
    if name not in _TEXTS and word:
        pattern, advice = WORDS[name]
        if not pattern.fullmatch(word):
            raise LaunchError(f"{option} {word!r}: {advice}")


#: What a controller needs of a cluster's folder, and an operator.
CONTROLLER_FILES = ("cluster.json", "cluster.key", "authority.pem", "authority.key", "controller.pem", "controller.key")
OPERATOR_FILES = ("cluster.json", "authority.pem", "operator.pem", "operator.key")


@dataclass(frozen=True, slots=True)
class LaunchInput:
    """What only the shell knows; words in brackets for a plan that is only shown."""

    cluster: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys({*CONTROLLER_FILES, *OPERATOR_FILES}, ""))
    token: str = "<a token>"  # noqa: S105 - shown in its place
    #: The text of the pipeline file, and this release.
    pipeline: str = "<the pipeline file>"
    version: str = "<version>"
    #: The program that starts actors.
    driver: str = "ray_driver.py"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the launch's folder, for its owner alone."""

    name: str
    text: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class Call:
    """A program that is run, and what it reads. The last line that it prints is kept under the name `keep`."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    what: str = ""
    keep: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Files first; then each step of calls, which run together; then `run` here, and when it has ended, the end."""

    files: tuple[File, ...]
    start: tuple[tuple[Call, ...], ...]
    run: tuple[str, ...] = ()
    #: What to say when all has started; `{folder}` is the launch's.
    said: str = ""
