"""The commands that measure a host and size a cluster. They import what they need when they run."""

from __future__ import annotations

from pathlib import Path

import typer

from headrace.cli.ui import Json


def add_to(app: typer.Typer) -> None:
    """Give an application these commands."""
    for command in (bench, advise):
        app.command()(command)


def bench(
    only: list[str] = typer.Option(
        [],
        "--only",
        metavar="PART",
        help="disk, network, store, tokenizer, filters or loader; repeatable; default: all.",
    ),
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="Folder on the disk to measure; default: the temporary folder."
    ),
    store: str = typer.Option("", metavar="URI", help="Store to measure: objects are written and deleted again."),
    peer: str = typer.Option(
        "", metavar="HOST:PORT/WORD", help="Host that runs --serve; default: this host's loopback."
    ),
    serve: str = typer.Option(
        "", metavar="HOST:PORT", help="Measure nothing; print what --peer takes, and answer one peer."
    ),
    tokenizer: str = typer.Option("", metavar="NAME", help="Tokenizer to measure; default: a small one, trained here."),
    seconds: float = typer.Option(2.0, min=0.1, max=60, metavar="S", help="Seconds to measure each part."),
    json: Json = False,
) -> int:
    """Measure this host: disk, network, store, tokenizer, filters, loader; keep the facts for advise."""
    from headrace.cli.commands.bench import Asked, run_bench, serve as serve_one

    if serve:
        return serve_one(serve)
    return run_bench(Asked(only, folder, store, peer, tokenizer, seconds), as_json=json)


def advise(
    given: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A number of the cluster, such as params=7G; repeatable."
    ),
    measured: bool = typer.Option(
        True, "--facts/--no-facts", help="Take what `headrace bench` measured on this host (default)."
    ),
    json: Json = False,
) -> int:
    """Size a cluster before you build it: each number with its formula, and what would be too small."""
    from headrace.cli.commands.bench import show_advice

    return show_advice(given, measured=measured, as_json=json)
