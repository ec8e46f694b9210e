"""Folders of sockets: nobody but their user may enter one, or put another in its place."""

import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.daemon import private_folder
from headrace.daemon.private_folder import (
    LINKS_MAX,
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
from tests.kits.host.rights import need_other_users

NOBODY = 65534


def open_below(folder: Path) -> list[str]:
    """What lies below a folder, and is open in this process."""
    found = list[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{folder}/")]


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


def test_a_link_on_the_way_is_followed_and_examined(tmp_path: Path) -> None:
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
    # as where they come to do so while they are looked at
    with pytest.raises(NotPrivateError, match=f"more than {LINKS_MAX} symbolic links"):
        private_folder._check_way(tmp_path / "a", LINKS_MAX)


def test_as_many_links_as_the_kernel_follows_are_followed(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(LINKS_MAX):
        (tmp_path / f"{number + 1}").symlink_to(f"{number}")
    make_private(tmp_path / f"{LINKS_MAX}" / "folder")


def test_a_link_that_leads_up_does_so_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "deep" / "open").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "way").symlink_to("deep/down")
    (tmp_path / "deep" / "down" / "up").symlink_to("../open")
    make_private(tmp_path / "way" / "up" / "private")
    (tmp_path / "deep" / "open").chmod(0o777)
    with pytest.raises(NotPrivateError, match="others may write to"):
        check_private(tmp_path / "way" / "up" / "private")


def test_a_folder_below_those_of_root_is_as_private_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_other_users()
    folder = make_private(tmp_path / "folder")
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    check_private(folder)


def test_a_sticky_folder_above_is_as_good_as_tmp(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_private(tmp_path / "folder")


@pytest.mark.parametrize("given", ["variable", "login", "login of another user", "half a login", "neither"])
def test_the_usual_folder_is_the_users_own(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = tmp_path / "login"
    login.mkdir(0o700)
    monkeypatch.chdir(tmp_path)
    logins = {"login": str(login), "login of another user": str(login), "half a login": "login"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", logins.get(given, ""))
    usual = Path(f"/tmp/headrace-{os.geteuid()}")
    if given == "variable":
        assert runtime_folder() == tmp_path / "runtime"
        return
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    if given == "login of another user":
        need_other_users()
        os.chown(login, NOBODY, NOBODY)
    assert runtime_folder() == (login / "headrace" if given == "login" else usual)


def test_a_place_is_held_by_one_process_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "runtime" / "x.sock"
    held = claim(path)
    path.touch()
    with pytest.raises(BlockingIOError):
        claim(path)
    assert path.exists(), "who does not get the place takes nothing away"
    assert open_below(tmp_path) == [f"{path}.lock"]
    assert Path(f"{path}.lock").stat().st_mode & 0o777 == 0o600
    os.close(held)
    os.close(claim(path))
    assert not path.exists(), "what a dead process left is cleared away"


def test_a_socket_in_a_long_named_folder_is_reached(tmp_path: Path) -> None:
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
    assert open_below(tmp_path) == [str(path.parent)], "what was held of the one before is closed"


def test_a_path_that_the_kernel_takes_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (SOCKET_BYTES_MAX - 1 - len(os.fsencode(tmp_path))))
    assert short_path(path) == str(path)
    assert short_path(path.with_name(path.name + "x")) != str(path) + "x"


def test_a_socket_whose_name_alone_is_too_long_is_refused(tmp_path: Path) -> None:
    folder = make_private(tmp_path / ("long" * 40))
    most = SOCKET_BYTES_MAX + 1 - len(short_path(folder / "x"))
    assert len(short_path(folder / ("x" * most))) == SOCKET_BYTES_MAX
    with pytest.raises(OSError, match="choose a shorter one"):
        short_path(folder / ("x" * (most + 1)))


def test_what_is_no_socket_of_this_user_is_not_spoken_to(tmp_path: Path) -> None:
    path = make_private(tmp_path / "runtime") / "x.sock"
    path.touch()
    with pytest.raises(NotPrivateError, match="is no socket of user"):
        check_socket(path)


def test_a_socket_open_to_another_user_is_not_spoken_to(tmp_path: Path) -> None:
    need_other_users()
    path = make_private(tmp_path / "r") / "x"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(short_path(path))
    check_socket(path)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(NotPrivateError, match="is no socket of user"):
        check_socket(path)
    os.chown(path, 0, 0)
    path.parent.chmod(0o711)
    with pytest.raises(NotPrivateError, match="has mode 0711"):
        check_socket(path)


def test_the_user_at_the_other_end_is_not_taken_for_its_group() -> None:
    need_other_users()
    os.setegid(NOBODY)
    try:
        ends = socket.socketpair()
    finally:
        os.setegid(0)
    with ends[0], ends[1]:
        assert peer_user(ends[0]) == 0


def test_a_nook_goes_with_its_process_or_the_next() -> None:
    nook = Nook("run")
    (nook.path / "x.sock").touch()
    dead = Nook("run")
    (dead.path / "x.sock").touch()
    assert dead._held is not None
    os.close(dead._held)
    following = Nook("run")
    assert not dead.path.exists()
    assert sorted(open_below(nook.path.parent)) == sorted([str(nook.path), str(following.path)])
    assert nook.path.exists(), "its process lives"
    assert nook.path.stat().st_mode & 0o777 == 0o700
    for item in (nook, following):
        item.close()
        assert not item.path.exists()
    assert not open_below(nook.path.parent)


def test_a_nook_is_closed_once_even_where_its_folder_is_gone() -> None:
    nook = Nook("run")
    shutil.rmtree(nook.path)
    nook.close()
    nook.close()


def test_what_is_no_folder_is_neither_held_nor_swept(tmp_path: Path) -> None:
    path = make_private(tmp_path / "runtime") / "run-1"
    path.touch()
    Nook("run").close()
    assert path.exists()
    with pytest.raises(NotADirectoryError):
        private_folder._held_folder(path)


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
