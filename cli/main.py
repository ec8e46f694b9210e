"""The `headrace` command: arguments in, one exit code out.

Commands import what they need when they run, so that `headrace run` has started the controller and the worker before
anything heavy is imported here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import daemons, operate
from headrace.cli.arguments import ClusterFolder, ControllerAddress, Json
from headrace.cli.errors import EXIT_FAULT, EXIT_INTERRUPTED, CliError, UsageError, explain

if TYPE_CHECKING:
    from headrace.cli.client import RunOptions

app = typer.Typer(
    name="headrace",
    help="Raw text in, token shards out, every record accounted for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
dataset_app = typer.Typer(help="Look at datasets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dataset_app, name="dataset")
tokenizer_app = typer.Typer(help="Make tokenizers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")
chaos_app = typer.Typer(help="Break a run, and prove what comes of it.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(chaos_app, name="chaos")

daemons.add_to(app)
operate.add_to(app)

PipelineFile = Annotated[
    Path, typer.Argument(metavar="PIPELINE.py", help="A file that defines build(...) -> Pipeline.")
]
Parameters = Annotated[
    list[str], typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of build(); may be repeated.")
]
Fuse = Annotated[bool, typer.Option("--fuse/--no-fuse", help="Run stages that follow one another in one task.")]
Replicas = Annotated[int, typer.Option(min=0, help="Tasks of each stage; 0: as many as there are cores.")]
Amend = Annotated[
    bool, typer.Option("--amend", help="Go on with a dataset that another pipeline began: what is open becomes ours.")
]
Places = Annotated[
    list[str], typer.Option("--place", metavar="STAGE=PLACE", help="Run a stage on a worker, or on those of a label.")
]
Transports = Annotated[
    list[str], typer.Option("--transport", metavar="STAGE=ring|pipe|quic", help="Join a stage to the one before it so.")
]


MaxQuarantined = Annotated[
    str, typer.Option(metavar="N|N%", help="End a run that quarantines more records than this; else none is too many.")
]

RecordSeconds = Annotated[
    float,
    typer.Option(min=0, metavar="S", help="Seconds a stage may be at one record (at a batch: 10 times that); 0: 60."),
]
TaskMemory = Annotated[
    int, typer.Option(min=0, metavar="MIB", help="Memory that one task may have; 0: its core's share of 90 %.")
]
SealSeconds = Annotated[
    float, typer.Option(min=0, metavar="S", help="Seconds after which a sink closes what it holds; 0: 30.")
]
ChangedInput = Annotated[
    str,
    typer.Option(metavar="halt|drop|reread", help="What becomes of input that changed or vanished while it was open."),
]


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
    max_quarantined: MaxQuarantined = "",
    record_seconds: RecordSeconds = 0.0,
    task_memory: TaskMemory = 0,
    changed_input: ChangedInput = "halt",
    seal_seconds: SealSeconds = 0.0,
    json: Json = False,
) -> int:
    """Run a pipeline on this machine; the same command again goes on where it stopped."""
    if limit is not None:
        from headrace.cli.preview import preview_file

        return preview_file(pipeline, parameter, limit, as_json=json)
    from headrace.cli.run import run_file

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

    return run_file(pipeline, parameter, options, as_json=json)


@app.command()
def apply(
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    controller: ControllerAddress = "",
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end, and show the balance.")] = False,
    fuse: Fuse = True,
    replicas: Replicas = 0,
    amend: Amend = False,
    max_quarantined: MaxQuarantined = "",
    record_seconds: RecordSeconds = 0.0,
    task_memory: TaskMemory = 0,
    changed_input: ChangedInput = "halt",
    seal_seconds: SealSeconds = 0.0,
    place: Places = [],  # noqa: B006 - typer copies it
    transport: Transports = [],  # noqa: B006 - typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and why, and start nothing.")] = False,
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Give a pipeline to a controller."""
    from headrace.cli.apply import apply_file
    from headrace.cli.client import controller_at
    from headrace.cli.options import make_options

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
    return apply_file(pipeline, parameter, at, options, wait=wait, dry_run=dry_run, as_json=json)


