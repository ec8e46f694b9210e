"""What `--help` prints: one layout for every command, with examples; and the commands' reference from the same facts.

Every command of the application is made of `application()`, so that none looks otherwise.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.client import Interrupted

#: Options and arguments that mean the same for each command that has them.
COMMON = (
    "-h, --help Show this help.",
    "--json Print one JSON object on standard output.",
    "--controller ADDRESS The controller; default: HEADRACE_CONTROLLER, else this user's on this host.",
    "--cluster DIR The cluster's folder, for mutual TLS; default: HEADRACE_CLUSTER.",
    "URI The dataset's URI or folder.",
    "URI The dataset's URI or folder; URI@VERSION or URI@TAG.",
    "--wait Return when it is done.",
    "PIPELINE The pipeline's name.",
    "--tokenizer NAME The tokenizer, if it is not where the pipeline had it.",
)

#: The commands in the order in which `headrace --help` and docs/reference/commands.md have them.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Run on this machine": ("quickstart", "examples", "run"),
    "Daemons": ("controller", "worker", "cluster", "launch", "metrics"),
    "Control pipelines": (
        *("apply", "queue", "status", "top", "logs", "what-if", "cost", "pause", "resume", "scale", "move", "relink"),
        *("insert", "replace", "remove", "drain", "stop", "cancel", "clear"),
    ),
    "Size a cluster": ("bench", "advise"),
    "Datasets": ("dataset", "tokenizer"),
    "Test": ("simulate", "chaos"),
    "This program": ("version",),
}
#: Columns of a line, at most: longer ones are hard to read.
COLUMNS_MAX = 100
COLUMNS_MIN = 40
#: Columns of a name, beyond which its meaning begins on the next line.
NAME_COLUMNS_MAX = 30
_UNSAID: Sequence[object] = (None, "", 0, False, [], ())
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Examples of each command, one behind the other; a test holds each to what the command takes.
_EXAMPLES = """
headrace quickstart
headrace quickstart --data /scratch --fresh --steps 200
headrace examples
headrace examples fineweb --to fineweb.py
headrace examples systemd --to ./
headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=data/fineweb -p tokenizer=deepseek
headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=data/fineweb --limit 1000
headrace run examples/plain.py -p input='s3://corpus/*.zst?endpoint=http://10.0.0.5:9000' \\
    -p output=data/plain -p tokenizer=tokenizer.json --max-quarantined 1% --json
headrace controller --page 127.0.0.1:7430
headrace controller --cluster cluster --listen 10.77.0.1:7420 --root s3://bucket/cluster
headrace worker --name one
headrace worker --join token --state member --label disk=ssd
headrace worker --state member
headrace metrics board
headrace metrics rules
headrace cluster init cluster --controller 10.77.0.1:7420 --name press
headrace cluster token cluster --name one
headrace cluster token cluster --nodes 8 --days 7
headrace cluster operator cluster anna --name anna
headrace cluster renew cluster
headrace cluster expel one --yes
headrace cluster expel anna --operator --yes
headrace launch slurm --nodes 4 --partition cpu --folder /shared/launch -- examples/plain.py \\
    -p input='/shared/corpus/*.jsonl' -p output=/shared/data/plain
headrace launch slurm --nodes 4 --dry-run
headrace launch ssh --host node1 --host anna@node2 --headrace /opt/headrace/bin/headrace
headrace launch ray --nodes 4 --cores 8 --python /opt/ray/bin/python
headrace launch kubernetes --nodes 4 --image registry/headrace:1 --root s3://bucket/cluster --dry-run
headrace launch down --folder /shared/launch
headrace apply examples/plain.py -p input='corpus/*.jsonl' -p output=/data/plain --wait
headrace apply examples/plain.py -p input='corpus/*.jsonl' -p output=/data/plain --dry-run \\
    --place read=disk=ssd --place write=two --transport write=quic
