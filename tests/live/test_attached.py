"""Chaos on a cluster that lives: its processes on this host are found and hit, and none that is not its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.chaos.live.clusters.attached import AttachedCluster
from headrace.chaos.live.faults.processes import ProcessRole
from headrace.cli.main import invoke
from headrace.client.client import ControllerAt
from headrace.client.errors import CliError
from tests.kits.run.daemons import Cluster, cluster, until
from tests.kits.run.live import call, inputs

SCENARIO = """
name = "a living cluster loses a task, a worker and its leader"

[[fault]]
kind = "kill"
target = "task"
after_commits = [2, 6]

[[fault]]
kind = "freeze"
target = "worker"
after_commits = [8, 12]
for_s = 0.5

[[fault]]
kind = "kill"
target = "worker"
after_commits = [16, 22]

[[fault]]
kind = "kill"
target = "controller"
follows = 2
after_s = 0.2
"""


@pytest.fixture
def dying(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(home, tmp_path, str(tmp_path / "root")) as made:
        yield made


@pytest.fixture(scope="module")
def living(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that no test does anything to."""
    folder = tmp_path_factory.mktemp("living")
    with cluster(home, folder, str(folder / "root")) as made:
        yield made


@pytest.mark.slow
def test_a_living_cluster_is_hit_and_its_dataset_unchanged(
    home: Path, reference: Path, tmp_path: Path, dying: Cluster
) -> None:
    (tmp_path / "x.toml").write_text(SCENARIO)
    done = call(
        home, "chaos", "run", str(tmp_path / "x.toml"), "small.py", *inputs(home), "--controller", dying.known(),
        "--reference", str(reference), "--folder", str(tmp_path), "--report", str(tmp_path / "report"),
        "--rebuilds", "0", "--seed", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    roles = [fired["victims"][0].split()[1] for fired in report["fired"]]
    assert roles == ["task", "worker", "worker", "controller"]
    assert f"--controller {dying.known()}" in report["replay"]
    ended = [
        daemon.process.poll() for daemon in (*dying.workers.values(), *dying.controllers.values()) if daemon.process
    ]
    assert sorted(code for code in ended if code is not None) == [-9, -9], "one worker and one controller, and no other"


def test_what_is_not_of_the_cluster_is_not_found(home: Path, tmp_path: Path, living: Cluster) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with cluster(home, folder, str(folder / "root"), workers=1) as other:
        other.wait_for_workers()
        stranger = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        with stranger:
            found = AttachedCluster(ControllerAt(living.known())).alive()
            stranger.kill()
        controllers = [daemon.process.pid for daemon in living.controllers.values() if daemon.process]
        workers = [daemon.process.pid for daemon in living.workers.values() if daemon.process]
        assert sorted(item.pid for item in found if item.role is ProcessRole.CONTROLLER) == sorted(controllers)
        assert sorted(item.pid for item in found if item.role is ProcessRole.WORKER) == sorted(workers)
        assert {item.role for item in found} <= {ProcessRole.CONTROLLER, ProcessRole.WORKER, ProcessRole.FORKSERVER}
        assert set(other.workers) < set(living.workers), "it has a worker of the same name"
        daemons = (*other.controllers.values(), *other.workers.values())
        others = [daemon.process.pid for daemon in daemons if daemon.process]
        assert not {item.pid for item in found} & {stranger.pid, *others}


def test_where_nothing_of_the_cluster_runs_that_is_said(living: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.chaos.live.clusters.attached.socket.gethostname", lambda: "elsewhere")
    monkeypatch.setattr("headrace.chaos.live.clusters.attached._is_here", lambda address: False)
    until(lambda: living.leads("a"), "a leads")
    with pytest.raises(CliError, match=r"nothing of the cluster of .* runs on this host, elsewhere"):
        AttachedCluster(ControllerAt(living.known()))


def test_what_only_a_living_cluster_has_is_refused_without_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    loss = '[[fault]]\nkind = "loss"\ntarget = "links"\nafter_s = 0\n'
    kill = '[[fault]]\nkind = "kill"\ntarget = "task"\nafter_s = 0\n'
    for text, more, words in (
        (loss, (), "faults of the network need gates"),
        (loss, ("--controller", "insecure-tcp:127.0.0.1:1", "--here"), "faults of the network need gates"),
        (f'[run.place]\nread = "w0"\n{kill}', (), "[run.place] is for a cluster that lives"),
        (f"[run]\nplace = 1\n{kill}", (), "write place as a table [run.place]"),
        (f'[cluster]\n[run.place]\nread = "w0"\n{kill}', (), "with [cluster] write [cluster.place]"),
    ):
        (tmp_path / "x.toml").write_text(text)
        assert invoke(["chaos", "run", str(tmp_path / "x.toml"), "small.py", *inputs(home), *more]) == 2
        assert words in capsys.readouterr().err


def test_a_scenario_with_its_own_cluster_is_not_done_elsewhere(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"[cluster]\n{SCENARIO.partition('[[')[1]}{SCENARIO.partition('[[')[2]}")
    done = call(
        home,
        "chaos",
        "run",
        str(tmp_path / "x.toml"),
        "small.py",
        *inputs(home),
        "--controller",
        "insecure-tcp:127.0.0.1:1",
    )
    assert done.returncode == 2
    assert "brings a cluster of its own" in done.stderr
