"""Objects named by their bytes: what stands under the name is compared before anybody leans on it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.store.contract.errors import StoreRefused, StoreUnavailable
from headrace.store.contract.objects import ObjectStore
from headrace.store.files.scratch import open_draft
from headrace.store.files.store import FileStore
from headrace.store.ledger.log import Log
from headrace.store.named import ObjectDiffers, find, put, put_draft

KEY, PARTS = "shards/1/name", [b"what was ", b"written"]
WHOLE = b"".join(PARTS)
#: Where stored objects are written by `create` alone: who looks at its answer, compares bytes, or measures a store.
MAY_CREATE = {
    "cli/host/machine.py",
    "store/ledger/log.py",
    "store/named.py",
    "store/files/scratch.py",
    "store/s3/probe.py",
}
ROOT = Path(__file__).resolve().parents[2]


def by_parts(store: ObjectStore) -> None:
    put(store, KEY, PARTS)


def by_draft(store: ObjectStore) -> None:
    with open_draft(store) as draft:
        draft.append(WHOLE)
        put_draft(store, KEY, draft)


@pytest.fixture(params=[by_parts, by_draft])
def write(request: pytest.FixtureRequest) -> Callable[[ObjectStore], None]:
    way: Callable[[ObjectStore], None] = request.param
    return way


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_an_object_that_is_not_there_is_written(store: FileStore, write: Callable[[ObjectStore], None]) -> None:
    write(store)
    assert store.get(KEY) == WHOLE


def test_an_object_that_stands_there_already_is_taken(store: FileStore, write: Callable[[ObjectStore], None]) -> None:
    write(store)
    write(store)


@pytest.mark.parametrize("standing", [b"", WHOLE[:-1], WHOLE + b"\n", b"W" + WHOLE[1:]])
def test_an_object_with_other_bytes_is_refused_by_name(
    store: FileStore, write: Callable[[ObjectStore], None], standing: bytes
) -> None:
    store.create(KEY, [standing])
    with pytest.raises(ObjectDiffers, match=f"'{KEY}' should hold {len(WHOLE)} bytes .* Delete that object"):
        write(store)
    assert store.get(KEY) == standing


def test_no_waiting_mends_an_object_with_other_bytes() -> None:
    assert issubclass(ObjectDiffers, StoreRefused)


def test_an_object_that_is_missing_is_not_found(store: FileStore) -> None:
    assert not find(store, KEY, PARTS)


class Forgetful(FileStore):
    """Says that each object stands there, and has none."""

    def create(self, key: str, parts: object) -> bool:
        return False


def test_an_object_that_is_refused_and_never_found_ends_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="something deletes"):
        put(Forgetful(tmp_path), KEY, PARTS)


def test_a_cut_snapshot_is_whole_before_its_source_is_deleted(store: FileStore, tmp_path: Path) -> None:
    log = Log(store)
    log.append(0, b"an entry")
    log.write_snapshot(0, WHOLE)
    (tmp_path / "ledger" / f"{0:020d}.snapshot").write_bytes(WHOLE[:3])
    log.write_snapshot(0, WHOLE)
    assert log.read_from(-1) == ((0, WHOLE), [])


def creates(root: Path) -> Iterator[str]:
    """Every `something.create(key, ...)` outside of the files above."""
    for folder in ("cli", "controller", "loader", "stages", "store", "worker"):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                function = node.func if isinstance(node, ast.Call) else None
                if isinstance(function, ast.Attribute) and function.attr == "create" and name not in MAY_CREATE:
                    assert isinstance(node, ast.Call)
                    yield from [f"{name}:{node.lineno}"] if node.args else []


def test_nobody_leans_on_an_object_unseen() -> None:
    assert list(creates(ROOT)) == [], "use `headrace.store.named`: `create` does not say which object stands there"