headrace status
headrace status plain --json
headrace top
headrace top plain --once
headrace logs --pipeline plain --since 10m
headrace logs --cause apply.3f2a.17
headrace logs --level warning --follow
headrace cost --by user --prices prices.toml
headrace cost --json
headrace what-if plain --cores +4 --without perplexity
headrace what-if plain --replicas tokenize=3 --nic 25G --price 0.04 --json
headrace advise --set gpus=64 --set params=7G --set prepare_days=3
headrace bench --store s3://bucket/bench
headrace bench --serve 10.77.0.1:7430
headrace pause plain --wait
headrace resume plain
headrace scale plain tokenize 8 --wait
headrace move plain write two
headrace move plain read disk=ssd --wait
headrace relink plain write quic
headrace insert plain 'gopher_quality(words_min=80)' --after read --dry-run
headrace insert plain filters.py:clean --before tokenize -p words=80
headrace replace plain gopher-quality 'gopher_quality(words_min=60)' --canary 2%
headrace replace plain gopher-quality 'gopher_quality(words_min=60)'
headrace remove plain gopher-quality
headrace drain one --wait
headrace drain one --back
headrace stop plain --wait
headrace queue set research --weight 3 --cores 64
headrace queue set urgent --priority 10
headrace queue list
headrace queue remove research
headrace cancel plain
headrace clear plain
headrace clear
headrace dataset ls data
headrace dataset ls s3://bucket/data --json
headrace dataset show data/plain
headrace dataset show data/plain --samples --quarantine
headrace dataset show data/plain --card card
headrace dataset page data/plain
headrace dataset log data/plain --limit 3
headrace dataset tag data/plain@2 baseline
headrace dataset rollback data/plain@2
headrace dataset publish data/plain --anyway
headrace dataset diff data/plain@2 data/plain
headrace dataset bisect data/plain --good baseline --run 'python evaluate.py {}'
headrace dataset blame data/plain --checkpoint loader.json --losses loss.csv
headrace dataset blame --checkpoint loader.json --losses loss.csv --columns it,nll --offset 1 --json
headrace dataset head data/plain -n 3
headrace dataset cat data/plain@2 doc-000042
headrace dataset sample data/plain --seed 7
headrace dataset verify data/plain
headrace dataset verify data/plain --gate gate.toml
headrace dataset trace data/plain doc-000042
headrace dataset trace data/plain shards/1/6f0c1d2e3b4a59687786a5b4c3d2e1f0.safetensors:17
headrace dataset trace --checkpoint loader.json --step 1000
headrace dataset trace --checkpoint loader.json --step 1000 --moved web=s3://lake/web
headrace dataset export data/plain out --format mds
headrace dataset push data/texts hf://datasets/owner/name
headrace dataset mirror data/plain --delta tables/plain
headrace dataset mirror data/plain --iceberg ./tables --table corpus.plain
headrace dataset rebuild data/plain 3f2a91 --trust-code --restore
headrace dataset contamination data/plain --suites suites/gsm8k.jsonl --out list.jsonl
headrace dataset dedup data/web data/books --against data/old --out duplicates.jsonl
headrace dataset dedup data/web --keep longest --dry-run
headrace dataset split data/web data/held-out --against data/books
headrace dataset repeats data/text --out lines.idx --records-min 10
headrace dataset retract data/plain doc-000042 doc-000077
headrace dataset retract data/plain --source file:///corpus/leaked.jsonl
headrace dataset retract data/plain --where 'user == "u42"'
headrace dataset purge data/plain --checkpoint loader.json --json
headrace dataset gc data/plain --dry-run
headrace dataset compact data/plain data/plain-large --shard-mib 512
headrace dataset rm data/plain --yes
headrace tokenizer train 'corpus/*.jsonl' tokenizer.json --vocab-size 32000
headrace simulate --seeds 1000
headrace simulate --seed 417
headrace simulate --mutant overlap-ignored
headrace chaos run examples/chaos/tasks.toml examples/plain.py -p input='corpus/*.jsonl' --seed 7
headrace version
"""
#: Where an example ends: at a line that is not indented.
_NEXT = re.compile(r"\n(?! )")
_GROUPS = ("chaos", "cluster", "dataset", "launch", "queue", "tokenizer")


def _by_command(text: str) -> dict[str, list[str]]:
    """The examples by what follows `headrace` up to the first argument; a line that is indented goes on."""
    found: dict[str, list[str]] = {}
    for example in _NEXT.split(text.strip()):
        words = example.split()
        found.setdefault(" ".join(words[1 : 3 if words[1] in _GROUPS else 2]), []).append(example)
    return found


EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "headrace quickstart",
        "headrace run examples/plain.py -p input='corpus/*.jsonl' -p output=data/plain -p tokenizer=deepseek",
        "headrace dataset show data/plain",
    ),
    **_by_command(_EXAMPLES),
}


class _Command(TyperCommand):
    """A command whose help is ours, and which is interrupted as every other: its parser would end it without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def get_help(self, ctx: Any) -> str:
        return help_of(self, str(ctx.command_path), _columns())


class _Group(TyperGroup):
    """A group of commands whose help is ours."""

    def get_help(self, ctx: Any) -> str:
        return help_of(self, str(ctx.command_path), _columns())


