"""Folders of sockets: nobody but their user may enter one, or put another in its place."""

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from rights import need_other_users

from headrace.transport import private_folder
from headrace.transport.private_folder import (
    SOCKET_BYTES_MAX,
    Nook,
    NotPrivateError,
    check_private,
    check_socket,
    claim,
    make_private,
    peer_user,
    runtime_folder,
    short_path,
)

NOBODY = 65534


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def open_to_all(folder: Path) -> None:
    folder.chmod(0o755)


def of_another_user(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def below_a_writable_one(folder: Path) -> None:
    folder.parent.chmod(0o777)


def below_one_of_another_user(folder: Path) -> None:
    os.chown(folder.parent, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (open_to_all, "has mode 0755, so that others may enter it: give it mode 0700"),
        (of_another_user, "belongs to user 65534, and this is user 0"),
        (a_link, "is no folder"),
        (below_a_writable_one, "others may write to"),
        (below_one_of_another_user, "belongs to user 65534: no folder below it is private"),
    ],
)
def test_a_folder_that_others_may_enter_or_replace_is_refused_by_name(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    need_other_users()
    folder = tmp_path / "above" / "folder"
    folder.parent.mkdir()
    make_private(folder)
    spoil(folder)
    with pytest.raises(NotPrivateError, match=words):
        make_private(folder)


def test_a_link_on_the_way_is_followed_and_what_it_leads_through_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    make_private(tmp_path / "open" / "private")
    (tmp_path / "way").symlink_to("open")
    check_private(tmp_path / "way" / "private")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotPrivateError, match="others may write to"):
        check_private(tmp_path / "way" / "private")


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="a"):
        check_private(tmp_path / "a" / "folder")


def test_a_sticky_folder_above_is_as_good_as_tmp(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_private(tmp_path / "folder")


@pytest.mark.parametrize("given", ["variable", "login", "login of another user", "neither"])
def test_the_usual_folder_is_the_users_own(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = tmp_path / "login"
    login.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(login) if given.startswith("login") else "")
    usual = Path(f"/tmp/headrace-{os.geteuid()}")
    if given == "variable":
        assert runtime_folder() == tmp_path / "runtime"
        return
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    if given == "login of another user":
        need_other_users()
        os.chown(login, NOBODY, NOBODY)
    assert runtime_folder() == (login / "headrace" if given == "login" else usual)


def test_a_place_is_held_by_one_process_and_free_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "runtime" / "x.sock"
    held = claim(path)
    path.touch()
    with pytest.raises(BlockingIOError):
        claim(path)
    assert path.exists(), "who does not get the place takes nothing away"
    os.close(held)
    os.close(claim(path))
    assert not path.exists(), "what a dead process left is cleared away"


def test_a_socket_in_a_folder_with_a_long_name_is_reached_all_the_same(tmp_path: Path) -> None:
    path = make_private(tmp_path / ("long" * 40)) / "x.sock"
    assert len(os.fsencode(path)) > SOCKET_BYTES_MAX
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(short_path(path))
        server.listen()
        check_socket(path)
        client.connect(short_path(path))
        assert peer_user(client) == os.geteuid()
    path.unlink()
    path.parent.rename(tmp_path / "away")
    make_private(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(short_path(path))
    assert path.exists(), "a folder that took its place is not taken for it"


def test_a_socket_whose_name_alone_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="choose a shorter one"):
        short_path(tmp_path / ("x" * 120))


def test_what_is_no_socket_of_this_user_is_not_spoken_to(tmp_path: Path) -> None:
    path = make_private(tmp_path / "runtime") / "x.sock"
    path.touch()
    with pytest.raises(NotPrivateError, match="is no socket of user"):
        check_socket(path)


def test_a_nook_goes_with_its_process_and_those_of_the_dead_go_with_the_next() -> None:
    nook = Nook("run")
    (nook.path / "x.sock").touch()
    dead = Nook("run")
    fcntl.flock(dead._lock, fcntl.LOCK_UN)
    following = Nook("run")
    assert not dead.path.exists()
    assert nook.path.exists(), "its process lives"
    assert nook.path.stat().st_mode & 0o777 == 0o700
    for item in (nook, following):
        item.close()
        assert not item.path.exists()


def test_a_nook_that_is_swept_before_it_is_held_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hold, swept = private_folder._held_folder, []

    def slow(path: Path) -> int:
        if not swept:
            swept.append(path)
            path.rmdir()
        return hold(path)

    monkeypatch.setattr(private_folder, "_held_folder", slow)
    nook = Nook("run")
    assert nook.path not in swept
    assert nook.path.exists()
    nook.close()
