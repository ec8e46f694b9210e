"""The options of `headrace run` and `headrace apply`: one table, for both parsers of the command line.

`parse_run` reads a correct `headrace run`: typer takes 0.1 s of processor time to import, while a run's first processes
want the cores. What it refuses, and --help, goes to typer, whose parameters `main` makes from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.client import UsageError, pairs_by_stage

if TYPE_CHECKING:
    from headrace.client import RunOptions

#: Treatments of input that changed or vanished; the first is the default.
CHANGED_INPUT = ("halt", "drop", "reread")
#: Whether a run scales by itself; the first is the default.
AUTOSCALE = ("off", "advise", "on")
#: Largest number of records in an option.
RECORDS_MAX = 1 << 53


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flags, the flag that switches it off, and the values that it takes."""

    name: str
    help: str
    default: Any = ""
    kind: type = str
    metavar: str = ""
    minimum: int | None = None
    off: str = ""
    repeated: bool = False
    #: Where they are not the name behind two dashes.
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.flags:
            object.__setattr__(self, "flags", (f"--{self.name.replace('_', '-')}",))


PARAMETER = Option(
    "parameter", "A parameter of build(); repeatable.", metavar="NAME=VALUE", repeated=True, flags=("-p", "--parameter")
)
LIMIT = Option("limit", "Preview the first N records, and write nothing.", None, int, "N", 1)
JSON = Option("json", "Print one JSON object on standard output.", False, bool)
SHARED = (
    Option("fuse", "Fuse adjacent stages into one task (default), or give each its own.", True, bool, off="--no-fuse"),
    Option("replicas", "Tasks of each stage; default: one a core.", 0, int, "N", 0),
    Option("amend", "Continue a dataset of another pipeline: process its open input.", False, bool),
    Option("base", "Take over verdicts of unchanged stages.", metavar="DATASET@VERSION", flags=("--from",)),
    Option("judge_again", "With --from: judge these records again.", metavar="quarantined"),
    Option(
        "max_quarantined", "End the run when more records are quarantined; 100% never ends it.", "50%", metavar="N|N%"
    ),
    Option(
        "record_seconds",
        "Limit on a stage's time for one record, in seconds; default: 60. For a batch: 10 times that.",
        0.0,
        float,
        "S",
        0,
    ),
    Option("task_memory", "Limit on one task's memory; default: its core's share of 90 %.", 0, int, "MIB", 0),
    Option(
        "changed_input",
        "Treatment of input that changed after it was read, or vanished before its end.",
        CHANGED_INPUT[0],
        metavar="|".join(CHANGED_INPUT),
    ),
    Option("seal_seconds", "Largest age at which a sink seals its shard, in seconds; default: 30.", 0.0, float, "S", 0),
    Option("gate", "Publish only a version that meets this TOML file; else hold it.", "", metavar="FILE"),
    Option("gate_pauses", "Pause the run when its closed records do not meet the gate.", False, bool),
    Option(
        "autoscale",
        "Scale the tasks of stages by their measured speed, or only advise it.",
        AUTOSCALE[0],
        metavar="|".join(AUTOSCALE),
    ),
    Option("follow_links", "Follow symbolic links out of the input's folder.", False, bool),
)
PLACES = (
    Option(
        "place",
        "Run a stage on a worker, or on workers with a label; repeatable.",
        metavar="STAGE=PLACE",
        repeated=True,
    ),
    Option(
        "transport", "Transport of the links into a stage; repeatable.", metavar="STAGE=ring|pipe|quic", repeated=True
    ),
)
QUEUE = (
    Option("queue", "Wait in this queue for cores; default: the one named default.", metavar="QUEUE"),
    Option("cores", "With a queue: cores to wait for and to use; default: all.", 0, int, "N", 0),
    Option("priority", "With a queue: starts before pipelines of lower priority.", 0, int, "N"),
)
PAGE = Option("page", "Show the run in a browser: serve a page on this host.", False, bool)
RUN = (PARAMETER, LIMIT, *SHARED, PAGE, JSON)


