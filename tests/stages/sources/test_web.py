"""Input of web servers and of the hub: each record once, whatever is closed, and a changed object is noticed."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator

import pytest

from headrace.stages.runtime.errors import FragmentChanged, InputError
from headrace.stages.sources.base import FRAGMENTS_A_FILE_MAX
from headrace.stages.sources.mixed import MixedSource
from headrace.store.open import open_input
from tests.kits.inputs import files, reading
from tests.kits.inputs.web_server import HubServer, Reply, WebServer, serving
from tests.stages.sources.test_altered import report, run

PLACES = {"http": (WebServer, "{url}/{path}"), "hf": (HubServer, "hf://datasets/o/n@main/{path}?endpoint={url}")}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[WebServer, str]]:
    kind, uri = PLACES[request.param]
    held = {
        "data/a.jsonl": files.lines(),
        "data/b/b.jsonl.gz": gzip.compress(files.lines(), mtime=0),
        "data/c.parquet": files.parquet_of(tmp_path / "c.parquet").read_bytes(),
        "data/d.warc.gz": files.members(files.warc()),
        "data/e.txt": b"plain",
        "data/README.md": b"no data",
    }
    with serving(kind(held)) as server:
        yield server, uri.format(url=server.url, path="{path}")


def test_all_formats_are_read_and_resumed(place: tuple[WebServer, str], tmp_path: pathlib.Path) -> None:
    server, template = place
    uri = template.format(path="data")
    here = tmp_path / "files"
    for name, data in server.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(data)
    source = MixedSource("read", [uri])
    near = MixedSource("read", [str(here / "data")])
    mine = [(fate[0], *fate[2:3]) for fate in reading.read_all(source)]
    assert mine == [(fate[0], *fate[2:3]) for fate in reading.read_all(near)]
    assert len(mine) > 5
    assert source.skipped() == near.skipped()
    reading.check_gaps(source, rounds=4)
    glob = template.format(path="data/**/*.gz")
    assert [fragment.uri.rpartition("/")[2] for fragment in MixedSource("read", [glob]).list() if fragment] == [
        "b.jsonl.gz",
        "d.warc.gz",
    ]


def test_an_object_that_changes_meanwhile_is_noticed(place: tuple[WebServer, str]) -> None:
    server, template = place
    source = MixedSource("read", [template.format(path="data")])
    fragment = next(item for item in source.list() if item and item.uri.endswith("a.jsonl"))
    server.files["data/a.jsonl"] = files.lines() + b'{"text": "more"}\n'
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.read(fragment, reading.WHOLE))
    del server.files["data/a.jsonl"]
    with pytest.raises(FragmentChanged, match="is gone since it was listed"):
        list(source.read(fragment, reading.WHOLE))


def test_a_run_reads_once_and_compares_what_changed(tmp_path: pathlib.Path) -> None:
    with serving(WebServer({"data/a.jsonl": files.lines(), "data/b.jsonl": files.lines()})) as server:
        options = ("-p", f"input={server.url}/data/*.jsonl")
        first = report(tmp_path, *options)
        assert first["kept"] > 0
        again = report(tmp_path, *options)
        assert (again["kept"], again["bytes_read"]) == (first["kept"], 0)
        server.files["data/a.jsonl"] = files.lines()[:-9] + b"x" * 9
        halted = run(tmp_path, *options)
        assert halted.returncode == 1
        assert f"{server.url}/data/a.jsonl" in halted.stderr
        assert "it holds other bytes than when it was read" in halted.stderr


def test_what_names_nothing_says_so(place: tuple[WebServer, str]) -> None:
    _, template = place
    with pytest.raises(InputError, match="no file matches"):
        list(MixedSource("read", [template.format(path="none")]).list())


def test_one_place_is_read_without_a_run(place: tuple[WebServer, str]) -> None:
    server, _ = place
    if not isinstance(server, HubServer):
        assert open_input(server.url).get("data/e.txt", 1, 3) == b"lai"


def test_a_size_that_a_server_makes_up_costs_few_fragments() -> None:
    huge = 10**17
    with serving(WebServer({})) as server:
        server.fault = lambda asked: Reply(206, b"{", {"Content-Range": f"bytes 0-0/{huge}", "ETag": '"e"'})
        fragments = MixedSource("read", [f"{server.url}/a.jsonl"]).list()
        count = end = 0
        for count, fragment in enumerate(fragments, 1):
            assert fragment is not None
            assert (fragment.start, count <= FRAGMENTS_A_FILE_MAX) == (end, True)
            end = fragment.start + fragment.size
    assert (end, count) == (huge, FRAGMENTS_A_FILE_MAX)
