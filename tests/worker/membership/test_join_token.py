"""A join token comes by ways that no other user of the host can read."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cluster.join import PREFIX, TOKEN_LIMIT
from headrace.worker.membership.credentials import VARIABLE, find_token, membership
from headrace.worker.membership.member import JoinError

TOKEN = PREFIX + "abc"


def secret(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_as_an_argument_is_refused_and_not_repeated() -> None:
    with pytest.raises(JoinError, match="--join -") as refused:
        find_token(TOKEN)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("command", ["headrace.cli", "headrace.worker"])
def test_a_command_that_carries_a_token_ends_before_it_does_anything(command: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = [*(["worker"] if command == "headrace.cli" else []), "--join", TOKEN, "--state", str(state)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", command, *arguments], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode in (1, 2)
    assert "is read by every user of this host" in done.stderr
    assert TOKEN not in done.stderr
    assert not state.exists()


def test_a_file_of_ones_own_gives_the_token(tmp_path: Path) -> None:
    assert find_token(secret(tmp_path / "token", TOKEN + "\n")) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_reach_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(JoinError, match=f"has mode {mode:04o}"):
        find_token(secret(tmp_path / "token", TOKEN, mode))


def test_a_folder_is_no_token(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match=r"cannot be read|is no file"):
        find_token(str(tmp_path))


def test_a_file_without_a_token_is_refused_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="holds no join token") as refused:
        find_token(secret(tmp_path / "token", "password of something else"))
    assert "password" not in str(refused.value)


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="holds more than"):
        find_token(secret(tmp_path / "token", TOKEN + "x" * TOKEN_LIMIT))


def test_standard_input_gives_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TOKEN.encode() + b"\n")))
    assert find_token("-") == TOKEN


def test_the_environment_gives_the_token_and_no_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert find_token("") == TOKEN
    assert VARIABLE not in os.environ


def test_a_worker_of_no_cluster_asks_for_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert membership("", None) is None
