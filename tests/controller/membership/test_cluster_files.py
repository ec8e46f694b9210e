"""A join token that was spent is spent behind a power failure, too."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from headrace.client.new_cluster import make_cluster
from headrace.controller.core.cluster.members import SPENT
from headrace.controller.membership.cluster_files import ClusterFiles
from tests.kits.store.power_cut import Disk


@pytest.fixture
def files(tmp_path: Path) -> ClusterFiles:
    return make_cluster(tmp_path / "cluster", "test", ["127.0.0.1:7420"])


def test_a_token_that_was_spent_is_durable_with_its_folder(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Disk(monkeypatch)
    assert asyncio.run(files.spend("token", "worker", "key")) == ""
    assert recorded.has_name(files.folder / "spent")
    assert recorded.has_name(files.folder / "spent" / "token")


def test_an_answer_that_a_key_spent_a_token_may_be_trusted(
    files: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(files.spend("token", "worker", "key")) == ""
    recorded = Disk(monkeypatch)
    assert asyncio.run(files.spend("token", "worker", "key")) == ""
    assert recorded.has_name(files.folder / "spent" / "token")
    assert asyncio.run(files.spend("token", "another", "other")) == SPENT


def test_the_members_that_a_folder_tells_are_those_it_can_read(files: ClusterFiles) -> None:
    assert asyncio.run(files.spend("t1", "one", "key")) == ""
    files.issued("viewer/vic")
    known = {"operator/operator", "viewer/vic", "worker/one"}
    assert asyncio.run(files.members()) == known
    (files.folder / "spent" / "folder").mkdir()
    assert asyncio.run(files.members()) == {*known, "worker"}
    (files.folder / "spent" / "folder").rmdir()
    (files.folder / "spent" / "damaged").write_bytes(b"\xff")
    shutil.rmtree(files.folder / "issued")
    assert asyncio.run(files.members()) == {"operator", "user", "viewer", "worker/one", "worker"}
