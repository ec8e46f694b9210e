"""Targets of what people and programs hand over: checkpoints, environments, pipelines, scenarios, words of commands."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import orjson

from headrace.chaos.live.scenario.scenario_file import read_scenario
from headrace.cli.commands.cluster.logs import line_text, since_of
from headrace.cli.commands.maintenance.checkpoints import loader_state_in, where_now
from headrace.cli.run_options import PLACES, RUN, defaults, run_options
from headrace.cli.ui.progress_lines import input_bytes_stored
from headrace.client.errors import CliError, UsageError, check_address, check_pairs
from headrace.daemon.log_lines import parse
from headrace.loader.cache.head import parse_blocks
from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.dataset.manifest import parse_manifest
from headrace.loader.dataset.sources import Source, Sources
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError
from headrace.loader.order.mixture import Shuffle
from headrace.loader.order.order import OrderMode
from headrace.loader.order.plan import Cut, LastBatch
from headrace.loader.state import state as states
from headrace.loader.state.resumption import Resumption, resume
from headrace.loader.trace import Trace
from headrace.loader.world import ALONE, RANKS_MAX, World, told_world
from headrace.pipeline.base import Base
from headrace.pipeline.code import fingerprint
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.pipeline.plain import parse_pipeline
from headrace.pipeline.validation import validate
from headrace.protos import control_pb2 as pb
from headrace.store.contract.errors import FormatError
from headrace.store.ledger.log import NUMBER_MAX
from tests.fuzz.fuzz_files import file_of, folder_of_process
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json
from tests.kits.loader.shards import write_dataset

DATASET = str(write_dataset(folder_of_process() / "data"))

# -- a loader's state --


def _state() -> dict[str, Any]:
    loader = Loader(DATASET, batch_size=2, seed=1, prefetch=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return dict(loader.state_dict())


STATE = _state()
OURS = {key: STATE.get(key) for key in ("dataset", "uri", *states._BINDING, "order", "sources", "schedule")}
#: All kinds of events.
JOURNAL = [
    *STATE["journal"],
    {"event": "skipped", "first": 8, "count": 2},
    {"event": "cut", "position": 9, "step": 4, "batch_size": 3, "world_size": 2, "last": "pad"},
]
OTHERS = [
    {"event": "reweighted", "position": 9, "weights": [1.0, 0.5]},
    {"event": "revised", "position": 9, "versions": [1, 2]},
    {"event": "grew", "position": 9, "source": 1, "samples": 5, "layout_root": "r"},
]


def state_seeds() -> Iterable[bytes]:
    yield json.dumps(STATE).encode()
    yield json.dumps(STATE | {"journal": JOURNAL}).encode()
    yield json.dumps(states.packed(STATE | {"journal": JOURNAL + OTHERS})).encode()


def _of_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def run_state(data: bytes) -> object | None:
    """A state that is taken is of this loader, and its journal is written as it was read."""
    given = _of_json(data)
    if not isinstance(given, dict):
        return None
    try:
        states.require_format(given)
        plain = states.unpacked(given)
        place = states.check_state(plain, OURS)
    except LoaderError:
        return None
    assert 0 <= place.position <= OURS["samples"]
    written = states.journal_to_json(place.events)
    assert states.parse_journal(json.loads(json.dumps(written))) == place.events
    assert states.unpacked(states.packed(plain))["journal"] == plain["journal"]
    return repr(place)


def run_resume(data: bytes) -> object | None:
    """What a state means here is a place in this dataset, or refused; and what it read can be told."""
    given = _of_json(data)
    if not isinstance(given, dict):
        return None
    dataset = open_dataset(DATASET)
    ours = Resumption(Sources([Source(dataset)]), None, SHUFFLE, Cut(2, 1, LastBatch.DROP), None)
    try:
        found = resume(given, ours, "refuse")
        trace = Trace(given, [Source(dataset)])
        steps = [trace.step(number).rows for number in range(max(0, trace.steps - 2), trace.steps)]
    except (LoaderError, IndexError):
        return None
    assert 0 <= found.position <= dataset.layout.samples
    return repr((found.events, found.pass_, found.position, found.step, steps))


ORDER = STATE["order"]
SHUFFLE = Shuffle(1, OrderMode(ORDER["mode"]), ORDER["window_blocks"] or 1, ORDER["block_rows"] or 1)


def run_checkpoint(data: bytes) -> object | None:
    """The state that lies in a file, wherever it lies there; or words for people."""
    with file_of(data) as path:
        try:
            found = loader_state_in(path)
            place = states.place_of(states.unpacked(found))
        except (CliError, LoaderError):
            return None
    return repr(place)


def checkpoint_seeds() -> Iterable[bytes]:
    yield json.dumps({"model": [1, 2], "loader": STATE}).encode()
    inner = {"loader": json.dumps(STATE), "_steps_since_snapshot": 1, "_iterator_finished": False}
    yield json.dumps([{"a": inner}, {"b": STATE}]).encode()


def run_world(data: bytes) -> object | None:
    """The rank of a process is below the number of ranks, whatever its launcher has written."""
    pairs = [line.partition("=") for line in data.decode("utf-8", "replace").splitlines()]
    try:
        found = told_world({name: value for name, _, value in pairs})
    except LoaderError:
        return None
    assert isinstance(found, World)
    assert 0 <= found.rank < found.size <= RANKS_MAX
    return found if found != ALONE else None


def run_manifest(data: bytes) -> object | None:
    """A manifest names keys and checksums by their shapes, and counts that can be."""
    try:
        found = parse_manifest(data, "file:///x")
    except FormatError:
        return None
    assert -1 <= found.entry <= NUMBER_MAX
    for number in (found.version, found.pad_id, found.seq_len, found.eos_id or 0):
        assert type(number) is int
        assert 0 <= number < 1 << 62
    for shard in found.shards:
        assert not shard.tokens.startswith(("/", "."))
        assert ".." not in shard.tokens.split("/")
        assert 0 <= shard.sequences < 1 << 41
    found.retracted_at(1)
    return repr([found.version, found.seq_len, found.tokenizer, list(found.shards), found.retracted])


def manifest_seeds() -> Iterable[bytes]:
    plain = orjson.loads((Path(DATASET) / "manifest.json").read_bytes())
    yield orjson.dumps(plain)
    retracted = [{"version": 1, "tokens": plain["shards"][0]["tokens"], "documents": [0, 3]}]
    yield orjson.dumps({**plain, "shards": plain["shards"][:1], "retracted": retracted, "entry": 4, "complete": False})


def run_head(data: bytes) -> object | None:
    """The blocks that a shard's header names lie behind it and make up the file."""
    try:
        table = parse_blocks(data)
    except FormatError:
        return None
    if table is None:
        return None
    assert table.count >= 0
    assert table.block_bytes > 0
    assert table.body >= len(data)
    return table.count, table.block_bytes, table.body, table.size, data