@app.command()
def quickstart(
    data: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("data"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin again: remove an earlier quickstart there.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; else what fits 20 seconds.")] = None,
    json: Json = False,
) -> int:
    """Filter, tokenize and pack the text that is on this machine, and train on it."""
    from headrace.cli.quickstart import quickstart as start

    return start(data, fresh=fresh, steps=steps, as_json=json)


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 100,
    seed: Annotated[int | None, typer.Option(help="One seed: replay it.")] = None,
    start: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes that simulate; 0: one a core.")] = 0,
    mutant: Annotated[str, typer.Option(help="Plant a defect by name; the simulator is to find it.")] = "",
) -> int:
    """Run the controller's and the worker's own cores in virtual time, with faults, and check every invariant."""
    from headrace.chaos.simulate import main as run_seeds

    arguments = ["--seeds", str(seeds), "--start", str(start)] if seed is None else ["--seed", str(seed)]
    arguments += ["--jobs", str(jobs)] if jobs else []
    return run_seeds([*arguments, *(["--mutant", mutant] if mutant else [])])


@app.command()
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    print(installed("headrace"))
    return 0


@chaos_app.command("run")
def chaos_run(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What goes wrong, and when.")],
    pipeline: PipelineFile,
    parameter: Parameters = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(help="Draws every range and choice of the scenario.")] = 0,
    output: Annotated[
        str, typer.Option(metavar="NAME", help="The parameter of build() that is the output.")
    ] = "output",
    id_key: Annotated[str, typer.Option(help="The field of JSON Lines that is a record's id.")] = "id",
    reference: Annotated[
        Path | None, typer.Option(help="A dataset of the same pipeline, made without faults; else one is made.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where both datasets are made; else the temporary folder.")
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="s3://...?endpoint=...", help="Make the dataset of the run with faults there.")
    ] = "",
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Do it to the cluster of this controller, which lives.")
    ] = "",
    cluster: Annotated[str, typer.Option(metavar="DIR", help="The folder of that cluster, for mutual TLS.")] = "",
    here: Annotated[bool, typer.Option("--here", help="Hit only what of that cluster runs on this host.")] = False,
    report: Annotated[Path, typer.Option(help="The folder of report.md and report.json.")] = Path("chaos-report"),
    rebuilds: Annotated[int, typer.Option(min=0, help="Shards that are made again from the source.")] = 3,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs with faults, at most, until all that is planned has been done.")
    ] = 5,
    keep: Annotated[bool, typer.Option("--keep", help="Keep datasets and logs when all is well too.")] = False,
    json: Json = False,
) -> int:
    """Run a pipeline without faults and with them, on outputs of its own, and compare record by record."""
    from headrace.chaos.live.run import Request
    from headrace.chaos.live.run import chaos_run as start

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
    vocab_size: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 32_000,
    sample_mb: Annotated[int, typer.Option(min=1, help="MiB of text to train on.")] = 256,
    text_key: Annotated[str, typer.Option(help="The field that holds the text.")] = "text",
    json: Json = False,
) -> int:
    """Train a byte-level BPE tokenizer on a sample of a source."""
    from headrace.cli.quality import train_tokenizer

    return train_tokenizer(source, output, vocab_size=vocab_size, sample_mb=sample_mb, text_key=text_key, as_json=json)


@dataset_app.command("ls")
def dataset_ls(root: Annotated[str, typer.Argument(help="A folder, or its URI.")] = ".", json: Json = False) -> int:
    """List the datasets below a folder."""
    from headrace.cli.dataset import list_datasets

    return list_datasets(root, as_json=json)


@dataset_app.command("show")
def dataset_show(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Show the quarantined records too.")] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="Show some of what each filter removed, by reason.")
    ] = False,
    card: Annotated[str, typer.Option(metavar="FOLDER", help="Write the scorecard there, as Markdown and HTML.")] = "",
    json: Json = False,
) -> int:
    """Show what a dataset holds, and what became of each record."""
    if card:
        from headrace.cli.quality import write_card

        return write_card(uri, Path(card))
    from headrace.cli.dataset import show_dataset

    return show_dataset(uri, quarantine=quarantine, samples=samples, as_json=json)


@dataset_app.command("verify")
def dataset_verify(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    gate: Annotated[str, typer.Option(metavar="FILE", help="Hold it against the limits of this TOML file too.")] = "",
    json: Json = False,
) -> int:
    """Check every object and every record against the ledger."""
    if gate:
        from headrace.cli.quality import pass_gate

        failed = pass_gate(uri, gate)
        if failed:
            return failed
    from headrace.cli.dataset import verify_dataset

    return verify_dataset(uri, as_json=json)


