"""A retraction hides documents from a position on and moves nothing else; the journal says since when."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.batch.compiled import KERNELS
from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.loader import Batch, Loader, Source
from headrace.loader.order.errors import StateMismatch
from headrace.loader.trace import trace_document, trace_step

PAD_ID = 1
SHARD = 2
WIDE = ("tokens", "labels", "loss_mask", "position_ids")


def retract(uri: str, version: int, *documents: int) -> None:
    """Publish a version of the dataset that does not show these documents of shard 2."""
    path = Path(uri) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["version"] = version
    item = {"version": version, "tokens": manifest["shards"][SHARD]["tokens"], "documents": list(documents)}
    manifest.setdefault("retracted", []).append(item)
    path.write_text(json.dumps(manifest))


def loader(uri: str, **arguments: Any) -> Loader:
    return Loader(uri, **{"batch_size": 2, "last": "pad", "block_rows": 4, "window_blocks": 2, **arguments})


def spans(batch: Batch, document: int) -> list[tuple[int, int]]:
    at = np.flatnonzero((batch["documents"] == (SHARD, document)).all(axis=1))
    return [(int(batch["cu_seqlens"][one]), int(batch["cu_seqlens"][one + 1])) for one in at]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_retracted_document_is_padding_and_other_tokens_stay(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch, compiled: bool
):
    assert KERNELS.wait(300), KERNELS.error
    if not compiled:
        monkeypatch.setattr(KERNELS, "_module", None)
    uri = make_dataset()
    before = list(loader(uri))
    retract(uri, 2, 3, 5)
    hidden = 0
    for old, new in zip(before, loader(uri), strict=True):
        gone = np.zeros(old["tokens"].size, dtype=np.bool_)
        for document in (3, 5):
            assert spans(new, document) == []
            for begin, end in spans(old, document):
                gone[begin:end] = True
        hidden += int(gone.sum())
        assert (new["tokens"].reshape(-1)[gone] == PAD_ID).all()
        assert not new["loss_mask"].reshape(-1)[gone].any()
        assert (new["labels"].reshape(-1)[gone] == -100).all()
        # padding beside it becomes one run with it, and counts its positions from there
        kept = ~gone & (old["tokens"].reshape(-1) != PAD_ID)
        for name in WIDE:
            assert np.array_equal(new[name].reshape(-1)[kept], old[name].reshape(-1)[kept]), name  # type: ignore[literal-required]
        assert np.array_equal(new["positions"], old["positions"])
    assert hidden > 0


def test_the_rows_of_a_retracted_document_are_padding_to_whoever_reads_rows(make_dataset: Callable[..., str]):
    uri = make_dataset()
    whole = open_dataset(uri)
    ((sequence, start, length), *_) = whole.shard(SHARD).document_pieces(3)
    retract(uri, 2, 3)
    row = np.array([sequence])
    expected = whole.rows(SHARD, row)
    expected[0, start : start + length] = PAD_ID
    assert np.array_equal(open_dataset(uri).rows(SHARD, row), expected)


def test_a_checkpoint_before_a_retraction_journals_the_newer_version(
    make_dataset: Callable[..., str],
):
    uri = make_dataset()
    first = loader(uri)
    batches = iter(first)
    seen = [next(batches)["positions"].tolist() for _ in range(3)]
    state = first.state_dict()
    first.close()
    retract(uri, 2, 3)
    again = loader(uri, batch_size=3, rank=0, world_size=1)
    again.load_state_dict(json.loads(json.dumps(state)))
    rest = [batch["positions"].tolist() for batch in again]
    assert sorted(p for one in (*seen, *rest) for p in one if p >= 0) == list(range(17))
    revised = [event for event in again.state_dict()["journal"] if event["event"] == "revised"]
    assert [(event["position"], event["versions"]) for event in revised] == [(0, [1]), (6, [2])]


def test_a_trace_shows_a_retracted_document_until_its_retraction(
    make_dataset: Callable[..., str],
):
    uri = make_dataset()
    first = loader(uri)
    for _ in range(2):
        read = [number for number, batch in enumerate(first) for document in [3] if spans(batch, document)]
    state = first.state_dict()
    retract(uri, 2, 3)
    again = loader(uri)
    again.load_state_dict(state)
    assert not any(spans(batch, 3) for batch in again)
    state = again.state_dict()
    uses = trace_document(state, f"0/{SHARD}/3")
    assert len({use.step for use in uses}) == 2
    assert {use.pass_ for use in uses} == {0, 1}
    assert sorted({use.step for use in uses})[1] - 9 == read[0]
    for use in uses:
        (row,) = (row for row in trace_step(state, use.step).rows if row.row == use.row)
        assert f"0/{SHARD}/3" in [piece.document for piece in row.pieces]
    later = [piece.document for step in range(18, 27) for row in trace_step(state, step).rows for piece in row.pieces]
    assert f"0/{SHARD}/4" in later
    assert f"0/{SHARD}/3" not in later


def test_an_older_version_that_would_show_a_retracted_document_again_is_refused(make_dataset: Callable[..., str]):
    uri = make_dataset()
    old = (Path(uri) / "manifest.json").read_bytes()
    retract(uri, 2, 3)
    state = loader(uri).state_dict()
    (Path(uri) / "manifest.json").write_bytes(old)
    with pytest.raises(StateMismatch, match="version: the state has 2, this loader has 1"):
        loader(uri).load_state_dict(state)


def test_a_mixture_goes_on_after_a_retraction_and_refuses_older_ones(
    make_dataset: Callable[..., str],
):
    uris = make_dataset(), make_dataset(seed=1)
    state = Loader([Source(uri) for uri in uris], batch_size=2).state_dict()
    retract(uris[1], 2, 3)
    mixed = Loader([Source(uri) for uri in uris], batch_size=2)
    mixed.load_state_dict(state)
    newer = mixed.state_dict()
    assert newer["journal"][-1] == {"event": "revised", "position": 0, "versions": [1, 2]}
    manifest = Path(uris[1]) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 1, "retracted": []}))
    with pytest.raises(StateMismatch, match="version: the state has 2, this loader has 1"):
        Loader([Source(uri) for uri in uris], batch_size=2).load_state_dict(newer)


def test_long_rows_are_padded_where_they_were_retracted_by_numpy_too(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(KERNELS, "_module", None)
    uri = make_dataset(sequences=(2, 2, 3), seq_len=4096)
    before = list(loader(uri, last="pad"))
    retract(uri, 2, 0, 1)
    hidden = 0
    for old, new in zip(before, loader(uri, last="pad"), strict=True):
        for document in (0, 1):
            for begin, end in spans(old, document):
                assert (old["tokens"].reshape(-1)[begin:end] != PAD_ID).all()
                assert (new["tokens"].reshape(-1)[begin:end] == PAD_ID).all()
                assert (new["labels"].reshape(-1)[begin:end] == -100).all()
                assert not new["loss_mask"].reshape(-1)[begin:end].any()
                hidden += end - begin
    assert hidden > 0


def test_the_first_looks_at_a_shard_show_no_retracted_piece_either(make_dataset: Callable[..., str]):
    uri = make_dataset(sequences=(1, 1, 90))
    every = {row: open_dataset(uri).shard(SHARD).row_pieces(row)[:, 2].tolist() for row in range(90)}
    gone = every[7][0]
    retract(uri, 2, gone)
    shard = open_dataset(uri).shard(SHARD)
    for row in (7, 8, 9, 7):
        # two scans, and then the index
        assert shard.row_pieces(row)[:, 2].tolist() == [one for one in every[row] if one != gone]