def head_seeds() -> Iterable[bytes]:
    for path in sorted(Path(DATASET).glob("shards/0/*.safetensors")):
        data = path.read_bytes()
        yield data[: 8 + int.from_bytes(data[:8], "little")]


def mutate_head(data: bytes, random: Random) -> bytes:
    """Another header behind a length that is right."""
    body = within_json(data[8:], random)
    return len(body).to_bytes(8, "little") + body


# -- pipelines --

PIPELINE = Pipeline.chain(
    "run",
    "file:///data",
    Stage("read", StageKind.SOURCE, "m:read", {"input": ["a", "b"]}, identity={"sha": "x"}, volatile=("input",)),
    Stage("keep", StageKind.TRANSFORM, "m:keep", {"function": "mine:f"}, replicas=2).placed(cores=1.5, memory_bytes=9),
    Stage("write", StageKind.SINK, "m:write", {"seq_len": 8}, on="w1"),
)


def run_pipeline(data: bytes) -> object | None:
    """A pipeline that is accepted is the same when it is written and read, and has a version."""
    try:
        found = Pipeline.from_dict(parse_pipeline(data.decode("utf-8", "replace")))
        validate(found)
    except PipelineError:
        return None
    plain = found.to_dict()
    assert Pipeline.from_dict(json.loads(json.dumps(plain))) == found
    assert re.fullmatch("[0-9a-f]{16}", found.version())
    # As it goes to workers, and into the ledger.
    pb.StartTask(pipeline_json=json.dumps(plain)).SerializeToString()
    orjson.dumps(plain)
    return found


