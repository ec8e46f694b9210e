"""Links below an input's folder lead out of it only where that is asked for, whoever puts them there, and when."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.client.pipeline_file import load
from headrace.stages.runtime.errors import FragmentChanged, InputError
from headrace.stages.sources.documents import FilesSource
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects import inputs as inputs_module
from headrace.stages.sources.objects.inputs import Inputs, file_at
from headrace.stages.sources.objects.patterns import LeadsOutError, open_below
from headrace.stages.sources.spool import SpoolSource
from headrace.stages.sources.tables.columns import ParquetSource
from headrace.stages.sources.warc import WarcSource
from tests.kits.inputs import files
from tests.kits.inputs.reading import WHOLE, read_whole
from tests.run.inputs.test_runs import balance, run

SECRET = b'{"text": "a secret of somebody"}\n'
#: Each source of files with a name that it reads and a file that it takes.
SOURCES: dict[str, tuple[Callable[..., Any], str, Callable[[Path], Any]]] = {
    "jsonl": (JsonlSource, "x.jsonl", lambda path: files.write(path, SECRET)),
    "gzip": (JsonlSource, "x.jsonl.gz", lambda path: files.write(path, gzip.compress(SECRET))),
    "parquet": (ParquetSource, "x.parquet", files.parquet_of),
    "warc": (WarcSource, "x.warc", lambda path: files.write(path, b"".join(files.warc()))),
    "files": (FilesSource, "x.txt", lambda path: files.write(path, SECRET)),
    "mixed": (MixedSource, "x.jsonl", lambda path: files.write(path, SECRET)),
}
each_source = pytest.mark.parametrize("kind", SOURCES)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a file, beside one with what is not to be read."""
    files.write(tmp_path / "private" / "x.jsonl", SECRET)
    files.write(tmp_path / "in" / "a.jsonl", b'{"text": "a"}\n')
    return tmp_path / "in"


def names(*patterns: Path | str, **options: bool) -> list[str]:
    found = Inputs([str(pattern) for pattern in patterns], ("**/*.jsonl",), **options)
    return [item.uri.rpartition("/")[2] for item in found]


@pytest.mark.parametrize("pattern", ["in", "in/*.jsonl", "in/**/*.jsonl", "in/?.jsonl"])
@pytest.mark.parametrize("target", ["../private/x.jsonl", "absolute"])
def test_a_link_outside_is_refused_by_name_place_and_remedy(corpus: Path, pattern: str, target: str) -> None:
    secret = corpus.parent / "private" / "x.jsonl"
    (corpus / "b.jsonl").symlink_to(secret if target == "absolute" else target)
    with pytest.raises(LeadsOutError) as refused:
        names(corpus.parent / pattern)
    words = str(refused.value)
    assert f"{str(corpus / 'b.jsonl')!r} is a link that leads to {str(secret)!r}" in words
    assert "--follow-links" in words


@pytest.mark.parametrize("pattern", ["in", "in/**/*.jsonl", "in/*/x.jsonl"])
def test_a_link_to_a_folder_outside_is_not_entered(corpus: Path, pattern: str) -> None:
    (corpus / "b").symlink_to("../private")
    with pytest.raises(LeadsOutError, match=r"in/b' is a link that leads to .*/private"):
        names(corpus.parent / pattern)
    assert "x.jsonl" in names(corpus.parent / pattern, follow_links=True)


def test_a_link_by_way_of_another_is_refused(corpus: Path) -> None:
    (corpus / "hop").symlink_to("..")
    (corpus / "b.jsonl").symlink_to("hop/private/x.jsonl")
    with pytest.raises(LeadsOutError, match=r"private/x\.jsonl"):
        names(corpus / "*.jsonl")


def test_a_folder_whose_name_begins_as_the_roots_is_outside(corpus: Path) -> None:
    files.write(corpus.parent / "in2" / "x.jsonl", SECRET)
    (corpus / "b.jsonl").symlink_to("../in2/x.jsonl")
    with pytest.raises(LeadsOutError):
        names(corpus)


def test_links_within_the_root_and_a_root_that_is_one_are_followed(corpus: Path) -> None:
    files.write(corpus / "blobs" / "x.jsonl", b"{}")
    (corpus / "b.jsonl").symlink_to("blobs/x.jsonl")
    (corpus / "c.jsonl").symlink_to(corpus / "blobs" / "x.jsonl")
    (corpus / "sub").symlink_to("blobs")
    (corpus.parent / "main").symlink_to("in")
    expected = ["a.jsonl", "b.jsonl", "x.jsonl", "c.jsonl", "x.jsonl"]
    assert names(corpus) == names(corpus.parent / "main") == expected
    source = JsonlSource("read", [str(corpus.parent / "main")])
    assert [end for fragment in source.list() if fragment for _, end in [read_whole(source, fragment)]] == [1] * 5


