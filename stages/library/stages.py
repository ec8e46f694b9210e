"""The ready-made stages as a pipeline file declares them. Light: no stage's own libraries are imported here.

Each function returns a declaration; `name` is what the stage is called in verdicts, counts and status.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import pathlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from headrace.pipeline import PipelineError, Stage, StageKind, fingerprint
from headrace.stages.runtime import check_integer, check_number, check_text
from headrace.stages.shipping import as_module, cell_modules, travels_as_text
from headrace.stages.sources import ReadOptions
from headrace.stages.sources.objects import (
    CSV,
    JSONL,
    MIXED_SOURCE,
    PARQUET,
    TAR,
    TEXT,
    WARC,
    WINDOW_BYTES,
    split_patterns,
    with_followed_links,
)
from headrace.stages.tokenizer import TokenizerFacts, choose_engine, resolve_tokenizer

MIB = 1 << 20
#: The fact of a `tokenize` stage that says what encodes, with versions. The sink behind it does not ask.
_ENGINE = "tokenizer_engine"


def read_jsonl(
    input: str,  # noqa: A002 (the word of the command line)
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read JSON Lines, as they are or as .gz and .zst: a record a line, blank lines aside.

    `input` is a path, a glob (`**` spans directories), a directory, a URI of these, or a comma list of them.
    `text_key` and `id_key` name the fields; all other fields are kept as metadata. Where `metadata_key` names a field
    that is an object, as `write_jsonl` writes one, its fields are the record's own, unless two would have one name; ""
    leaves it as it is. What is no record of text is quarantined alone. `damaged` says what a file that is cut off or
    corrupt does: "stop" the run, or "quarantine", by which what can be read is kept and the rest is one quarantined
    record. Links below a folder lead out of it only with `follow_links`. `window_bytes_max` is the memory that a .zst
    file written with `zstd --long` may ask for, up to 2 << 30 (`--long=31`).
    """
    return _source(
        JSONL.source, name, input, follow_links=follow_links, text_key=text_key,
        id_key=id_key, metadata_key=metadata_key, fragment_bytes=fragment_bytes, batch_bytes=batch_bytes,
        batch_records=batch_records, max_record_bytes=max_record_bytes, window_bytes_max=window_bytes_max,
        damaged=damaged,
    )  # fmt: skip


def read_spool(
    folder: str,
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    name: str = "read",
) -> Stage:
    """Read the records that are pushed into a spool, as they come, until the spool is closed.

    The folder is that of `headrace.worker.spool.server`, on the worker that runs this stage: in a cluster place it
    there (`.placed(on=...)`). The rest is as in `read_jsonl`. What a full spool shed is filtered for `shed`.
    """
    check_text(name, "folder", folder)
    parameters: dict[str, Any] = {
        "text_key": text_key, "id_key": id_key, "metadata_key": metadata_key, "batch_bytes": batch_bytes,
        "batch_records": batch_records, "max_record_bytes": max_record_bytes,
    }  # fmt: skip
    ReadOptions(**parameters).check(name)
    target = "headrace.stages.sources.spool:SpoolSource"
    return Stage(name, StageKind.SOURCE, target, {"folder": folder, **parameters}, volatile=BATCH_OPTIONS)