def pipeline_seeds() -> Iterable[bytes]:
    yield json.dumps(PIPELINE.to_dict()).encode()
    own = {"modules": {"mine": "def f(record):\n    return record\n"}, "environment": {"python": "3.11"}}
    yield json.dumps({**PIPELINE.to_dict(), **own}).encode()
    base = Base("file:///old", 3, 17, "keep", {"0123456789abcdef": {"read": ("keep",)}}, again=True)
    yield json.dumps({**PIPELINE.to_dict(), "base": base.to_dict()}).encode()


def run_code(data: bytes) -> object | None:
    """The fingerprint of a text is of its syntax: comments and blank lines are no part of it."""
    text = data.decode("utf-8", "replace")
    found = fingerprint(text)
    assert re.fullmatch("[0-9a-f]{16}", found)
    try:
        tree = ast.dump(ast.parse(text))
        more = "# c\n\n" + text + "\n\n# d\n"
        assert ast.dump(ast.parse(more)) != tree or fingerprint(more) == found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree


CODE = (
    b'"""doc"""\nimport os\n\ndef f(record: dict) -> str | None:\n    """says"""\n    return None if record else "x"\n',
    b"class A:\n    x: int = 0x10\n    def g(self, *, a=1, **k):\n        yield from (b for b in [1.5, 'c', ...])\n",
    b"match a:\n    case {'b': [c, *_]} if (d := c):\n        print(f'{d!r:>{w}}')\n    case _:\n        pass\n",
)


# -- scenarios --

SCENARIOS = (
    b"""name = "a"
about = "b"
[run]
fuse = false
replicas = 2
[[fault]]
kind = "kill"
target = "worker"
after_commits = [1, 3]
count = 2
[[fault]]
kind = "freeze"
target = "stage:read"
after_s = 0.5
for_s = 1
follows = 0
optional = true
""",
    b"""[cluster]
workers = 3
spread = true
[clocks]
offset_s = [-60.0, 60]
rate = 1.5
[[fault]]
kind = "loss"
target = "links"
after_s = 1
share = 0.5
[[fault]]
kind = "store_slow"
after_s = 2
delay_s = [0.1, 1]
""",
)


def run_scenario(data: bytes) -> object | None:
    """A scenario that is taken can be drawn: every number in it is one, and in its bounds."""
    with file_of(data) as path:
        try:
            found = read_scenario(Path(path))
        except UsageError:
            return None
    for fault in found.faults:
        for span in (fault.after, fault.every, fault.for_s, fault.share, fault.delay_s):
            assert 0 <= span.low <= span.high < float("inf")
        assert fault.count >= 1
        hash(fault)
    assert isinstance(found.place, dict)
    return repr((found.faults, found.fuse, found.replicas, found.cluster, found.clocks, found.place))


# -- words of people --

NOW = 1_800_000_000.0


