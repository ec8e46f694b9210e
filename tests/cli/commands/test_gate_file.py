"""A gate file that is none ends in one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.commands.dataset.show import read_gate
from headrace.client import CliError
from headrace.store.history import GATE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"a = " + b"[" * 30_000, "recursion"),
        (b"a = 1", "give it a table"),
        (b"\xff", "utf-8"),
        (b"#" * (GATE_CHARACTERS_MAX + 1), "more than 65536 bytes"),
        (b"k = {min = 1e999}", "no number"),
    ],
)
def test_what_is_no_gate_is_named(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "gate.toml"
    path.write_bytes(text)
    with pytest.raises(CliError, match=why) as found:
        read_gate(str(path))
    assert "gate.toml" in str(found.value)


def test_a_gate_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text("[kept_share]\nmin = 0.5\n" + "#" * 100)
    assert read_gate(str(path)) == {"kept_share": {"min": 0.5}}
