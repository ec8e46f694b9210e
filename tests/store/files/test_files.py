"""What the file store does beyond the contract: leftovers, faults of the disk, symbolic links."""

import errno
import os
import pathlib
import signal
import stat
from collections.abc import Callable

import pytest

from headrace.store.contract.errors import (
    InvalidUri,
    ObjectMissing,
    StoreError,
    StoreRefused,
    StoreStalled,
    StoreUnavailable,
)
from headrace.store.contract.objects import KEY_BYTES_MAX
from headrace.store.files import store as files
from headrace.store.files.store import FileStore

LONG_AGO_S = 1


def _leftover(root: pathlib.Path, boot: str, pid: int, modified_s: int | None = LONG_AGO_S) -> pathlib.Path:
    path = root / ".tmp" / f"{boot}.{pid}.0.00ff00ff.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half a shard")
    if modified_s is not None:
        os.utime(path, (modified_s, modified_s))
    return path


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_nothing_is_made_before_the_first_write(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path / "a" / "b")
    assert list(store.list("")) == []
    assert store.head("k") is None
    assert list(tmp_path.iterdir()) == []


def test_a_write_leaves_no_temporary_file(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path)
    store.create("a/k", [b"x"])
    store.create("a/k", [b"y"])
    store.replace("a/k", [b"z"])
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert (tmp_path / "a" / "k").stat().st_nlink == 1


def test_an_old_leftover_of_the_dead_is_removed_unlisted(tmp_path: pathlib.Path) -> None:
    leftover = _leftover(tmp_path, files._boot_id(), _dead_pid())
    elsewhere = _leftover(tmp_path, "0badb007", os.getpid())
    assert list(FileStore(tmp_path).list("")) == []
    assert not leftover.exists()
    assert not elsewhere.exists()


def test_a_leftover_that_may_still_be_written_stays(tmp_path: pathlib.Path) -> None:
    ours = _leftover(tmp_path, files._boot_id(), os.getpid())
    young = _leftover(tmp_path, files._boot_id(), _dead_pid(), modified_s=None)
    foreign = tmp_path / ".tmp" / "notes.txt"
    foreign.write_text("not ours")
    os.utime(foreign, (LONG_AGO_S, LONG_AGO_S))
    assert list(FileStore(tmp_path).list("")) == []
    assert ours.exists()
    assert young.exists()
    assert foreign.exists()


def test_a_writer_killed_before_the_link_leaves_no_object(tmp_path: pathlib.Path) -> None:
    pid = os.fork()
    if pid == 0:
        os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        FileStore(tmp_path).create("k", [b"x" * 1000])
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    store = FileStore(tmp_path)
    assert len(list((tmp_path / ".tmp").iterdir())) == 1
    assert list(store.list("")) == []
    assert store.create("k", [b"y"]) is True


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free space on the disk"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "right to read and write"),
        (errno.EROFS, "mounted read-only"),
        (errno.EIO, "kernel log"),
    ],
)
def test_a_fault_of_the_disk_names_store_key_size_and_remedy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    store = FileStore(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "writev", fail)
    with pytest.raises(StoreError, match=rf"cannot create 'a/k' \(5 bytes\).*{remedy}") as caught:
        store.create("a/k", [b"12", b"345"])
    assert store.uri in str(caught.value)
    full, denied = code in (errno.ENOSPC, errno.EDQUOT), code in (errno.EACCES, errno.EROFS)
    assert type(caught.value) is (StoreStalled if full else StoreRefused if denied else StoreUnavailable)
    assert ("bytes are free)" in str(caught.value)) is (code == errno.ENOSPC)
    with pytest.raises(StoreError, match=remedy):
        store.replace("a/k", [b"12345"])
    monkeypatch.undo()
    assert store.head("a/k") is None
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert store.create("a/k", [b"12345"]) is True


def test_a_kernel_that_takes_few_bytes_is_given_the_rest(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [b"", b"abc", b"d", b"", b"efghij", b"k"]
    monkeypatch.setattr(os, "writev", lambda fd, views: os.write(fd, b"".join(views)[:2]))
    store = FileStore(tmp_path)
    store.create("k", parts)
    assert store.get("k") == b"abcdefghijk"


def test_a_missing_directory_is_made_again(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path / "dataset")
    store.create("a/k", [b"x"])
    (tmp_path / "dataset").rename(tmp_path / "moved")
    assert store.create("a/k", [b"y"]) is True


def test_an_object_in_a_folders_place_differs_from_a_taken_key(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path)
    store.create("a", [b"x"])
    store.create("b/c", [b"x"])
    with pytest.raises(StoreUnavailable, match="an object stands where a directory is needed"):
        store.create("a/k", [b"x"])
    with pytest.raises(StoreUnavailable, match="other objects lie below it"):
        store.create("b", [b"x"])


def test_a_root_that_is_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(InvalidUri, match="is a file, not a directory"):
        FileStore(tmp_path / "file")


def test_files_of_others_are_listed_only_under_valid_keys(tmp_path: pathlib.Path) -> None:
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "line\nfeed").write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert [info.key for info in FileStore(tmp_path).list("")] == ["good"]


