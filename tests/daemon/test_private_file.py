"""A file with a secret is read only where it is this user's, nobody else reaches it, and it is short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cluster.certificates import read_credentials
from headrace.controller.membership.cluster_files import ClusterFiles, ClusterFilesError
from headrace.daemon.private_folder import read_private
from headrace.worker.membership.join import read_membership
from headrace.worker.membership.member import JoinError

OTHER = 65534


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ones_own_is_read(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    assert read_private(secret, 6) == b"secret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_file_that_others_reach_is_refused_with_its_mode(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(OSError, match=f"has mode {mode:04o}.*give it mode 0600"):
        read_private(secret, 6)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(secret: Path) -> None:
    os.chown(secret, OTHER, OTHER)
    with pytest.raises(OSError, match=f"belongs to user {OTHER}"):
        read_private(secret, 6)


def test_a_file_that_is_too_long_is_refused(secret: Path) -> None:
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_private(secret, 5)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(OSError, match="is no file"):
        read_private(tmp_path / "pipe", 6)


def test_a_pipe_is_read_where_it_may_be_one() -> None:
    read, write = os.pipe()
    os.write(write, b"secret")
    os.close(write)
    try:
        os.fchmod(read, 0o600)
        assert read_private(Path(f"/proc/self/fd/{read}"), 6, pipes=True) == b"secret"
    finally:
        os.close(read)


@pytest.mark.parametrize("name", ["authority.key", "cluster.key", "controller.key"])
def test_a_cluster_whose_keys_others_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    from headrace.client.new_cluster import init

    folder = tmp_path / "cluster"
    init(folder, "press", ["127.0.0.1:7420"])
    assert ClusterFiles.read(folder).name == "press"
    (folder / name).chmod(0o640)
    with pytest.raises(ClusterFilesError, match=rf"{name}: it has mode 0640"):
        ClusterFiles.read(folder)


def test_a_member_whose_key_others_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "member.json").write_text('{"name": "one", "controllers": []}')
    for name in ("node.pem", "authority.pem", "node.key"):
        (tmp_path / name).write_text("")
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(JoinError, match="has mode 0644"):
        read_membership(tmp_path)
    with pytest.raises(OSError, match="has mode 0644"):
        read_credentials(tmp_path, "node")