def defaults(options: Sequence[Option]) -> dict[str, Any]:
    """The value of each option that is not given."""
    return {option.name: [] if option.repeated else option.default for option in options}


def parse_run(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The options and the `pipeline` of a `headrace run`; None for any other line, wrong usage included."""
    if arguments[:1] != ["run"]:
        return None
    by_flag = {flag: option for option in RUN for flag in (*option.flags, option.off) if flag}
    found, files, rest = defaults(RUN), list[Path](), iter(arguments[1:])
    for item in rest:
        flag, assigned, text = item.partition("=") if item.startswith("--") else (item, "", "")
        option = by_flag.get(flag)
        if option is None:
            if item.startswith("-") or not item:
                return None
            files.append(Path(item))
        elif option.kind is bool:
            if assigned:
                return None
            found[option.name] = flag != option.off
        else:
            text = text if assigned else next(rest, "")
            value = _value(option, text)
            if value is None:
                return None
            found[option.name] = [*found[option.name], value] if option.repeated else value
    return {**found, "pipeline": files[0]} if len(files) == 1 else None


def _value(option: Option, text: str) -> Any:
    """The text as the option takes it, or None."""
    if not text or text.startswith("-"):
        return None
    try:
        value = option.kind(text)
    except ValueError:
        return None
    return None if option.minimum is not None and not value >= option.minimum else value


def run_command(given: Mapping[str, Any]) -> int:
    """Carry out a `headrace run`; the exit code."""
    follow_links, as_json = bool(given["follow_links"]), bool(given["json"])
    if given["limit"] is not None:
        from headrace.cli.commands import preview_file

        limit = int(given["limit"])
        return preview_file(given["pipeline"], given["parameter"], limit, follow_links=follow_links, as_json=as_json)
    from headrace.cli.commands import run_file

    return run_file(
        given["pipeline"],
        given["parameter"],
        lambda: run_options(given),
        base=(given["base"], given["judge_again"]),
        follow_links=follow_links,
        page=bool(given["page"]),
        as_json=as_json,
    )


#: Options of the command line that a run has by the same names; a `headrace run` has no queue.
_AS_THEY_ARE = (
    *("amend", "fuse", "replicas", "changed_input", "gate_pauses", "autoscale"),
    *("queue", "cores", "priority"),
)


def run_options(given: Mapping[str, Any]) -> RunOptions:
    """How to run a pipeline, from the options of the command line. Raises UsageError."""
    from headrace.client import RunOptions

    records, share = _allowance(given["max_quarantined"])
    if given["changed_input"] not in CHANGED_INPUT:
        raise UsageError(f"--changed-input {given['changed_input']!r}: give one of {', '.join(CHANGED_INPUT)}")
    if given["autoscale"] not in AUTOSCALE:
        raise UsageError(f"--autoscale {given['autoscale']!r}: give one of {', '.join(AUTOSCALE)}")
    return RunOptions(
        **{name: given[name] for name in _AS_THEY_ARE if name in given},
        quarantined_max=records,
        quarantined_share_max=share,
        places=pairs_by_stage("--place", given.get("place", ())),
        transports=pairs_by_stage("--transport", given.get("transport", ())),
        record_s=given["record_seconds"],
        task_bytes=given["task_memory"] << 20,
        seal_age_s=given["seal_seconds"],
        gate=_gate(given["gate"]),
    )


def _gate(path: str) -> dict[str, Any]:
    """The gate that a file describes. It is read with what shows datasets, which loads Arrow."""
    if not path:
        return {}
    from headrace.cli.commands.dataset import read_gate

    return read_gate(path)


def _allowance(text: str) -> tuple[int | None, float | None]:
    """`100` as records, `1%` as a share."""
    if not text:
        return None, None
    try:
        if not text.endswith("%"):
            records = int(text)
            if 0 <= records <= RECORDS_MAX:
                return records, None
        else:
            share = float(text[:-1]) / 100
            if 0 <= share <= 1:
                return None, share
    except ValueError:
        pass
    raise UsageError(f"--max-quarantined {text!r}: give a number of records, such as 100, or a share, such as 1%")