def test_a_dangling_link_is_missing_and_still_never_overwritten(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k").symlink_to(tmp_path / "nowhere")
    store = FileStore(tmp_path)
    with pytest.raises(ObjectMissing):
        store.get("k")
    assert store.create("k", [b"x"]) is False


def test_nothing_is_written_or_deleted_through_a_link(tmp_path: pathlib.Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    store = FileStore(mine)
    store.create("shards/a", [b"a"])
    (theirs / "deep").mkdir(parents=True)
    (theirs / "deep" / "b").write_bytes(b"theirs")
    os.rename(mine / "shards", mine / "moved")
    (mine / "shards").symlink_to(theirs)
    writes: list[Callable[[str], object]] = [
        lambda key: store.create(key, [b"x"]),
        lambda key: store.replace(key, [b"x"]),
        lambda key: store.update(key, lambda _: [b"x"]),
        store.delete,
    ]
    for write in writes:
        for key in ("shards/c", "shards/deep/b"):
            with pytest.raises(StoreRefused, match="'shards' is a link"):
                write(key)
    with store.draft() as draft, pytest.raises(StoreRefused, match="'shards' is a link"):
        draft.create("shards/d")
    assert [path.read_bytes() for path in theirs.rglob("*") if path.is_file()] == [b"theirs"]
    assert store.get("shards/deep/b") == b"theirs", "a copy of a dataset may be made of links, and is read"


def test_a_folder_that_is_exchanged_meanwhile_leads_nowhere_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write in the root puts somebody else's folder in the place of ours, between the look and the deed."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    store = FileStore(mine)
    for number in range(4):
        store.create(f"shards/deep/{number}", [b"mine"])
    (theirs / "deep").mkdir(parents=True)
    for number in range(4):
        (theirs / "deep" / f"{number}").write_bytes(b"theirs")
    moves = 0

    def exchanged(deed: Callable[..., object]) -> Callable[..., object]:
        def do(*arguments: object, **named: object) -> object:
            nonlocal moves
            moves += 1
            os.rename(mine / "shards", mine / f"moved{moves}")
            os.rename(theirs, mine / "shards")
            try:
                return deed(*arguments, **named)
            finally:
                os.rename(mine / "shards", theirs)
                os.rename(mine / f"moved{moves}", mine / "shards")

        return do

    with monkeypatch.context() as patch:
        for name in ("link", "replace", "unlink"):
            patch.setattr(os, name, exchanged(getattr(os, name)))
        assert store.create("shards/deep/new", [b"mine"])
        store.replace("shards/deep/0", [b"changed"])
        store.delete("shards/deep/1")
    assert moves >= 3
    assert {path.name: path.read_bytes() for path in (theirs / "deep").iterdir()} == dict.fromkeys("0123", b"theirs")
    found = {info.key.rpartition("/")[2]: store.get(info.key) for info in store.list("shards/")}
    assert found == {"0": b"changed", "2": b"mine", "3": b"mine", "new": b"mine"}


def test_the_lock_of_an_update_is_held_by_no_other_user(tmp_path: pathlib.Path) -> None:
    """To hold it, it is enough to read it; one of an earlier Headrace could be read by everybody."""
    store = FileStore(str(tmp_path / "s"))
    store.update("a", lambda _: [b"1"])
    lock = tmp_path / "s" / ".tmp" / "update.lock"
    assert lock.stat().st_mode & 0o007 == 0
    lock.chmod(0o644)
    store.update("a", lambda _: [b"2"])
    assert lock.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
def test_what_is_no_file_is_refused_unread(tmp_path: pathlib.Path, kind: str) -> None:
    place = tmp_path / "k"
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)
    else:
        place.symlink_to("/dev/zero")
    store = FileStore(tmp_path)
    reads: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.get("k", 0, 1),
        lambda: store.update("k", lambda _: None),
    ]
    for read in reads:
        with pytest.raises(StoreRefused, match=r"'k': .*; a pipe, a socket or a device stands there"):
            read()
    assert store.head("k") is None


def test_folders_deeper_than_any_key_are_passed_over(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.create("a" + "/a" * (KEY_BYTES_MAX // 2 - 1), [b"x"])
    store.create("b", [b"x"])
    monkeypatch.chdir(tmp_path / "a")
    for _ in range(2 * KEY_BYTES_MAX):
        os.mkdir("b")
        os.chdir("b")
    try:
        assert [len(info.key) for info in store.list("")] == [KEY_BYTES_MAX - 1, 1]
    finally:
        for _ in range(2 * KEY_BYTES_MAX):  # what clears up behind the tests goes no deeper than a thousand
            os.chdir("..")
            os.rmdir("b")


def test_a_link_in_the_place_of_temporary_files_is_refused(tmp_path: pathlib.Path) -> None:
    theirs = tmp_path / "theirs"
    left = _leftover(tmp_path / "old", "00000000", _dead_pid())
    os.rename(left.parent, theirs)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".tmp").symlink_to(theirs)
    store = FileStore(tmp_path / "mine")
    with pytest.raises(StoreRefused, match=r"'\.tmp' is a link"):
        store.create("a", [b"a"])
    assert [path.name for path in theirs.iterdir()] == [left.name]