def test_a_link_that_is_given_itself_may_lead_anywhere(corpus: Path) -> None:
    link = corpus / "given.jsonl"
    link.symlink_to("../private/x.jsonl")
    source = JsonlSource("read", [str(link), str(corpus / "a.jsonl")])
    assert sum(read_whole(source, fragment)[1] for fragment in source.list() if fragment) == 2


@each_source
def test_a_link_put_in_between_is_refused_at_opening(tmp_path: Path, kind: str) -> None:
    make, name, write = SOURCES[kind]
    write(tmp_path / "in" / "sub" / name)
    source = make("read", [str(tmp_path / "in")])
    (fragment,) = [item for item in source.list() if item is not None]
    (tmp_path / "in" / "sub").rename(tmp_path / "away")  # the very file, so that no version tells
    (tmp_path / "in" / "sub").symlink_to("../away")
    with pytest.raises(LeadsOutError, match=r"in/sub' is a link that leads to .*--follow-links"):
        list(source.read(fragment, WHOLE))
    with pytest.raises(LeadsOutError):
        list(source.compare(fragment))
    follows = make("read", [str(tmp_path / "in")], follow_links=True)
    assert read_whole(follows, fragment)[1] > 0


def test_a_link_that_comes_between_the_look_and_the_opening_is_refused(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap happens as late as it can: as the file is opened."""
    (corpus / "sub").mkdir()
    files.write(corpus / "sub" / "b.jsonl", b"{}\n")
    source = JsonlSource("read", [str(corpus / "sub")])
    (fragment,) = [item for item in source.list() if item is not None]
    opened = inputs_module.open_below

    def late(root: str, path: str, *flags: int) -> int:
        os.rename(path, corpus.parent / "away.jsonl")
        os.symlink(corpus.parent / "away.jsonl", path)
        return opened(root, path, *flags)

    monkeypatch.setattr(inputs_module, "open_below", late)
    with pytest.raises(LeadsOutError):
        list(source.read(fragment, WHOLE))


def test_a_pipe_in_the_place_of_a_file_is_not_opened(corpus: Path) -> None:
    source = JsonlSource("read", [str(corpus)])
    (fragment,) = [item for item in source.list() if item is not None]
    (corpus / "a.jsonl").unlink()
    os.mkfifo(corpus / "a.jsonl")
    with pytest.raises((FragmentChanged, InputError), match="no regular file"):
        list(source.read(fragment, WHOLE))


def test_a_spool_reads_no_segment_that_leads_out_of_it(corpus: Path) -> None:
    (corpus / "0.jsonl").symlink_to("../private/x.jsonl")
    with pytest.raises(LeadsOutError):
        next(SpoolSource("read", str(corpus)).list())
    files.write(corpus.parent / "private" / "1.shed", b'{"records": 3}\n')
    shed = file_at(str(corpus.parent / "private" / "1.shed"))
    assert shed is not None
    (corpus / "0.jsonl").unlink()
    (corpus / "1.shed").symlink_to("../private/1.shed")
    fragment = shed.fragment("read", SpoolSource.SHED_READER)
    fragment = type(shed)((corpus / "1.shed").as_uri(), shed.size, shed.version).fragment("read", fragment.reader)
    with pytest.raises(LeadsOutError):
        list(SpoolSource("read", str(corpus)).read(fragment, WHOLE))


def test_no_descriptor_is_left_open_by_a_refusal(corpus: Path) -> None:
    (corpus / "b.jsonl").symlink_to("../private/x.jsonl")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(LeadsOutError):
            open_below(f"{corpus}/", f"{corpus}/b.jsonl")
    assert os.listdir("/proc/self/fd") == before


PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("links", output, read_jsonl(input), write_documents())
"""


def test_leave_is_a_fact_of_pipelines_outside_their_version(corpus: Path) -> None:
    file = corpus.parent / "links.py"
    file.write_text(PIPELINE)
    given = [f"input={corpus}", f"output={corpus.parent / 'out'}"]
    plain, follows = load(file, given), load(file, given, follow_links=True)
    assert plain.version() == follows.version()
    assert json.loads(json.dumps(follows.to_dict()))["stages"][0]["parameters"]["follow_links"] is True


def test_a_run_refuses_such_a_link_and_takes_it_by_the_flag(corpus: Path) -> None:
    (corpus / "b.jsonl").symlink_to("../private/x.jsonl")
    refused = run(corpus.parent, "in")
    assert refused.returncode == 1
    assert "is a link that leads to" in refused.stderr
    assert "somebody" not in refused.stderr + refused.stdout
    report = balance(run(corpus.parent, "in", "--follow-links"))
    assert (report["records_read"], report["complete"]) == (2, True)
