"""The `headrace` command: arguments in, one exit code out.

Commands import what they need when they run, so that `headrace run` has started the controller and the worker before
anything heavy is imported here.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from headrace.cli.commands import sizing
from headrace.cli.commands.cluster import daemons, launch, operate, queue
from headrace.cli.commands.dataset import dataset_commands
from headrace.cli.ending import leave, outcome
from headrace.cli.help import Application
from headrace.cli.run_options import PARAMETER, PLACES, QUEUE, RUN, SHARED, Option, run_command, run_options
from headrace.cli.ui import CanaryOptions, ControllerOptions, Json
from headrace.client import EXIT_FAULT, CliError, UsageError
from headrace.pipeline import SecretShownError, check_arguments

_Function = TypeVar("_Function", bound=Callable[..., Any])

app = Application(
    "Raw text in, token shards out, every record accounted for.",
    name="headrace",
    pretty_exceptions_enable=False,
)
tokenizer_app = Application("Train tokenizers.")
app.add_typer(tokenizer_app, name="tokenizer")
chaos_app = Application("Inject faults into a run, and check its dataset.")
app.add_typer(chaos_app, name="chaos")

daemons.add_to(app, Application("Make clusters and admit nodes."))
launch.add_to(app, Application("Start a cluster on Slurm, hosts, Ray or Kubernetes; end it."))
operate.add_to(app)
queue.add_to(app, Application("Share a cluster: queues with weights, quotas and priorities."))
sizing.add_to(app)
dataset_commands.add_to(app, Application("Inspect, verify and change datasets."))

Parameters = Annotated[list[str], typer.Option(*PARAMETER.flags, metavar=PARAMETER.metavar, help=PARAMETER.help)]
PipelineFile = Annotated[
    Path, typer.Argument(metavar="PIPELINE.py", help="A Python file with a function build(...) -> Pipeline.")
]


def takes(*options: Option) -> Callable[[_Function], _Function]:
    """Give a command with `**given` these options, as typer reads a signature."""

    def decorate(function: _Function) -> _Function:
        own = [item for item in inspect.signature(function, eval_str=True).parameters.values() if item.name != "given"]
        made = [parameter_of(option) for option in options]
        function.__signature__ = inspect.Signature([*own[:1], *made, *own[1:]])  # type: ignore[attr-defined]
        return function

    return decorate


def parameter_of(option: Option) -> inspect.Parameter:
    """An option of the table as a parameter that typer understands."""
    flags = "/".join([*option.flags, option.off]) if option.off else option.flags
    names = (flags,) if isinstance(flags, str) else flags
    shown = typer.Option(*names, metavar=option.metavar or None, min=option.minimum, help=option.help)
    kind: Any = list[str] if option.repeated else option.kind
    if option.default is None:
        kind = kind | None
    default = [] if option.repeated else option.default
    return inspect.Parameter(
        option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Annotated[kind, shown]
    )


#: Tokens of the largest vocabulary that is trained.
VOCABULARY_MAX = 1 << 24
#: Options of a run without which a preview would show something else than what was asked for.
_NOT_IN_A_PREVIEW = {"base": "--from", "judge_again": "--judge-again", "page": "--page"}


@app.command()
@takes(*RUN)
def run(pipeline: PipelineFile, **given: Any) -> int:
    """Run a pipeline on this machine; the same command again continues where it stopped."""
    if given["limit"] is not None:
        run_options(given)  # a preview needs none of these, but says what is wrong in them
        if unused := [flag for name, flag in _NOT_IN_A_PREVIEW.items() if given[name]]:
            raise UsageError(f"{unused[0]} means nothing to a preview: leave it out, or --limit")
    return run_command({"pipeline": pipeline, **given})


@app.command()
@takes(PARAMETER, *SHARED, *PLACES, *QUEUE)
def apply(
    pipeline: PipelineFile,
    *,
    on: ControllerOptions,
    wait: bool = typer.Option(False, "--wait", help="Show progress until the pipeline ends, then the balance."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan with its reasons; start nothing."),
    canary: CanaryOptions,
    workers: int = typer.Option(0, min=0, metavar="N", help="Wait at most 300 s until so many workers are connected."),
    json: Json = False,
    **given: Any,
) -> int:
    """Give a pipeline to a controller."""
    from headrace.cli.commands import apply_file
    from headrace.client import check_numbers

    check_numbers({"--workers": workers})
    return apply_file(
        pipeline,
        given["parameter"],
        on.at(),
        run_options(given),
        wait=wait,
        dry_run=dry_run,
        base=(given["base"], given["judge_again"]),
        follow_links=given["follow_links"],
        workers=workers,
        canary=canary,
        as_json=json,
    )


@app.command()
def quickstart(
    data: Path = typer.Option(Path("data"), metavar="DIR", help="The folder to write to."),
    fresh: bool = typer.Option(False, "--fresh", help="Remove an earlier quickstart in the folder first."),
    steps: int | None = typer.Option(
        None, min=1, metavar="N", help="Training steps; default: as many as fit 20 seconds."
    ),
    json: Json = False,
) -> int:
    """Filter, tokenize and pack text of this machine, and train a tiny model on it."""
    from headrace.cli.demo import quickstart as start

    return start(data, fresh=fresh, steps=steps, as_json=json)


def _examples_that_begin(incomplete: str) -> list[str]:
    from headrace.cli.commands import known_examples

    return [name for name in known_examples() if name.startswith(incomplete)]


@app.command()
def examples(
    name: str = typer.Argument(
        "",
        metavar="NAME",
        help="The example, or the group of examples; default: all.",
        autocompletion=_examples_that_begin,
    ),
    to: str | None = typer.Option(None, "--to", metavar="FILE", help="Write it to this file, or into this folder/."),
) -> int:
    """List the examples that came with Headrace, print one, or write them out."""
    from headrace.cli.commands import show_examples

    return show_examples(name, to)


@app.command()
def simulate(
    seeds: int = typer.Option(100, min=1, metavar="N", help="Number of seeds."),
    seed: int | None = typer.Option(None, metavar="SEED", help="Replay this one seed."),
    start: int = typer.Option(0, min=0, metavar="SEED", help="The first seed."),
    jobs: int = typer.Option(0, min=0, metavar="N", help="Processes; default: one a core."),
    mutant: str = typer.Option(
        "", metavar="NAME", help="Plant this defect, to see the simulator find it; ? lists all."
    ),
    queues: bool = typer.Option(False, "--queues", help="Several pipelines on one cluster, in queues."),
    dense: bool = typer.Option(False, "--dense", help="60 to 100 moments of faults a seed, not 5 to 50."),
) -> int:
    """Run the cores of controller and worker in virtual time with faults, and check every invariant."""
    from headrace.chaos import ALL_MUTANTS, main as run_seeds

    if mutant == "?":
        print("\n".join(sorted(ALL_MUTANTS)))
        return 0
    if mutant and mutant not in ALL_MUTANTS:
        raise UsageError(f"--mutant {mutant!r} is unknown; `headrace simulate --mutant ?` lists them")
    arguments = ["--seeds", str(seeds), "--start", str(start)] if seed is None else ["--seed", str(seed)]
    arguments += [*(["--jobs", str(jobs)] if jobs else []), *(["--queues"] if queues else [])]
    arguments += ["--dense"] if dense else []
    return run_seeds([*arguments, *(["--mutant", mutant] if mutant else [])])


@app.command()
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    print(installed("headrace"))
    return 0


def _show_version(asked: bool) -> None:
    if asked:
        raise typer.Exit(version())


@app.callback()
def _everywhere(
    shown: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    """Raw text in, token shards out, every record accounted for."""


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What `headrace chaos run` is asked: fields of `headrace.chaos.live.ChaosRequest`."""

    seed: int = typer.Option(0, metavar="SEED", help="Seed of the scenario's ranges and choices.")
    output: str = typer.Option("output", metavar="NAME", help="The parameter of build() that names the output.")
    id_key: str = typer.Option("id", metavar="KEY", help="The JSON Lines field of the record id.")
    reference: Path | None = typer.Option(
        None, metavar="DIR", help="A dataset of the same pipeline without faults; default: made first."
    )
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="Folder for both datasets; default: the temporary folder."
    )
    store: str = typer.Option("", metavar="s3://...?endpoint=...", help="Store for the dataset of the run with faults.")
    controller: str = typer.Option(
        "", metavar="HOST:PORT", help="Inject faults into the running cluster of this controller."
    )
    cluster: str = typer.Option("", metavar="DIR", help="Folder of that cluster, for mutual TLS.")
    here: bool = typer.Option(False, "--here", help="Inject faults only into processes of that cluster on this host.")
    report: Path = typer.Option(Path("chaos-report"), metavar="DIR", help="Folder for report.md and report.json.")
    rebuilds: int = typer.Option(3, min=0, metavar="N", help="Shards to rebuild from the source and compare.")
    rounds: int = typer.Option(
        5, min=1, metavar="N", help="Maximum runs with faults until every planned fault was injected."
    )
    keep: bool = typer.Option(False, "--keep", help="Keep datasets and logs even if every check passes.")


