"""`headrace dataset blame` on the command line. It imports what it needs when it runs."""

from __future__ import annotations

import typer

from headrace.cli.ui import Json
from headrace.client import UsageError


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
    tokenizer: str = typer.Option("", metavar="NAME", help="The tokenizer, if it is not where the pipeline had it."),
    json: Json = False,
) -> int:
    """Find spikes of a loss, the documents of those steps, and their unusual traits."""
    if not checkpoint or not losses:
        raise UsageError("give --checkpoint FILE and --losses FILE")
    from headrace.cli.commands.dataset.blame import BlameQuestion, blame_dataset

    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    asked = BlameQuestion(
        uri, checkpoint, losses, names, offset, before, height, tuple(moved or ()), trust_uris, tokenizer
    )
    return blame_dataset(asked, as_json=json)
