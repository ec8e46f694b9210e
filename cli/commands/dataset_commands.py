"""The commands on datasets.

Like those of `main`, they import what they need when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import Application, Json
from headrace.client import UsageError

Dataset = Annotated[str, typer.Argument(metavar="URI", help="The dataset's URI or folder.")]

dataset_app = Application("Look at datasets, check them, change what they show.")


def add_to(app: typer.Typer) -> None:
    """Give an application these commands."""
    app.add_typer(dataset_app, name="dataset")


@dataset_app.command("ls")
def dataset_ls(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A folder, or its URI.")] = ".", json: Json = False
) -> int:
    """List the datasets below a folder."""
    from headrace.cli.commands.dataset import list_datasets

    return list_datasets(root, as_json=json)


@dataset_app.command("show")
def dataset_show(
    uri: Dataset,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Show the quarantined records too.")] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="Show some of what each filter removed, by reason.")
    ] = False,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Show each closed range, and the pipeline that closed it.")
    ] = False,
    card: Annotated[str, typer.Option(metavar="FOLDER", help="Write the scorecard there, as Markdown and HTML.")] = "",
    json: Json = False,
) -> int:
    """Show what a dataset holds, and what became of each record."""
    if card:
        from headrace.cli.commands.quality import write_card

        return write_card(uri, Path(card))
    from headrace.cli.commands.dataset import show_dataset

    return show_dataset(uri, quarantine=quarantine, samples=samples, ranges=ranges, as_json=json)


@dataset_app.command("verify")
def dataset_verify(
    uri: Dataset,
    gate: Annotated[str, typer.Option(metavar="FILE", help="Hold it against the limits of this TOML file too.")] = "",
    json: Json = False,
) -> int:
    """Check every object and every record against the ledger."""
    if gate:
        from headrace.cli.commands.quality import pass_gate

        failed = pass_gate(uri, gate)
        if failed:
            return failed
    from headrace.cli.commands.dataset import verify_dataset

    return verify_dataset(uri, as_json=json)


@dataset_app.command("trace")
def dataset_trace(
    uri: Dataset = "",
    name: Annotated[str, typer.Argument(metavar="ID", help="The record's id.")] = "",
    checkpoint: Annotated[str, typer.Option(metavar="FILE", help="A loader's state: JSON, or a checkpoint.")] = "",
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="With a checkpoint: what this step read; the first is 0.")
    ] = None,
    document: Annotated[str, typer.Option(metavar="ID", help="With a checkpoint: the steps that read it.")] = "",
    moved: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URI", help="With a checkpoint: where a dataset of it lies now; may be repeated."),
    ] = None,
    trust_uris: Annotated[
        bool,
        typer.Option("--trust-uris", help="With --checkpoint: connect to the servers that it names."),
    ] = False,
    json: Json = False,
) -> int:
    """Say what became of a record, what a training step read, or which steps read a document."""
    if checkpoint:
        if (step is None) == (not document) or name:
            raise UsageError("give --checkpoint with --step N, or with --document ID")
        from headrace.cli.commands.trace_checkpoint import trace_checkpoint

        return trace_checkpoint(
            checkpoint, uri, step=step, document=document, as_json=json, moved=moved or (), trusted=trust_uris
        )
    if not uri or not name or document or step is not None or moved:
        raise UsageError("give a dataset and a record's id, or --checkpoint with --step N or --document ID")
    from headrace.cli.commands.trace import trace_record

    return trace_record(uri, name, as_json=json)


@dataset_app.command("export")
def dataset_export(
    uri: Dataset,
    out: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder to write; it must not be there yet.")],
    format: Annotated[str, typer.Option(metavar="megatron|mds|parquet", help="What to write.")],  # noqa: A002
    version: Annotated[
        int | None, typer.Option(metavar="N", help="An older version; the newest that was published without it.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a version of a dataset in a format that others train with."""
    from headrace.cli.commands.export import export_dataset

    return export_dataset(uri, out, format, version, as_json=json)


@dataset_app.command("rebuild")
def dataset_rebuild(
    uri: Dataset,
    shard: Annotated[
        str, typer.Argument(metavar="HASH", help="The hash of one of its objects, as the manifest names it.")
    ],
    restore: Annotated[bool, typer.Option("--restore", help="Put back what is missing and came out the same.")] = False,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            help="Run the code and read the places that the dataset's ledger names; without this they are only named.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Make a shard again from its source, and compare it byte for byte. This runs code that the ledger names."""
    from headrace.cli.commands.trace import rebuild_shard

    return rebuild_shard(uri, shard, restore=restore, trust_code=trust_code, as_json=json)


@dataset_app.command("retract")
def dataset_retract(
    uri: Dataset,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of records.")] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="URI", help="Every record that was read from this object.")
    ] = None,
    json: Json = False,
) -> int:
    """Publish a version that shows these records no more, and delete what held their text beside the tokens."""
    from headrace.cli.commands.collect import retract_records

    return retract_records(uri, ids or [], source or [], as_json=json)


@dataset_app.command("gc")
def dataset_gc(
    uri: Dataset,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    json: Json = False,
) -> int:
    """Delete the objects that no ledger entry names and none ever can, such as those of killed sinks.

    It also writes the manifest again where that is missing, or names an entry that the ledger has not.
    """
    from headrace.cli.commands.collect import collect_garbage

    return collect_garbage(uri, dry_run=dry_run, as_json=json)


@dataset_app.command("compact")
def dataset_compact(
    uri: Dataset,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Where the compacted dataset goes.")],
    shard_mib: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Merge shards until their tokens have this many MiB.")
    ] = 256,
    json: Json = False,
) -> int:
    """Write a dataset again in fewer and larger shards; the old one stays as it is."""
    from headrace.cli.commands.compaction import compact_dataset

    return compact_dataset(uri, into, shard_bytes=shard_mib << 20, as_json=json)


@dataset_app.command("rm")
def dataset_rm(
    uri: Dataset,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is deleted.")] = False,
    json: Json = False,
) -> int:
    """Delete a dataset for ever. Its ledger stays and says so: nobody who wakes late can bring it back."""
    from headrace.cli.commands.collect import remove_dataset

    return remove_dataset(uri, agreed=yes, as_json=json)