@chaos_app.command("run")
def chaos_run(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="The faults and their times.")],
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    *,
    asked: ChaosOptions,
    json: Json = False,
) -> int:
    """Run a pipeline without faults and with faults, on separate outputs, and compare record by record."""
    from headrace.chaos.live import ChaosRequest, chaos_run as start

    request = ChaosRequest(scenario, pipeline, tuple(parameter), **asdict(asked))
    return start(request, as_json=json)


@tokenizer_app.command("train")
def tokenizer_train(
    source: str = typer.Argument(metavar="INPUT", help="Input as in `-p input=`: a path, glob, folder or s3:// URI."),
    output: str = typer.Argument(metavar="TOKENIZER.json", help="The file to write."),
    vocab_size: int = typer.Option(32_000, max=VOCABULARY_MAX, metavar="N", help="Size of the vocabulary."),
    sample_mb: int = typer.Option(256, min=1, metavar="MIB", help="Maximum size of the sample."),
    text_key: str = typer.Option("text", metavar="KEY", help="The field of the text."),
    json: Json = False,
) -> int:
    """Train a byte-level BPE tokenizer on a sample of a source."""
    from json import dumps

    from headrace.stages.library import read
    from headrace.stages.tokenizer import train_tokenizer
    from headrace.store import counted

    text = read(source, text_key=text_key)
    trained = train_tokenizer(text, output, vocab_size=vocab_size, sample_bytes=sample_mb << 20)
    sample = f"{counted(trained.records, 'record')}, {trained.sample_bytes / 1e6:.1f} MB"
    line = f"{trained.path}: {trained.vocab_size:,} tokens, trained on {sample}"
    print(dumps(asdict(trained)) if json else line)
    return 0


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors of the system around us become a line on standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def call() -> object:
        check_arguments(given, os.environ)
        return app(args=given, prog_name="headrace", standalone_mode=False)

    return outcome(call, _usage)


def _usage(error: Exception) -> CliError | None:
    """What the parser of the command line objects to; its classes are click's, or typer's own copies of them."""
    if isinstance(error, SecretShownError):
        return UsageError(str(error))
    kinds = {kind.__name__ for kind in type(error).__mro__}
    path = getattr(getattr(error, "ctx", None), "command_path", "headrace")
    if "NoArgsIsHelpError" in kinds:
        return UsageError(f"give a command; see `{path} --help`")
    if "ClickException" in kinds:
        message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        return UsageError(
            f"{message[:1].lower()}{message[1:]}{'' if message.endswith('?') else ';'} see `{path} --help`"
        )
    return UsageError("interrupted") if "Abort" in kinds else None


def main() -> None:
    """The console script."""
    if sys.platform != "linux":
        print(
            f"headrace: Linux is required (this is {sys.platform}): it needs memfd, futexes and pidfds", file=sys.stderr
        )
        raise SystemExit(EXIT_FAULT)
    leave(invoke())


if __name__ == "__main__":
    main()
