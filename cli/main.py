"""The `headrace` command: arguments in, one exit code out.

Commands import what they need when they run, so that `headrace run` has started the controller and the worker before
anything heavy is imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import ClusterFolder, ControllerAddress, Json
from headrace.cli.commands import daemons, dataset_commands, operate
from headrace.cli.ending import leave, outcome
from headrace.cli.help import Application
from headrace.client import EXIT_FAULT, CliError, UsageError
from headrace.pipeline import SecretShownError, check_arguments

if TYPE_CHECKING:
    from headrace.client import RunOptions

app = Application(
    "Raw text in, token shards out, every record accounted for.",
    name="headrace",
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokenizer_app = Application("Make tokenizers.")
app.add_typer(tokenizer_app, name="tokenizer")
chaos_app = Application("Break a run, and prove what comes of it.")
app.add_typer(chaos_app, name="chaos")

daemons.add_to(app)
operate.add_to(app)
dataset_commands.add_to(app)

PipelineFile = Annotated[
    Path, typer.Argument(metavar="PIPELINE.py", help="A file that defines build(...) -> Pipeline.")
]
Parameters = Annotated[
    list[str], typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of build(); may be repeated.")
]
Fuse = Annotated[
    bool, typer.Option("--fuse/--no-fuse", help="Run neighbours in one task, as without it, or each in its own.")
]
Replicas = Annotated[int, typer.Option(min=0, metavar="N", help="Tasks of each stage; without it one a core.")]
Amend = Annotated[
    bool,
    typer.Option("--amend", help="Go on with a dataset that another pipeline began: this one processes what is open."),
]
Places = Annotated[
    list[str],
    typer.Option(
        "--place", metavar="STAGE=PLACE", help="Run a stage on a worker, or on those of a label; may be repeated."
    ),
]
Transports = Annotated[
    list[str],
    typer.Option(
        "--transport", metavar="STAGE=ring|pipe|quic", help="Join a stage to the one before it so; may be repeated."
    ),
]


MaxQuarantined = Annotated[
    str,
    typer.Option(metavar="N|N%", help="End the run when more records are quarantined; 100% ends none."),
]

RecordSeconds = Annotated[
    float,
    typer.Option(
        min=0, metavar="S", help="Seconds that a stage may be at one record; 60 without it. A batch: 10 times that."
    ),
]
TaskMemory = Annotated[
    int, typer.Option(min=0, metavar="MIB", help="Memory that one task may have; without it its core's share of 90 %.")
]
SealSeconds = Annotated[
    float, typer.Option(min=0, metavar="S", help="Age at which a sink closes what it holds; 30 without it.")
]
ChangedInput = Annotated[
    str,
    typer.Option(
        metavar="halt|drop|reread",
        help="What becomes of input that changed since it was read, or vanished while it was open.",
    ),
]

FollowLinks = Annotated[bool, typer.Option("--follow-links", help="Follow links that lead out of the input's folder.")]


@app.command()
def run(
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Preview the first N records, and write nothing.")
    ] = None,
    fuse: Fuse = True,
    replicas: Replicas = 0,
    amend: Amend = False,
    max_quarantined: MaxQuarantined = "50%",
    record_seconds: RecordSeconds = 0.0,
    task_memory: TaskMemory = 0,
    changed_input: ChangedInput = "halt",
    seal_seconds: SealSeconds = 0.0,
    follow_links: FollowLinks = False,
    json: Json = False,
) -> int:
    """Run a pipeline on this machine; the same command again goes on where it stopped."""
    if limit is not None:
        from headrace.cli.commands import preview_file

        return preview_file(pipeline, parameter, limit, follow_links=follow_links, as_json=json)
    from headrace.cli.commands import run_file

    def options() -> RunOptions:
        from headrace.cli.options import make_options

        return make_options(
            amend,
            fuse,
            replicas,
            max_quarantined,
            record_seconds=record_seconds,
            task_memory=task_memory,
            changed_input=changed_input,
            seal_seconds=seal_seconds,
        )

    return run_file(pipeline, parameter, options, follow_links=follow_links, as_json=json)


@app.command()
def apply(
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    controller: ControllerAddress = "",
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end, and show the balance.")] = False,
    fuse: Fuse = True,
    replicas: Replicas = 0,
    amend: Amend = False,
    max_quarantined: MaxQuarantined = "50%",
    record_seconds: RecordSeconds = 0.0,
    task_memory: TaskMemory = 0,
    changed_input: ChangedInput = "halt",
    seal_seconds: SealSeconds = 0.0,
    follow_links: FollowLinks = False,
    place: Places = [],  # noqa: B006 - typer copies it
    transport: Transports = [],  # noqa: B006 - typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and why, and start nothing.")] = False,
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Give a pipeline to a controller."""
    from headrace.cli.commands import apply_file
    from headrace.cli.options import make_options
    from headrace.client import controller_at

    options = make_options(
        amend,
        fuse,
        replicas,
        max_quarantined,
        place,
        transport,
        record_seconds,
        task_memory,
        changed_input,
        seal_seconds,
    )
    at = controller_at(controller, cluster)
    return apply_file(
        pipeline, parameter, at, options, wait=wait, dry_run=dry_run, follow_links=follow_links, as_json=json
    )


