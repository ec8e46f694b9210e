"""A controller dies, freezes or loses its store: another leads, data flows on, and the dataset is the same."""

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.chaos.gates.s3 import S3Fault, S3Proxy, Trouble
from headrace.protos import codec
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.entries import Led, Resigned, decode_entry
from headrace.store.ledger.log import Log
from headrace.store.open import open_store
from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import Cluster, cluster, until
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, headrace
from tests.kits.store.s3_server import S3Server, shared_server

TERM = 1 << 20
#: Seconds without a byte after which a source counts as standing still; tasks report several times a second.
STILL_S = 1.5


class Place:
    """Where a test keeps the cluster's log and the dataset: a folder, or a real S3 server."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.server: S3Server | None = shared_server() if kind == "s3" else None
        self.root = self.server.uri() if self.server else str(folder / "root")
        self.output = self.server.uri() if self.server else str(folder / "out")

    def cluster_log(self) -> list[int]:
        """The numbers of the entries of the cluster's log that stand."""
        keys = [info.key for info in open_store(self.root).list("controller/ledger/")]
        return [int(Path(key).stem) for key in keys if key.endswith(".msgpack")]

    def entries(self) -> int:
        return sum(info.key.endswith(".msgpack") for info in open_store(self.output).list("ledger/"))

    def fates(self) -> dict[tuple[str, int], tuple[object, ...]]:
        """What became of each record."""
        if self.server is None:
            return fates(Path(self.output))
        store, into = open_store(self.output), self.folder / "fetched"
        for info in store.list(""):
            (into / info.key).parent.mkdir(parents=True, exist_ok=True)
            (into / info.key).write_bytes(store.get(info.key))
        return fates(into)


SMALL_AND_SLOW = ["file", pytest.param("s3", marks=pytest.mark.slow)]


@pytest.fixture(params=SMALL_AND_SLOW)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def begun(made: Cluster, home: Path, place: Place, count: int = 6) -> str:
    """Apply, and return when the dataset's ledger has some entries."""
    name = made.apply("small.py", f"input={home}/corpus/*.jsonl", f"output={place.output}")
    until(lambda: place.entries() >= count, f"{count} entries in the ledger")
    return name