class Application(typer.Typer):
    """A group of commands that print our help."""

    def __init__(self, help: str, **settings: Any) -> None:  # noqa: A002 - typer's own name
        super().__init__(
            cls=_Group,
            help=help,
            no_args_is_help=True,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Make a function a command, as typer does."""
        make = super().command(name, cls=_Command, **settings)
        return lambda function: make(_ungrouped(function))


def _ungrouped(function: Any) -> Any:
    """A command as typer reads it: where a parameter is a dataclass, it has an option for each field."""
    named = ((name, function.__globals__.get(kind)) for name, kind in function.__annotations__.items())
    groups: dict[str, Any] = {name: kind for name, kind in named if is_dataclass(kind)}
    if not groups:
        return function

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return function(**given)

    own = inspect.signature(function, eval_str=True).parameters.values()
    shown = (
        inspect.signature(groups[item.name], eval_str=True).parameters.values() if item.name in groups else [item]
        for item in own
    )
    command.__dict__["__signature__"] = inspect.Signature(
        [item.replace(kind=item.KEYWORD_ONLY) for item in chain.from_iterable(shown)]
    )
    return command


def help_of(command: Any, path: str, columns: int, without: Collection[str] = ()) -> str:
    """The help of a command or a group, `path` being how it is called; no line is longer than `columns`.

    `without` are rows that are left out: the name and the meaning of each.
    """
    lines = [f"Usage: {usage_of(command, path)}", ""]
    lines += _wrapped(" ".join(str(command.help or "").split()), columns, 2)
    for title, all_rows in tables_of(command):
        rows = [row for row in all_rows if " ".join(" ".join(row).split()) not in without]
        lines += ["", f"{title}:", *_table(rows, columns)] if rows else []
    examples = EXAMPLES.get(path.removeprefix("headrace").strip(), ())
    if examples:
        lines += ["", "Examples:", *(f"  {line}" for example in examples for line in example.splitlines())]
    if path == "headrace":
        lines += ["", "`headrace COMMAND --help` shows options and examples; docs/guide/cli.md is the guide."]
    return "\n".join(lines)


def usage_of(command: Any, path: str) -> str:
    """How a command is called, in a line."""
    if getattr(command, "commands", None) is not None:
        return f"{path} COMMAND ..."
    return " ".join([path, *(_argument(param) for param in _arguments(command)), "[OPTIONS]"])


def tables_of(command: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The parts of a command's help: each with its title, and a name and a meaning a row."""
    commands: dict[str, Any] = getattr(command, "commands", None) or {}
    sections = SECTIONS if set(commands) >= set(SECTIONS["Daemons"]) else {"Commands": tuple(commands)}
    for title, names in sections.items() if commands else ():
        yield title, [(name, _summary(commands[name])) for name in names]
    if arguments := [(_argument(param), str(param.help or "")) for param in _arguments(command)]:
        yield "Arguments", arguments
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    rows = [(_option(param), _help_text(param)) for param in options]
    yield "Options", [*rows, ("-h, --help", "Show this help.")]


def reference(command: Any) -> str:
    """docs/reference/commands.md."""
    parts = [
        (
            "# Every command\n\n"
            "What `--help` prints, written by `make reference`. [The guide](../guide/cli.md) says what each is for.\n"
            "What many commands share is left out below:\n\n```\n" + "\n".join(COMMON) + "\n```\n"
        )
    ]
    run = command.commands["run"]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            top = command.commands[name]
            for path, each in ((f"{name} {sub}", each) for sub, each in getattr(top, "commands", {}).items()):
                parts.append(_chapter(each, f"headrace {path}", run))
            if not hasattr(top, "commands"):
                parts.append(_chapter(top, f"headrace {name}", run))
    return "".join(parts)


def _chapter(command: Any, path: str, run: Any) -> str:
    without = {*COMMON}
    lead: list[str] = []
    if path == "headrace apply":
        # Most of its options are those of a run.
        without |= {" ".join(row) for _, rows in tables_of(run) for row in rows}
        lead = ["", "  It takes the options of `headrace run` but `--limit`, and:"]
    _, _, first, *lines = help_of(command, path, COLUMNS_MAX, without).splitlines()
    text = "\n".join((first, *lead, *lines))
    return f"\n### {usage_of(command, path)}\n```\n{text}\n```\n"


def _summary(command: Any) -> str:
    """The first sentence of what a command is."""
    text = " ".join(str(command.help or "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    name += "..." if param.nargs == -1 else ""
    return name if param.required else f"[{name}]"


def _option(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"{names} / {', '.join(param.secondary_opts)}"
    return names if param.is_flag else f"{names} {param.metavar or param.name.upper()}"


def _help_text(param: Any) -> str:
    text = str(param.help or "")
    if param.required:
        return f"{text} [required]"
    default = param.default
    if default in _UNSAID or param.is_flag:
        return text
    return f"{text} [default: {default}]"


def _table(rows: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    width = max((len(name) for name, _ in rows if len(name) <= NAME_COLUMNS_MAX), default=NAME_COLUMNS_MAX)
    for name, meaning in rows:
        lines = _wrapped(meaning, columns, width + 4)
        if len(name) > width:
            yield f"  {name}"
        elif lines:
            lines[0] = f"  {name:<{width}}  {lines[0].lstrip()}"
        else:
            lines = [f"  {name}"]
        yield from lines


def _wrapped(text: str, columns: int, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, columns, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def _columns() -> int:
    return max(COLUMNS_MIN, min(COLUMNS_MAX, shutil.get_terminal_size((COLUMNS_MAX, 24)).columns))