@app.command()
def quickstart(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to.")] = Path("data"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin again: remove an earlier quickstart there.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Training steps; without it what fits 20 seconds.")
    ] = None,
    json: Json = False,
) -> int:
    """Filter, tokenize and pack the text that is on this machine, and train on it."""
    from headrace.cli.commands import quickstart as start

    return start(data, fresh=fresh, steps=steps, as_json=json)


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds to run.")] = 100,
    seed: Annotated[int | None, typer.Option(metavar="SEED", help="Replay this one seed.")] = None,
    start: Annotated[int, typer.Option(min=0, metavar="SEED", help="The first seed; 0 without it.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, metavar="N", help="Processes that simulate; without it one a core.")] = 0,
    mutant: Annotated[
        str, typer.Option(metavar="NAME", help="Plant this defect, which the simulator is to find; ? lists them.")
    ] = "",
) -> int:
    """Run the controller's and the worker's own cores in virtual time, with faults, and check every invariant."""
    from headrace.chaos.sim import MUTANTS, main as run_seeds

    if mutant == "?":
        print("\n".join(sorted(MUTANTS)))
        return 0
    if mutant and mutant not in MUTANTS:
        raise UsageError(f"--mutant {mutant!r} is unknown; `headrace simulate --mutant ?` lists them")
    arguments = ["--seeds", str(seeds), "--start", str(start)] if seed is None else ["--seed", str(seed)]
    arguments += ["--jobs", str(jobs)] if jobs else []
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
    shown: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Raw text in, token shards out, every record accounted for."""


@chaos_app.command("run")
def chaos_run(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What goes wrong, and when.")],
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    seed: Annotated[
        int, typer.Option(metavar="SEED", help="Draws every range and choice of the scenario; 0 without it.")
    ] = 0,
    output: Annotated[
        str, typer.Option(metavar="NAME", help="The parameter of build() that is the output.")
    ] = "output",
    id_key: Annotated[str, typer.Option(metavar="KEY", help="The field of JSON Lines that is a record's id.")] = "id",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A dataset of the same pipeline, made without faults; else one is made."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where both datasets are made; else the temporary folder.")
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="s3://...?endpoint=...", help="Make the dataset of the run with faults there.")
    ] = "",
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Do it to the cluster of this controller, which lives.")
    ] = "",
    cluster: Annotated[str, typer.Option(metavar="DIR", help="The folder of that cluster, for mutual TLS.")] = "",
    here: Annotated[bool, typer.Option("--here", help="Hit only what of that cluster runs on this host.")] = False,
    report: Annotated[Path, typer.Option(metavar="DIR", help="The folder of report.md and report.json.")] = Path(
        "chaos-report"
    ),
    rebuilds: Annotated[int, typer.Option(min=0, metavar="N", help="Shards that are made again from the source.")] = 3,
    rounds: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Runs with faults, at most, until all that is planned has been done."),
    ] = 5,
    keep: Annotated[bool, typer.Option("--keep", help="Keep datasets and logs when all is well too.")] = False,
    json: Json = False,
) -> int:
    """Run a pipeline without faults and with them, on outputs of its own, and compare record by record."""
    from headrace.chaos.live import Request, chaos_run as start

    request = Request(
        scenario=scenario,
        pipeline=pipeline,
        parameters=tuple(parameter),
        seed=seed,
        output=output,
        reference=reference,
        folder=folder,
        report=report,
        keep=keep,
        rebuilds=rebuilds,
        rounds=rounds,
        id_key=id_key,
        store=store,
        controller=controller,
        cluster=cluster,
        here=here,
    )
    return start(request, as_json=json)


@tokenizer_app.command("train")
def tokenizer_train(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A glob, as `-p input=` takes it.")],
    output: Annotated[str, typer.Argument(metavar="TOKENIZER.json", help="The file to write.")],
    vocab_size: Annotated[int, typer.Option(metavar="N", help="Tokens of the vocabulary.")] = 32_000,
    sample_mb: Annotated[int, typer.Option(min=1, metavar="MIB", help="Text to train on, at most.")] = 256,
    text_key: Annotated[str, typer.Option(metavar="KEY", help="The field that holds the text.")] = "text",
    json: Json = False,
) -> int:
    """Train a byte-level BPE tokenizer on a sample of a source."""
    from headrace.cli.commands import train_tokenizer

    return train_tokenizer(source, output, vocab_size=vocab_size, sample_mb=sample_mb, text_key=text_key, as_json=json)


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
        return UsageError(f"a command is needed; see `{path} --help`")
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