def read_parquet(
    input: str,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    fragment_bytes: int = 16 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read Parquet: a record a row, a run of row groups of about `fragment_bytes` a fragment; else as `read_jsonl`.

    A directory stands for its *.parquet at any depth, as Hugging Face datasets lay them out. `text_key` may name a
    field within a column: "doc.text".
    """
    return _source(
        PARQUET.source, name, input, follow_links=follow_links, text_key=text_key,
        id_key=id_key, fragment_bytes=fragment_bytes, batch_bytes=batch_bytes, batch_records=batch_records,
        max_record_bytes=max_record_bytes, damaged=damaged,
    )  # fmt: skip


def read_csv(
    input: str,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read CSV and TSV, whose first row names the columns: a record a row; else as `read_jsonl`.

    Fields are quoted as RFC 4180 has it and may hold newlines. A row with other fields than the first is quarantined.
    """
    return _source(
        CSV.source, name, input, follow_links=follow_links, text_key=text_key, id_key=id_key,
        batch_bytes=batch_bytes, batch_records=batch_records, max_record_bytes=max_record_bytes,
        window_bytes_max=window_bytes_max, damaged=damaged,
    )  # fmt: skip


def read_tar(
    input: str,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read tar archives of text as WebDataset has them: a record a key, its text in `key.txt`; else as `read_jsonl`.

    `key.json` has the metadata, and the text in the field `text_key` where there is no member of it. The id is the key.
    """
    return _source(
        TAR.source, name, input, follow_links=follow_links, text_key=text_key, id_key=id_key,
        batch_bytes=batch_bytes, batch_records=batch_records, max_record_bytes=max_record_bytes,
        window_bytes_max=window_bytes_max, damaged=damaged,
    )  # fmt: skip


def read_warc(
    input: str,  # noqa: A002
    *,
    main_content: bool = True,
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 1024,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read WARC and WET: the text of each page that was answered with 200; else as `read_jsonl`.

    `main_content` leaves menus, headers and footers out. Answers that are no text are filtered, as are records whose
    type is missing or unknown.
    """
    more: dict[str, Any] = {}
    if fragment_bytes != ReadOptions().fragment_bytes:
        more["fragment_bytes"] = fragment_bytes
    return _source(
        WARC.source, name, input, follow_links=follow_links, main_content=main_content,
        untyped=True, batch_bytes=batch_bytes, batch_records=batch_records, max_record_bytes=max_record_bytes,
        window_bytes_max=window_bytes_max, damaged=damaged,
        **more,
    )  # fmt: skip


def read(
    input: str,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    main_content: bool = True,
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read files of any known format, told apart by suffix: JSON Lines, Parquet, WARC, WET, CSV, tar and text.

    The parameters are those of the formats' own functions.
    """
    return _source(
        MIXED_SOURCE, name, input, follow_links=follow_links, text_key=text_key,
        id_key=id_key, metadata_key=metadata_key, main_content=main_content, untyped=True,
        fragment_bytes=fragment_bytes, batch_bytes=batch_bytes, batch_records=batch_records,
        max_record_bytes=max_record_bytes, window_bytes_max=window_bytes_max, damaged=damaged,
    )  # fmt: skip


def read_files(
    input: str,  # noqa: A002
    *,
    max_record_bytes: int = 8 * MIB,
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read text files of UTF-8, each as one record; `input` as for `read_jsonl`.

    A directory stands for its *.txt, *.md and *.rst, at any depth.
    """
    return _source(TEXT.source, name, input, (), follow_links=follow_links, max_record_bytes=max_record_bytes)


def tokenize(tokenizer: str, *, eos: str | None = "auto", name: str = "tokenize") -> Stage:
    """Turn text into tokens, those of Hugging Face tokenizers without special tokens, and `eos` behind each text.

    `tokenizer` is the path of a tokenizer.json or a name (`headrace.stages.tokenizer.vocabulary`). `eos` is a token,
    "auto" for the one that the tokenizer names, or None.
    """
    facts = _facts(name, tokenizer, eos)
    choice = choose_engine(facts.path, facts.sha256)
    return Stage(
        name,
        StageKind.TRANSFORM,
        "headrace.stages.tokenizer.tokenize:Tokenize",
        {"tokenizer": facts.path, "sha256": facts.sha256, "eos_id": facts.eos_id, "choice": choice.to_dict()},
        identity={**_identity(facts), _ENGINE: choice.engine},
        volatile=("tokenizer", "sha256", "eos_id", "choice"),
    )


def write_tokens(
    tokenizer: Stage | str,
    *,
    seq_len: int = 2048,
    overlap: int = 0,
    shard_bytes: int = 32 * MIB,
    eos: str | None = "auto",
    name: str = "write",
) -> Stage:
    """Pack documents into sequences of `seq_len` tokens and write shards of about `shard_bytes` of tokens.

    `tokenizer` is the `tokenize` stage before it, or the tokenizer's name and its `eos`. Of a document longer than
    `seq_len`, each piece but the first begins with the last `overlap` tokens of the piece before it, as context.
    """
    check_integer(name, "seq_len", seq_len, 2, 1 << 24)
    check_integer(name, "overlap", overlap, 0, seq_len - 1)
    check_integer(name, "shard_bytes", shard_bytes, 1 << 10, 1 << 32)
    if isinstance(tokenizer, Stage):
        missing = [fact for fact in ("tokenizer_sha256", "vocab_size") if fact not in tokenizer.identity]
        if missing:
            raise PipelineError(f'stage "{name}": {tokenizer.name!r} is no tokenize stage: it has no {missing[0]}')
        identity = {fact: value for fact, value in tokenizer.identity.items() if fact != _ENGINE}
    else:
        identity = _identity(_facts(name, tokenizer, eos))
    parameters = {"seq_len": seq_len, "shard_bytes": shard_bytes, **identity}
    parameters |= {"overlap": overlap} if overlap else {}
    target = "headrace.stages.sinks.tokens:TokenSink"
    return Stage(name, StageKind.SINK, target, parameters, identity=identity, volatile=("shard_bytes",))


def write_documents(*, shard_bytes: int = 256 * MIB, name: str = "documents") -> Stage:
    """Write the text as Parquet, a row a kept record, in shards of about `shard_bytes` bytes of text.

    It stands before `tokenize`, or beside it as a second sink.
    """
    check_integer(name, "shard_bytes", shard_bytes, 1 << 10, 1 << 32)
    parameters = {"shard_bytes": shard_bytes}
    return Stage(
        name, StageKind.SINK, "headrace.stages.sinks.texts:DocumentSink", parameters, volatile=("shard_bytes",)
    )


def write_jsonl(*, shard_bytes: int = 256 * MIB, name: str = "lines") -> Stage:
    """Write the text as JSON Lines under zstd: {"id", "text", "metadata"} a line; else as `write_documents`."""
    check_integer(name, "shard_bytes", shard_bytes, 1 << 10, 1 << 32)
    parameters = {"shard_bytes": shard_bytes}
    return Stage(name, StageKind.SINK, "headrace.stages.sinks.texts:JsonlSink", parameters, volatile=("shard_bytes",))


def map_records(function: Callable[[dict[str, Any]], Any] | str, *, splits: bool = False, name: str = "") -> Stage:
    """Call `function(record) -> record | str | None` on each record: {"id", "text", "metadata"}.

    A string filters the record, and is the reason in its verdict; None filters it too.
    `function` stands at the top level of the pipeline file or of a module, or is its import path; one of a notebook
    travels as text, with what it uses. With
    `splits` it returns a list of records, the parts of this one (none, or None: filtered); part n is called `<id>/<n>`.
    """
    return _custom(
        "headrace.stages.functions.split:SplitRecords" if splits else "headrace.stages.functions.functions:MapRecords",
        function,
        name,
    )


def filter_records(function: Callable[[dict[str, Any]], bool] | str, *, name: str = "") -> Stage:
    """Keep each record for which `function(record)` is true; see `map_records`."""
    return _custom("headrace.stages.functions.functions:FilterRecords", function, name)


def map_batches(function: Callable[[Any], Any] | str, *, splits: bool = False, name: str = "") -> Stage:
    """Call `function(rows) -> rows` on Arrow record batches; rows that it leaves out are filtered.

    The rows have the columns `__row`, `id`, `text` and `metadata`; `__row` ties a row to its record. With `splits`
    a row may be given back any number of times: as the parts of its record, in that order.
    """
    return _custom(
        "headrace.stages.functions.split:SplitBatches" if splits else "headrace.stages.functions.functions:MapBatches",
        function,
        name,
    )


def command(
    line: str | Sequence[str],
    *,
    seconds: float = 30.0,
    succeeds: Sequence[int] = (0,),
    name: str = "",
    arrow: bool = False,
) -> Stage:
    """Give each record to an executable, as a line of JSON, and take the line that it gives back.

    `line` is split as a shell would and run without one; a list is taken as it is. A record goes in as `{"__row", "id",
    "text", "metadata"}` and comes out in the same order, with `__row` and `id` as they were; one that does not come
    out is filtered. `seconds` is how long the command may be silent while it has records to answer; `succeeds` are the
    exit codes that mean that all is well. What it fails on is quarantined alone. With `arrow=True` standard input
    and output are Arrow IPC streams of the same columns: the answer to a batch is one batch, which may be empty.
    """
    try:
        arguments = shlex.split(line) if isinstance(line, str) else [str(part) for part in line]
    except ValueError as error:
        raise PipelineError(f'stage "{name or "command"}": {line!r} cannot be split into words: {error}') from error
    if not arguments:
        raise PipelineError(f'stage "{name or "command"}": a command has at least one word')
    called = name or pathlib.PurePath(arguments[0]).name
    check_number(called, "seconds", seconds, 0.1, 86400)
    codes = list(succeeds)
    for code in codes:
        check_integer(called, "succeeds", code, 0, 255)
    parameters: dict[str, Any] = {"arguments": arguments, "seconds": float(seconds), "succeeds": codes}
    if arrow:
        parameters["arrow"] = True
    target = "headrace.stages.commands.command:Command"
    identity = _files_identity(arguments)
    return Stage(called, StageKind.TRANSFORM, target, parameters, identity=identity, volatile=("seconds",))


def _files_identity(arguments: Sequence[str]) -> dict[str, str]:
    """The hash of the executable and of each file that is named, so that another script is another pipeline."""
    state = hashlib.sha256()
    found = [shutil.which(arguments[0]), *(word for word in arguments[1:] if os.path.isfile(word))]
    for path in found:
        if path is not None:
            with open(path, "rb") as file:
                state.update(hashlib.file_digest(file, "sha256").digest())
    return {"command_sha256": state.hexdigest()[:16]} if any(found) else {}


#: What may differ from run to run: it changes no record's fate.
BATCH_OPTIONS = ("batch_bytes", "batch_records", "window_bytes_max")


def _source(
    target: str,
    name: str,
    given: str,
    volatile: tuple[str, ...] = BATCH_OPTIONS,
    *,
    follow_links: bool,
    **options: Any,
) -> Stage:
    """A source of files, with the options that its format takes. Raises PipelineError."""
    ReadOptions(**options).check(name)
    parameters = {"input": _patterns(name, given), **options}
    source = Stage(name, StageKind.SOURCE, target, parameters, volatile=volatile)
    return with_followed_links(source) if follow_links else source


def _patterns(stage: str, given: str) -> list[str]:
    check_text(stage, "input", given)
    for part in given.split(","):
        scheme, separator, _ = part.strip().partition("://")
        if separator and not scheme.isalnum():
            raise PipelineError(f'stage "{stage}": input {part!r}: what stands before :// is no scheme')
    return split_patterns(given)


def _facts(stage: str, tokenizer: str, eos: str | None) -> TokenizerFacts:
    check_text(stage, "tokenizer", tokenizer)
    if eos is not None:
        check_text(stage, "eos", eos)
    return resolve_tokenizer(tokenizer, eos)


def _identity(facts: TokenizerFacts) -> dict[str, Any]:
    return {
        "tokenizer_sha256": facts.sha256,
        "vocab_size": facts.vocab_size,
        "eos_id": facts.eos_id,
        "pad_id": facts.pad_id,
    }


def _custom(target: str, function: Callable[..., Any] | str, name: str) -> Stage:
    if not isinstance(function, str) and travels_as_text(function):
        function = as_module(function)
    path = function if isinstance(function, str) else _import_path(function)
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise PipelineError(f'function "{path}" is not of the form package.module:function')
    called = name or attribute.rpartition(".")[2].strip("_").lower()
    identity = _source_identity(module, function)
    return Stage(called, StageKind.TRANSFORM, target, {"function": path}, identity=identity)


def _import_path(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if not callable(function) or not module or not qualified:
        raise PipelineError(f"{function!r} is not a function: give one that is defined with def, or its import path")
    if "<" in qualified or module == "__main__":
        raise PipelineError(
            f"function {qualified!r} cannot be found by its name in another process: "
            "define it with def at the top level of the pipeline file or of a module"
        )
    return f"{module}:{qualified}"


def _source_identity(module: str, function: Callable[..., Any] | str) -> dict[str, str]:
    """What decides in the module's text, so that other code is another pipeline; none where it cannot be read."""
    if module in cell_modules():
        return {"function_code": fingerprint(cell_modules()[module])}
    try:
        if isinstance(function, str):
            spec = importlib.util.find_spec(module)
            source = spec.origin if spec else None
        else:
            source = inspect.getsourcefile(function)
        data = pathlib.Path(source or "").read_bytes()
    except (OSError, ImportError, TypeError, ValueError):
        return {}
    try:
        return {"function_code": fingerprint(importlib.util.decode_source(data))}
    except (SyntaxError, UnicodeDecodeError):
        return {"function_code": hashlib.sha256(data).hexdigest()[:16]}
