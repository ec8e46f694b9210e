"""Secrets are written to files that are made then, whoever made one of that name before and holds it open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cluster import write_public, write_secret
from headrace.page.server import PageAddress, write_address

WRITERS: dict[str, Callable[[Path], None]] = {
    "a secret": lambda path: write_secret(path, b"secret"),
    "a certificate": lambda path: write_public(path, b"secret"),
    "the key of the page": lambda path: write_address(path, PageAddress("127.0.0.1", 1, "secret")),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_draft_that_another_made_before_gets_nothing(tmp_path: Path, what: str) -> None:
    path = tmp_path / "key"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(0o666)
    with draft.open("rb") as held:
        WRITERS[what](path)
        assert held.read() == b""
    assert b"secret" in path.read_bytes()
    assert not draft.exists()


@pytest.mark.parametrize("what", WRITERS)
def test_a_draft_that_is_a_link_leads_nowhere(tmp_path: Path, what: str) -> None:
    path, victim = tmp_path / "key", tmp_path / "victim"
    victim.write_bytes(b"mine")
    path.with_name(f".{path.name}.{os.getpid()}").symlink_to(victim)
    WRITERS[what](path)
    assert victim.read_bytes() == b"mine"
    assert b"secret" in path.read_bytes()
