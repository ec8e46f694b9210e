"""The commands on datasets.

They import what they need when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.ui import Json
from headrace.client import UsageError
from headrace.pipeline import Late

if TYPE_CHECKING:
    from headrace.cli.commands.dataset import blame, history, page, records, show, trace
else:
    _MODULES = ("blame", "history", "page", "records", "show", "trace")
    blame, history, page, records, show, trace = (Late(f"headrace.cli.commands.dataset.{name}") for name in _MODULES)

Dataset = Annotated[str, typer.Argument(metavar="URI", help="The dataset's URI or folder.")]
Version = Annotated[str, typer.Argument(metavar="URI", help="The dataset's URI or folder; URI@VERSION or URI@TAG.")]
Count = Annotated[int, typer.Option("-n", min=1, max=100_000, metavar="N", help="How many records.")]
Characters = Annotated[int, typer.Option(min=0, metavar="N", help="Characters shown of each; 0: all.")]
Tokenizer = Annotated[str, typer.Option(metavar="NAME", help="The tokenizer, if it is not where the pipeline had it.")]


def add_to(app: typer.Typer, dataset: typer.Typer) -> None:
    """Give an application the group `dataset`."""
    commands = (
        dataset_ls, dataset_show, dataset_page, dataset_log, dataset_tag, dataset_rollback, dataset_publish,
        dataset_diff, dataset_bisect, dataset_blame, dataset_head, dataset_cat, dataset_sample, dataset_verify,
        dataset_trace, dataset_export, dataset_mirror, dataset_push, dataset_rebuild, dataset_dedup, dataset_split,
        dataset_repeats, dataset_contamination, dataset_retract, dataset_purge, dataset_gc, dataset_compact, dataset_rm,
    )  # fmt: skip
    for command in commands:
        dataset.command(command.__name__.removeprefix("dataset_"))(command)
    app.add_typer(dataset, name="dataset")


def dataset_ls(root: str = typer.Argument(".", metavar="ROOT", help="A folder or its URI."), json: Json = False) -> int:
    """List the datasets below a folder."""
    return show.list_datasets(root, as_json=json)


def dataset_show(
    uri: Version,
    quarantine: bool = typer.Option(False, "--quarantine", help="Show quarantined records."),
    samples: bool = typer.Option(False, "--samples", help="Show samples of filtered records, by reason."),
    duplicates: bool = typer.Option(
        False, "--duplicates", help="Show sampled duplicates beside the records that are kept."
    ),
    ranges: bool = typer.Option(False, "--ranges", help="Show each closed range and its pipeline."),
    card: str = typer.Option("", metavar="FOLDER", help="Write the scorecard to a folder, as Markdown and HTML."),
    json: Json = False,
) -> int:
    """Show the contents of a dataset and the verdicts of its records."""
    if card:
        if quarantine or samples or duplicates or ranges:
            raise UsageError("--card writes the scorecard alone: show the rest by another command")
        return show.write_card(uri, card, as_json=json)
    return show.show_dataset(
        uri, quarantine=quarantine, samples=samples, duplicates=duplicates, ranges=ranges, as_json=json
    )


def dataset_page(
    uri: Version,
    listen: str = typer.Option("127.0.0.1:0", metavar="HOST:PORT", help="Address on loopback; default: any port."),
    json: Json = False,
) -> int:
    """Show a dataset in a browser: card, verdicts, samples, versions, lineage."""
    return page.show_page(uri, listen, as_json=json)


def dataset_log(
    uri: Dataset,
    limit: int = typer.Option(0, min=0, metavar="N", help="How many of the newest versions; 0: all."),
    json: Json = False,
) -> int:
    """Show each version: when and by what it was made, recipe, input and balance."""
    return history.show_log(uri, limit=limit, as_json=json)


def dataset_tag(
    uri: Version,
    name: str = typer.Argument("", metavar="NAME", help="The tag; default: list all."),
    delete: bool = typer.Option(False, "--delete", help="Delete the tag; its version stays."),
    move: bool = typer.Option(False, "--move", help="Move the tag here from another version."),
    json: Json = False,
) -> int:
    """Name a version: the newest, or the one that URI names."""
    if delete and move:
        raise UsageError("give --delete or --move, not both")
    if not name:
        if delete or move:
            raise UsageError("name the tag: `headrace dataset tag URI NAME --delete`, or --move")
        return history.list_tags(uri, as_json=json)
    return history.change_tag(uri, name, delete=delete, move=move, as_json=json)


def dataset_rollback(
    uri: str = typer.Argument(metavar="URI@VERSION", help="The version to go back to, or its tag."),
    json: Json = False,
) -> int:
    """Publish a version that shows what an earlier one showed; nothing is deleted."""
    return history.roll_back(uri, as_json=json)


def dataset_publish(
    uri: str = typer.Argument(metavar="URI", help="The dataset."),
    anyway: bool = typer.Option(False, "--anyway", help="Publish although the gate holds it; the ledger records that."),
    json: Json = False,
) -> int:
    """Publish the version that a gate holds."""
    return history.publish_held(uri, anyway=anyway, as_json=json)


def dataset_diff(
    before: str = typer.Argument(metavar="BEFORE", help="A dataset, or URI@VERSION."),
    after: str = typer.Argument(metavar="AFTER", help="Another version, or a dataset of the same input."),
    json: Json = False,
) -> int:
    """Show the records whose fate or text changed, by stage and reason."""
    return history.show_differences(before, after, as_json=json)


def dataset_bisect(
    uri: Dataset,
    run: str = typer.Option(metavar="COMMAND", help="Exit code 0: good, 125: skip, 1 to 127: bad; {} is the version."),
    good: str = typer.Option("1", metavar="VERSION", help="A good version or tag."),
    bad: str = typer.Option("", metavar="VERSION", help="A bad one; default: the newest."),
    json: Json = False,
) -> int:
    """Find the first version for which a command fails."""
    return history.bisect(uri, run, good=good, bad=bad, as_json=json)


def dataset_blame(
    uri: str = typer.Argument("", metavar="URI", help="The dataset's URI or folder; URI@VERSION or URI@TAG."),
    checkpoint: str = typer.Option("", metavar="FILE", help="A loader's state: JSON, or a checkpoint."),
    losses: str = typer.Option("", metavar="FILE", help="Losses by step: CSV with a header."),
    columns: str = typer.Option("", metavar="STEP,LOSS", help="Names of its two columns; default: found by name."),
    offset: int = typer.Option(0, min=0, metavar="N", help="Step of the file at which this loader began."),
    before: int = typer.Option(1, min=0, max=16, metavar="N", help="Steps before a spike to look into."),
    height: float = typer.Option(6.0, min=1, max=1000, metavar="N", help="Standard deviations above the usual loss."),
    moved: list[str] | None = typer.Option(None, metavar="NAME=URI", help="The new place of a dataset; repeatable."),
    trust_uris: bool = typer.Option(False, "--trust-uris", help="Connect to the servers that the checkpoint names."),
    tokenizer: Tokenizer = "",
    json: Json = False,
) -> int:
    """Find spikes of a loss, the documents of those steps, and their unusual traits."""
    if not checkpoint or not losses:
        raise UsageError("give --checkpoint FILE and --losses FILE")
    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    asked = blame.BlameQuestion(
        uri, checkpoint, losses, names, offset, before, height, tuple(moved or ()), trust_uris, tokenizer
    )
    return blame.blame_dataset(asked, as_json=json)


def dataset_head(
    uri: Version, count: Count = 10, characters: Characters = 2000, tokenizer: Tokenizer = "", json: Json = False
) -> int:
    """Show the first records as text."""
    return records.show_first(uri, count, characters=characters, tokenizer=tokenizer, as_json=json)


def dataset_cat(
    uri: Version,
    ids: list[str] | None = typer.Argument(None, metavar="ID", help="Ids of records; default: all."),
    characters: Characters = 0,
    tokenizer: Tokenizer = "",
    json: Json = False,
) -> int:
    """Show records as text."""
    return records.show_records(uri, ids or [], characters=characters, tokenizer=tokenizer, as_json=json)


def dataset_sample(
    uri: Version,
    count: Count = 10,
    seed: int = typer.Option(0, metavar="N", help="The same seed draws the same records."),
    characters: Characters = 2000,
    tokenizer: Tokenizer = "",
    json: Json = False,
) -> int:
    """Show randomly drawn records as text."""
    return records.show_sample(uri, count, seed, characters=characters, tokenizer=tokenizer, as_json=json)


def dataset_verify(
    uri: Version,
    gate: str = typer.Option("", metavar="FILE", help="Check the limits of this TOML file too."),
    json: Json = False,
) -> int:
    """Check every object and every record against the ledger."""
    return show.verify_dataset(uri, gate=gate, as_json=json)


def dataset_trace(
    uri: Version = "",
    name: str = typer.Argument("", metavar="ID", help="The record's id, or a row of a shard: KEY:ROW."),
    checkpoint: str = typer.Option("", metavar="FILE", help="A loader's state: JSON, or a checkpoint."),
    step: int | None = typer.Option(
        None, min=0, metavar="N", help="With --checkpoint: show what this step read, from 0."
    ),
    document: str = typer.Option("", metavar="ID", help="With --checkpoint: show the steps that read this document."),
    moved: list[str] | None = typer.Option(
        None, metavar="NAME=URI", help="With --checkpoint: the new place of a dataset; repeatable."
    ),
    trust_uris: bool = typer.Option(False, "--trust-uris", help="With --checkpoint: connect to the servers it names."),
    index: bool = typer.Option(False, "--index", help="Write the index by which a trace is fast."),
    json: Json = False,
) -> int:
    """Trace a record to its tokens, a training step to its documents, or a document to its steps."""
    if checkpoint:
        if (step is None) == (not document) or name or index:
            raise UsageError("give --checkpoint with --step N, or with --document ID")
        return trace.trace_checkpoint(
            checkpoint, uri, step=step, document=document, as_json=json, moved=moved or (), trusted=trust_uris
        )
    if index and uri and not (name or document or step is not None or moved or trust_uris):
        return trace.index_traces(uri, as_json=json)
    if not uri or not name or document or step is not None or moved or trust_uris or index:
        raise UsageError("give a dataset and a record's id, or --checkpoint with --step N or --document ID")
    return trace.trace_record(uri, name, as_json=json)


def dataset_export(
    uri: Version,
    out: str = typer.Argument(metavar="FOLDER", help="The folder to create."),
    format: str = typer.Option(metavar="megatron|mds|parquet", help="The format."),  # noqa: A002
    version: int | None = typer.Option(None, metavar="N", help="The version; default: the newest."),
    json: Json = False,
) -> int:
    """Export a version of a dataset to another training format."""
    from headrace.cli.commands.maintenance import export_dataset

    return export_dataset(uri, out, format, version, as_json=json)


def dataset_mirror(
    uri: str = typer.Argument(metavar="URI", help="The dataset."),
    delta: str = typer.Option("", metavar="FOLDER", help="The folder of a Delta table."),
    iceberg: str = typer.Option("", metavar="CATALOG", help="A folder, or a catalog that PyIceberg knows."),
    table: str = typer.Option("headrace.documents", metavar="NAME", help="The Iceberg table."),
    json: Json = False,
) -> int:
    """Commit each version that a table lacks, once."""
    from headrace.cli.commands.maintenance import mirror_dataset

    return mirror_dataset(uri, delta, iceberg, table, as_json=json)


def dataset_push(
    uri: Version,
    place: str = typer.Argument(metavar="HF", help="hf://datasets/OWNER/NAME, or NAME@REVISION."),
    replace_card: bool = typer.Option(False, "--replace-card", help="Replace a person's README.md."),
    json: Json = False,
) -> int:
    """Push a version with text to the Hugging Face hub, in one commit; a repository is made private."""
    from headrace.cli.commands.maintenance import push_dataset

    return push_dataset(uri, place, replaces=replace_card, as_json=json)


def dataset_rebuild(
    uri: Dataset,
    shard: str = typer.Argument(metavar="HASH", help="The hash of one of the shard's objects, as in the manifest."),
    restore: bool = typer.Option(False, "--restore", help="Restore missing objects that came out identical."),
    trust_code: bool = typer.Option(
        False, "--trust-code", help="Run the code and read the places that the ledger names; without it only list them."
    ),
    json: Json = False,
) -> int:
    """Rebuild a shard from its source, and compare it byte by byte. This runs code that the ledger names."""
    return trace.rebuild_shard(uri, shard, restore=restore, trust_code=trust_code, as_json=json)


def dataset_dedup(
    uris: list[str] = typer.Argument(metavar="DATASET", help="Folders or URIs of datasets."),
    against: list[str] | None = typer.Option(
        None, "--against", metavar="URI", help="A dataset whose records come first and stay; repeatable."
    ),
    keep: Literal["first", "longest", "newest", "best"] = typer.Option(
        "first", metavar="RULE", help="Which stays: first, longest, newest, best."
    ),
    by: str = typer.Option("", metavar="FIELD", help="Field of the metadata for newest (date) and best (score)."),
    exact: bool = typer.Option(False, "--exact", help="Only equal texts are duplicates."),
    out: str = typer.Option("", metavar="FILE", help="Write the duplicates to a list."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only look for them."),
    json: Json = False,
) -> int:
    """Find duplicates from the keys beside the shards, and publish versions without them."""
    if by and keep not in ("newest", "best"):
        raise UsageError(f"--by {by}: --keep {keep} looks at no field; give --keep newest or --keep best")
    from headrace.cli.commands.maintenance import deduplicate

    return deduplicate(uris, against or [], keep=keep, by=by, near=not exact, out=out, dry_run=dry_run, as_json=json)


def dataset_split(
    uri: Dataset,
    into: str = typer.Argument(metavar="INTO", help="The folder or URI of the held-out dataset."),
    share: float = typer.Option(0.001, min=1e-9, max=0.5, metavar="SHARE", help="Share of the records to hold out."),
    against: list[str] | None = typer.Option(
        None, "--against", metavar="URI", help="Another dataset of the same training; repeatable."
    ),
    shard_mib: int = typer.Option(256, min=1, metavar="MIB", help="Size of the held-out shards' tokens."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be held out; write nothing."),
    json: Json = False,
) -> int:
    """Hold out clusters of duplicates, so that no held-out record has a near duplicate in training."""
    from headrace.cli.commands.maintenance import split_dataset

    return split_dataset(
        uri, into, against or [], share=share, shard_bytes=shard_mib << 20, dry_run=dry_run, as_json=json
    )


def dataset_repeats(
    uris: list[str] = typer.Argument(metavar="DATASET", help="Folders or URIs of datasets."),
    out: str = typer.Option(metavar="FILE", help="The index."),
    unit: Literal["line", "paragraph", "passage"] = typer.Option(
        "line", metavar="UNIT", help="line, paragraph, or passage: so many words in a row."
    ),
    records_min: int = typer.Option(10, min=2, metavar="N", help="Records that have a span of the index."),
    words_min: int | None = typer.Option(
        None, min=1, max=1 << 16, metavar="N", help="Words of a span; default: 3, of a passage 50."
    ),
    keep_one: bool = typer.Option(False, "--keep-one", help="One of the records keeps the span."),
    tokenizer: str = typer.Option(
        "", metavar="NAME", help="The dataset's tokenizer; default: its place in the ledger."
    ),
    json: Json = False,
) -> int:
    """Write an index of spans that many records have, for `dedup_lines`, `dedup_paragraphs` and `dedup_passages`."""
    from headrace.cli.commands.maintenance import write_repeats

    return write_repeats(
        uris,
        out,
        unit=unit,
        records_min=records_min,
        words_min=words_min or (50 if unit == "passage" else 3),
        keeps_one=keep_one,
        tokenizer=tokenizer,
        as_json=json,
    )


def dataset_contamination(
    uri: Dataset,
    more: list[str] | None = typer.Argument(None, metavar="SUITE", help="Further suites."),
    suites: list[str] | None = typer.Option(
        None, metavar="SUITE", help="A suite: JSON Lines or Parquet, or JSON that names its fields; repeatable."
    ),
    threshold: float = typer.Option(
        0.8, min=0.5, max=1.0, metavar="SCORE", help="Score from which a record is contaminated."
    ),
    tokenizer: str = typer.Option(
        "", metavar="NAME", help="The dataset's tokenizer; default: its place in the ledger."
    ),
    out: str = typer.Option("", metavar="FILE", help="Write the records to a list for `retract --list`."),
    json: Json = False,
) -> int:
    """Search the kept records for items of test suites."""
    given = [*(suites or []), *(more or [])]
    if not given:
        raise UsageError("give --suites with the files of test suites")
    from headrace.cli.commands.maintenance import show_contamination

    return show_contamination(uri, given, threshold=threshold, tokenizer=tokenizer, out=out, as_json=json)


def dataset_retract(
    uri: Dataset,
    ids: list[str] | None = typer.Argument(None, metavar="ID", help="Ids of records."),
    source: list[str] | None = typer.Option(None, "--source", metavar="URI", help="Every record of this object."),
    listed: str = typer.Option("", "--list", metavar="FILE", help="The records of a list: JSON Lines with an id each."),
    where: str = typer.Option("", metavar="EXPRESSION", help="Kept records whose fields fulfil it: lang == 'de'."),
    json: Json = False,
) -> int:
    """Publish a version without these records, and delete what is kept of them; tokens wait for `purge`."""
    from headrace.cli.commands.maintenance import read_list, retract_records

    names = [*(ids or []), *(read_list(Path(listed)) if listed else [])]
    return retract_records(uri, names, source or [], where=where, listed=bool(listed), as_json=json)


def dataset_purge(
    uri: Dataset,
    checkpoint: list[str] | None = typer.Option(
        None, metavar="FILE", help="Name the steps of this checkpoint that read a record; repeatable."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be done."),
    json: Json = False,
) -> int:
    """Delete the bytes of retracted records, and print a receipt. Positions of checkpoints stay."""
    from headrace.cli.commands.maintenance import purge_dataset

    return purge_dataset(uri, checkpoint or [], dry_run=dry_run, as_json=json)


def dataset_gc(
    uri: Dataset,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only list what would be deleted."),
    json: Json = False,
) -> int:
    """Delete objects that no ledger entry can name, such as those of killed sinks.

    A missing or wrong manifest is written again from the ledger.
    """
    from headrace.cli.commands.maintenance import collect_garbage

    return collect_garbage(uri, dry_run=dry_run, as_json=json)


def dataset_compact(
    uri: Dataset,
    into: str = typer.Argument(metavar="INTO", help="The folder or URI of the compacted dataset."),
    shard_mib: int = typer.Option(256, min=1, metavar="MIB", help="Size of the merged shards' tokens."),
    json: Json = False,
) -> int:
    """Write a dataset in fewer and larger shards; the old dataset stays."""
    from headrace.cli.commands.maintenance import compact_dataset

    return compact_dataset(uri, into, shard_bytes=shard_mib << 20, as_json=json)


def dataset_rm(
    uri: Dataset,
    yes: bool = typer.Option(False, "--yes", help="Delete; without it nothing is deleted."),
    json: Json = False,
) -> int:
    """Delete a dataset for good. Its ledger stays as a record: a late writer cannot restore it."""
    from headrace.cli.commands.maintenance import remove_dataset

    return remove_dataset(uri, agreed=yes, as_json=json)
