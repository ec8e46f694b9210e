"""What makes sense of bytes that others wrote is fuzzed: a module that calls a codec has a target, or a reason here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("api", "cli", "client", "cluster", "controller", "daemon", "loader", "page", "pipeline", "protos", "stages"),
    *("store", "transport", "worker"),
)
#: Areas of targets whose decoders the docs list.
AREAS = ("transport", "trust", "store", "s3", "remote", "history")
#: Calls by which bytes or text become values, by their last names.
CODECS = {
    *("loads", "unpackb", "Unpacker", "unpack", "unpack_from", "iter_unpack", "fromstring", "frombuffer", "from_bytes"),
    *("load_pem_x509_certificate", "load_der_x509_certificate", "load_pem_public_key", "load_pem_private_key"),
    *("urlsplit", "fromhex", "fromisoformat", "b64decode", "literal_eval", "ParserCreate", "RawConfigParser"),
    *("ParquetFile", "open_stream", "open_file", "read_message", "read_schema", "safe_open", "FromString"),
    *("ParseFromString", "parse_list_objects", "ZstdDecompressor", "decompressobj", "BZ2Decompressor", "GzipFile"),
}
#: Modules that call one, and read nothing with it but what the same process wrote, or what a target reads with them.
OWN: dict[str, str] = {
    "headrace.daemon.private_folder": "the kernel says who the peer is",
    "headrace.transport.quic.endpoint": "opens streams of its own, which is no decoding",
    "headrace.transport.quic.udp": "the kernel says how long the datagrams are that it has joined",
    "headrace.store.columnar.child": "a process of its own, with limits, for what it decodes; its orders are ours",
    "headrace.store.columnar.readers": "runs in that process",
    "headrace.store.datasets.verify": "a manifest whose values are compared with what the ledger says, and not used",
    "headrace.stages.text.machine.native": "results of machine code that came with this module",
} | {
    f"headrace.{module}": reason
    for reason, modules in {
        "what this user gives the command, bounded or as an argument": (
            "cli.commands.maintenance.findings cli.commands.cluster.cost cli.commands.dataset.show "
            "cli.commands.cluster.reconfigure worker.membership.departure"
        ),
        "a file of this user's own folder, of mode 0600 or in a private one": (
            "cli.host.facts client.client client.launch.launching controller.membership.cluster_files "
            "worker.membership.join"
        ),
        "what comes with Headrace": "cli.commands.examples",
        "what an own process, or the controller that a worker obeys, says": (
            "client.launch.ray_driver controller.page worker.faults worker.links.ends "
            "worker.membership.session worker.processes.forkserver worker.processes.forkserver_start "
            "worker.processes.processes worker.task.forkserver_main worker.task.task loader.torch "
            "stages.commands.process"
        ),
        "bits, hashes or names that were checked where they came from": (
            "cli.commands.maintenance.splitting cli.host.machine controller.core.run.proposals "
            "worker.rebuild.shard_rebuild worker.task.batch.tracing stages.dedup.offline stages.dedup.stage "
            "stages.sinks.held_out stages.text.machine.hashing"
        ),
        "arrays of this process, or of a file whose checksum was looked at": (
            "loader.batch.buffers loader.cache.cache loader.cache.partial_shard loader.dataset.shard "
            "stages.dedup.index.memory stages.dedup.index.runs stages.dedup.key_index stages.dedup.sketches "
            "stages.dedup.spans.spans stages.quality.models.shared_model stages.sinks.spill stages.sinks.texts "
            "stages.text.characters stages.text.texts stages.tokenizer.decoding stages.tokenizer.engine_check "
            "stages.tokenizer.engines worker.task.dependencies"
        ),
        "a file of this user's cache, with a checksum": "stages.decontamination.index stages.dedup.index.saved",
        "metadata as our source has packed it, or as a user's function returns it": (
            "stages.decontamination.suites stages.functions.functions stages.functions.split stages.interop.applied "
            "stages.interop.datatrove_stage"
        ),
        "a cell of JSON Lines, whose errors are named": "stages.export.records",
        "opens an input; what decodes it stands in this list or has a target": "stages.sources.objects.streams",
        "runs in a child with limits": "stages.sources.tables.table_files stages.sources.tables.lakehouse",
        "text of a notebook that this user runs": "stages.shipping.shipping",
        "orjson, of at most BODY_BYTES_MAX": "page.server",
        "JSON; tests name what it refuses": "pipeline.plain",
    }.items()
    for module in modules.split()
}


def called(path: Path) -> set[str]:
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if any(name in text for name in CODECS) else ():
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            found |= {name} & CODECS
    return found


def decoders() -> Iterator[tuple[str, set[str]]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = called(path)
            if names:
                yield "headrace." + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), names


def fuzzed() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "fuzz").glob("*_targets.py"))
    return {name for text in texts for name in re.findall(r'"(headrace\.[\w.]+)"', text)}


DECODERS = dict(decoders())


@pytest.mark.parametrize("module", DECODERS)
def test_who_decodes_is_fuzzed(module: str) -> None:
    assert module in fuzzed() | set(OWN), f"{module} calls {', '.join(DECODERS[module])}: write a target in tests/fuzz"


def test_no_reason_stands_for_nothing() -> None:
    assert set(OWN) <= set(DECODERS) - fuzzed()


def test_each_target_names_modules_that_there_are() -> None:
    paths = {ROOT / name.removeprefix("headrace.").replace(".", "/") for name in fuzzed()}
    assert [path for path in paths if not path.with_suffix(".py").exists()] == []


def test_the_docs_name_each_target() -> None:
    table = (ROOT / "docs" / "reference" / "security.md").read_text(encoding="utf-8")
    folder = ROOT / "tests" / "fuzz"
    texts = [(folder / f"{area}_targets.py").read_text(encoding="utf-8") for area in AREAS]
    named = {name for text in texts for name in re.findall(r'Target\(\s*"(\w+)"', text)}
    assert {name for name in named if f"`{name}`" not in table} == set()
