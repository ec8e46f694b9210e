"""`headrace dataset export`: a dataset in a format that others train with."""

from __future__ import annotations

import dataclasses
import json
import sys

from headrace.cli.ui import console, megabytes, title
from headrace.client import CliError, UsageError
from headrace.store import counted

FORMATS = ("megatron", "mds", "parquet")


def export_dataset(uri: str, out: str, kind: str, version: int | None, *, as_json: bool) -> int:
    """Write one version of a dataset to a folder; the exit code."""
    if kind not in FORMATS:
        raise UsageError(f"--format {kind!r}: choose one of {', '.join(FORMATS)}")
    from headrace.stages.export import export_mds, export_megatron, export_parquet
    from headrace.store.datasets import Dataset, standing_of

    whole = Dataset.open(uri)
    try:
        dataset = whole.of_version(version)
    except ValueError as error:
        raise CliError(str(error)) from error
    standing = standing_of(whole.state, version)
    version = standing.version
    export = {"megatron": export_megatron, "mds": export_mds, "parquet": export_parquet}[kind]
    done = export(dataset, out)
    pipelines = sorted({shard.closed.version for shard in dataset.shards})
    if as_json:
        told = {"dataset": dataset.uri, **standing.to_dict(), "pipelines": pipelines, **dataclasses.asdict(done)}
        print(json.dumps(told))
        return 0
    rows = [(done.documents, "document"), (done.sequences, "sequence"), (done.tokens, "token")]
    held = ", ".join(counted(count, word) for count, word in rows if count)
    size = f"{counted(done.files, 'file')}, {megabytes(done.bytes)}"
    console(sys.stdout).print(
        title(out, f"{kind} of {f'version {version}' if version else 'what is closed'}: {held or 'nothing'}; {size}")
    )
    if len(pipelines) > 1:
        said = f"made by {len(pipelines)} recipes: `headrace dataset show {dataset.uri}` says which part each"
        console(sys.stdout).print(f"  {said}", markup=False)
    for words in standing.words:
        console(sys.stdout).print(f"  {words}", style="yellow", markup=False)
    return 0