@dataset_app.command("trace")
def dataset_trace(
    uri: Annotated[str, typer.Argument(metavar="URI", help="The dataset's URI or folder.")] = "",
    name: Annotated[str, typer.Argument(metavar="ID", help="The record's id.")] = "",
    checkpoint: Annotated[str, typer.Option(metavar="FILE", help="A loader's state: JSON, or a checkpoint.")] = "",
    step: Annotated[int | None, typer.Option(min=0, help="With a checkpoint: what this step read.")] = None,
    document: Annotated[str, typer.Option(metavar="ID", help="With a checkpoint: the steps that read it.")] = "",
    json: Json = False,
) -> int:
    """Say what became of a record, what a training step read, or which steps read a document."""
    from headrace.cli.trace import trace_checkpoint, trace_record

    if checkpoint and (step is not None or document):
        return trace_checkpoint(checkpoint, step=step, document=document, as_json=json)
    if not uri or not name or checkpoint:
        raise UsageError("give a dataset and a record's id, or --checkpoint with --step N or --document ID")
    return trace_record(uri, name, as_json=json)


@dataset_app.command("export")
def dataset_export(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    out: Annotated[str, typer.Argument(help="The folder to write; it must not be there yet.")],
    format: Annotated[str, typer.Option(metavar="megatron|mds|parquet", help="What to write.")],  # noqa: A002
    json: Json = False,
) -> int:
    """Write a dataset in a format that others train with."""
    from headrace.cli.export import export_dataset

    return export_dataset(uri, out, format, as_json=json)


@dataset_app.command("rebuild")
def dataset_rebuild(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    shard: Annotated[str, typer.Argument(help="The hash of one of its objects, as the manifest names it.")],
    restore: Annotated[bool, typer.Option("--restore", help="Put back what is missing and came out the same.")] = False,
    json: Json = False,
) -> int:
    """Make a shard again from its source, and compare it byte for byte."""
    from headrace.cli.trace import rebuild_shard

    return rebuild_shard(uri, shard, restore=restore, as_json=json)


@dataset_app.command("retract")
def dataset_retract(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of records.")] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="URI", help="Every record that was read from this object.")
    ] = None,
    json: Json = False,
) -> int:
    """Publish a version that shows these records no more, and delete what held their text beside the tokens."""
    from headrace.cli.collect import retract_records

    return retract_records(uri, ids or [], source or [], as_json=json)


@dataset_app.command("gc")
def dataset_gc(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    json: Json = False,
) -> int:
    """Delete the objects that no ledger entry names and none ever can, such as those of killed sinks."""
    from headrace.cli.collect import collect_garbage

    return collect_garbage(uri, dry_run=dry_run, as_json=json)


@dataset_app.command("compact")
def dataset_compact(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    into: Annotated[str, typer.Argument(help="Where the compacted dataset goes.")],
    shard_mib: Annotated[int, typer.Option(min=1, help="Merge shards until their tokens have this many MiB.")] = 256,
    json: Json = False,
) -> int:
    """Write a dataset again in fewer and larger shards; the old one stays as it is."""
    from headrace.cli.compaction import compact_dataset

    return compact_dataset(uri, into, shard_bytes=shard_mib << 20, as_json=json)


@dataset_app.command("rm")
def dataset_rm(
    uri: Annotated[str, typer.Argument(help="The dataset's URI or folder.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is deleted.")] = False,
    json: Json = False,
) -> int:
    """Delete a dataset for ever. Its ledger stays and says so: nobody who wakes late can bring it back."""
    from headrace.cli.collect import remove_dataset

    return remove_dataset(uri, agreed=yes, as_json=json)


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors of the system around us become a line on standard error."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain(CliError("interrupted"), EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has enough of it; nothing is left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAULT
    except Exception as error:
        known = _usage(error) or explain(error)
        if known is None or "HEADRACE_TRACEBACK" in os.environ:
            raise
        return _complain(known, known.exit_code)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> CliError | None:
    """What the parser of the command line objects to; its classes are click's, or typer's own copies of them."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "NoArgsIsHelpError" in kinds:
        return UsageError("a command is needed; see `headrace --help`")
    if "ClickException" in kinds:
        return UsageError(str(getattr(error, "format_message", error.__str__)()))
    return UsageError("interrupted") if "Abort" in kinds else None


def _complain(error: CliError, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"headrace: {message}", *(f"  {line}" for line in error.details), sep="\n", file=sys.stderr)
    return code


def main() -> None:
    """The console script."""
    if sys.platform != "linux":
        print(
            f"headrace: Linux is required (this is {sys.platform}): it needs memfd, futexes and pidfds", file=sys.stderr
        )
        raise SystemExit(EXIT_FAULT)
    code = invoke()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # What is left is Python taking its modules apart, for which whoever waits for us would wait a tenth of a second.
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