def same(home: Path, place: Place, undisturbed: Path) -> None:
    """The dataset is that of a run without faults, and verifies."""
    assert place.fates() == fates(undisturbed)
    done = ended(headrace("dataset", "verify", place.output), cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_leader_is_succeeded_and_its_tasks_go_on(
    home: Path, undisturbed: Path, place: Place, tmp_path: Path
) -> None:
    with cluster(home, tmp_path, place.root) as made:
        name = begun(made, home, place)
        before = made.status(name)
        assert before is not None
        made.controllers["a"].signal(signal.SIGKILL)
        status = made.wait_for_end(name)
        assert status.state == "completed", status.failure
        assert made.leads("b")
        assert status.term == before.term + 1
        assert [task.restarts for task in status.tasks] == [0, 0], "tasks that live are adopted, not started again"
        assert {task.task: task.attempt for task in status.tasks} == {t.task: t.attempt for t in before.tasks}
    assert Dataset.open(place.output).state.epoch == before.epoch, "no epoch is raised by a death that needs none"
    same(home, place, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_frozen_leader_that_wakes_after_truncation_stands_by(
    home: Path, undisturbed: Path, tmp_path: Path, kind: str
) -> None:
    place = Place(kind, tmp_path)
    with cluster(home, tmp_path, place.root, snapshot_entries=2) as made:
        name = begun(made, home, place)
        known = max(place.cluster_log())
        made.controllers["a"].signal(signal.SIGSTOP)
        until(lambda: made.leads("b"), "the standby leads after a silence")
        assert made.wait_for_end(name).state == "completed"
        made.controllers["b"].kill()
        made.add_controller("b")
        until(lambda: made.leads("b"), "a third term begins")
        until(lambda: min(place.cluster_log()[1:], default=0) > known, "the entries that the frozen one knew are gone")
        made.controllers["a"].signal(signal.SIGCONT)
        made.controllers["a"].says("has been taken over by")
        assert made.leads("b")
        reply = made.ask("a")
        assert reply is not None
        assert reply.standby
        assert reply.leader == made.addresses["b"]
        assert made.status(name) is not None, "whoever leads now still knows how the run ended"
    same(home, place, undisturbed)


@pytest.mark.slow
def test_a_leader_frozen_while_publishing_leaves_its_successors_manifest(home: Path, tmp_path: Path) -> None:
    place = Place("file", tmp_path)
    with cluster(home, tmp_path, place.root) as made:
        name = begun(made, home, place, count=2)
        with at_the_manifest(tmp_path / "out"):
            published = lambda: Dataset.open(place.output).state.newest is not None  # noqa: E731
            until(published, "the entry that publishes stands, and its manifest waits")
            made.controllers["a"].signal(signal.SIGSTOP)
        until(lambda: made.leads("b"), "the standby leads after a silence")
        assert made.wait_for_end(name).state == "completed"
        first = min((home / "corpus").glob("*.jsonl")).as_uri()
        retract = headrace("dataset", "retract", place.output, "--source", first, "--json")
        done = ended(retract, cwd=home)
        assert done.returncode == 0, done.stderr
        newest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
        assert newest["version"] == 2
        made.controllers["a"].signal(signal.SIGCONT)
        made.controllers["a"].says("has been taken over by")
        made.controllers["a"].signal(signal.SIGTERM)
        until(lambda: made.controllers["a"].process.poll() is not None, "the one that froze ends")
        assert json.loads((tmp_path / "out" / "manifest.json").read_bytes()) == newest
    assert Dataset.open(place.output).verify().sound


@contextlib.contextmanager
def at_the_manifest(dataset: Path) -> Iterator[None]:
    """Whoever would write the manifest waits meanwhile."""
    (dataset / ".tmp").mkdir(parents=True, exist_ok=True)
    with open(dataset / ".tmp" / "update.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("fault", [S3Fault.LOST_ANSWER, S3Fault.BROKEN])
def test_writes_whose_fate_the_leader_cannot_know_leave_no_trace(
    home: Path, undisturbed: Path, tmp_path: Path, fault: S3Fault
) -> None:
    place = Place("s3", tmp_path)
    assert place.server is not None
    with S3Proxy(place.server.endpoint) as proxy:
        root = place.root.replace(place.server.endpoint, proxy.endpoint)
        place.output = place.output.replace(place.server.endpoint, proxy.endpoint)
        with cluster(home, tmp_path, place.root, first_root=root) as made:
            proxy.plan(fault, "PUT", "ledger/", times=2)
            name = begun(made, home, place)
            proxy.plan(fault, "PUT", "ledger/", times=2)
            assert made.wait_for_end(name).state == "completed"
            assert made.leads("a"), "a leader in doubt asks again, and does not give up"
        same(home, place, undisturbed)


@pytest.mark.slow
def test_a_leader_cut_from_its_log_is_succeeded_and_ignored(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    place = Place("s3", tmp_path)
    assert place.server is not None
    with S3Proxy(place.server.endpoint) as proxy:
        root = place.root.replace(place.server.endpoint, proxy.endpoint)
        with cluster(home, tmp_path, place.root, first_root=root) as made:
            name = begun(made, home, place)
            proxy.plan(S3Fault.BROKEN, "PUT", "controller/", times=1 << 30)
            until(lambda: made.leads("b"), "the standby leads, while the first believes that it does")
            proxy.mend()
            made.controllers["a"].says("has been taken over by")
            assert made.wait_for_end(name).state == "completed"
            assert made.leads("b")
        same(home, place, undisturbed)


def test_a_controller_that_is_started_again_goes_on_with_its_pipelines(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    place = Place("file", tmp_path)
    with cluster(home, tmp_path, place.root) as made:
        made.controllers["b"].kill()
        name = begun(made, home, place)
        made.controllers["a"].kill()
        made.add_controller("a")
        status = made.wait_for_end(name)
        assert status.state == "completed", status.failure
        ending = made.controllers["a"]
        ending.signal(signal.SIGTERM)
        until(lambda: ending.process.poll() is not None, "it ends, and what it said is in the log")
        made.add_controller("a")
        until(lambda: made.leads("a"), "it leads again")
        reply = made.ask("a")
    same(home, place, undisturbed)
    assert reply is not None
    (later,) = reply.pipelines
    assert (later.state, later.version, codec.plain(later)["balance"]) == ("completed", "", None)
    assert later.notes == [f"another controller led it; its records: `headrace dataset show {status.dataset}`"]


def test_a_standby_refuses_leaders_work_and_names_the_leader(home: Path, tmp_path: Path) -> None:
    with cluster(home, tmp_path, str(tmp_path / "root"), workers=0) as made:
        reply = made.ask("b")
        assert reply is not None
        assert (reply.standby, reply.leader) == (True, made.addresses["a"])
        made.controllers["a"].signal(signal.SIGTERM)
        until(lambda: made.leads("b"), "the standby leads")
    log = Log(open_store(str(tmp_path / "root" / "controller")))
    changes = [change for _, data in log.read() for change in decode_entry(data).changes]
    handed_over = changes.index(Resigned(1))
    assert any(isinstance(change, Led) for change in changes[handed_over:]), "who ends in order hands over"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_embedded_run_outlives_its_controller(
    home: Path, undisturbed: Path, tmp_path: Path, how: signal.Signals
) -> None:
    run = Marked(run_command(home, str(tmp_path / "out")), home)
    process = run.start()
    place = Place("file", tmp_path)
    try:
        until(lambda: place.entries() >= 6, "six entries in the ledger")
        (controller,) = [pid for pid in run.alive() if b"headrace controller" in _title(pid)]
        signal.pidfd_send_signal(_pidfd(controller), how)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        run.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["balanced"]
    assert b"restarted" in err
    same(home, place, undisturbed)


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _pidfd(pid: int) -> int:
    return os.pidfd_open(pid)


@pytest.mark.slow
def test_during_a_store_outage_sinks_hold_and_sources_stand(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    place = Place("s3", tmp_path)
    assert place.server is not None
    root, total = str(tmp_path / "root"), sum(path.stat().st_size for path in (home / "corpus").iterdir())
    with S3Proxy(place.server.endpoint) as proxy:
        place.output = place.output.replace(place.server.endpoint, proxy.endpoint)
        outage = Trouble(S3Fault.GONE)
        with cluster(home, tmp_path, root, workers=1) as made:
            name = begun(made, home, place)
            proxy.begin(outage)
            read = stands_still(made, name)
            assert read < total, "the run was over before its store was out"
            before = made.status(name)
            assert before is not None
            tasks = [(task.task, task.attempt) for task in before.tasks]
            proxy.end(outage)
            status = made.wait_for_end(name)
            assert status.state == "completed", status.failure
            assert [(task.task, task.attempt) for task in status.tasks] == tasks, "nobody dies of it"
        same(home, place, undisturbed)


def stands_still(made: Cluster, name: str) -> int:
    """Bytes that the sources have read, once they read no more for STILL_S."""
    seen: list[tuple[float, int]] = []

    def look() -> bool:
        status = made.status(name)
        assert status is not None
        read = sum(stage.bytes for stage in status.stages if stage.stage == "read")
        seen.append((time.monotonic(), read))
        return seen[-1][0] - next(at for at, bytes_ in seen if bytes_ == read) >= STILL_S

    until(look, "the source stands still")
    return seen[-1][1]