def run_words(data: bytes) -> object | None:
    """A word of a command is a number, a time or an address that can be used, or wrong usage."""
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    try:
        match kind:
            case b"s":
                found: object = since_of(text, NOW)
                assert isinstance(found, float)
                assert 0 <= found < 1e12
                pb.LogSearch(since=found).SerializeToString()
            case b"q":
                options = run_options({**defaults(RUN), "max_quarantined": text})
                found = options.quarantined_max, options.quarantined_share_max
                pb.ApplyRequest(quarantined_max=found[0], quarantined_share_max=found[1]).SerializeToString()
            case b"a":
                check_address("--listen", text)
                host, _, port = text.rpartition(":")
                assert port.isascii()
                found = host, int(port)
            case b"p":
                check_pairs("--label", [text])
                options = run_options({**defaults((*RUN, *PLACES)), "place": [text]})
                found = dict(options.places)
            case b"m":
                moved = text.splitlines()
                found = where_now([("a", "file:///a"), ("a=b", "s3://b"), ("c", "c")], "", moved)
                assert len(found) == 3
            case b"i":
                status = pb.PipelineStatus(input_bytes=9, facts={"bytes_resumed": text})
                found = input_bytes_stored(status)
                assert 0 <= found <= 9
            case _:
                return None
    except (UsageError, CliError):
        return None
    return kind, found


def word_seeds() -> Iterable[bytes]:
    yield from (b"s10m", b"s2026-05-04T12:30", b"s2026-05-04T12:30+02:00", b"q100", b"q1.5%", b"i7")
    yield from (b"alocalhost:7420", b"a[::1]:1", b"pread=w1", b"ma=file:///x", b"mc=d")


def run_log_text(data: bytes) -> object | None:
    """A line of a log, as a terminal gets it, has nothing in it that a terminal obeys."""
    line = parse(data)
    if line is None:
        return None
    text = line_text(line).plain
    assert all(char.isprintable() or char == "\n" for char in text)
    return text


LOG_LINES = (
    b'{"time":"2026-01-01T00:00:00.000000Z","level":"info","process":"worker w","message":"is ready","task":"run/a.0"}',
    b'{"time":"t","level":"error","process":"p","message":"m","cause":"apply.1","pipeline":"p","traceback":"a\\nb"}',
)
ENVIRONMENTS = (
    b"RANK=3\nWORLD_SIZE=8",
    b"RANK=0\nWORLD_SIZE=1\nSLURM_PROCID=0",
)
EVENT_WORDS = (b'"event": "skipped"', b'"event": "reweighted"', b'"before": ', b"1e400", b"9223372036854775807", b"NaN")
SCENARIO_WORDS = (b"[[fault]]\n", b"inf", b"nan", b'kind = "', b"after_s = ", b"[cluster]\n", b"1e99")
CODE_WORDS = (b"def ", b"lambda", b"__doc__", b"0x", b"'''", b"async ", b"match ", b"pass\n", b"((((")

TARGETS = [
    Target("state", ("headrace.loader.state.state",), run_state, state_seeds, mutate=within_json, words=EVENT_WORDS),
    Target(
        "resume", ("headrace.loader.state.resumption",), run_resume, lambda: list(state_seeds())[:2], mutate=within_json
    ),
    Target(
        "checkpoint",
        ("headrace.cli.commands.maintenance.checkpoints",),
        run_checkpoint,
        checkpoint_seeds,
        mutate=within_json,
    ),
    Target("world", ("headrace.loader.world",), run_world, lambda: ENVIRONMENTS[:1], words=(b"RANK=", b"WORLD_SIZE=")),
    Target("loader_manifest", ("headrace.loader.dataset.manifest",), run_manifest, manifest_seeds, mutate=within_json),
    Target("shard_head", ("headrace.loader.cache.head",), run_head, head_seeds, mutate=mutate_head),
    Target("pipeline", ("headrace.pipeline.graph",), run_pipeline, pipeline_seeds, mutate=within_json),
    Target("code", ("headrace.pipeline.code",), run_code, lambda: CODE, words=CODE_WORDS),
    Target(
        "scenario",
        ("headrace.chaos.live.scenario.scenario_file",),
        run_scenario,
        lambda: SCENARIOS,
        words=SCENARIO_WORDS,
    ),
    Target(
        "words",
        ("headrace.cli.run_options", "headrace.cli.commands.cluster.logs", "headrace.client.errors"),
        run_words,
        word_seeds,
    ),
    Target("log_text", ("headrace.cli.commands.cluster.logs",), run_log_text, lambda: LOG_LINES, mutate=within_json),
]
