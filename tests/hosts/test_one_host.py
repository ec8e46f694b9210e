"""Two workers of one host pass each other memory: rings between them whoever dies, and pipes where asked for."""

import os
import signal
from pathlib import Path

import pytest

from tests.hosts.test_hosts import apply, edges
from tests.kits.run.dataset import fates
from tests.kits.run.gated import Gated, task_processes
from tests.kits.run.netns import Cluster, Host, cluster_of, wait_for


def two_workers(cluster: Cluster) -> Host:
    """One host, with two workers of one core each."""
    host = cluster.net.host("both")
    for name in ("one", "two"):
        cluster.worker(host, name)
    cluster.wait_for_workers(cluster.net.hosts["ctl"], 2)
    return host


@pytest.mark.parametrize("forced", ["", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pipe", "quic"))])
def test_workers_of_one_host_join_by_ring_or_as_asked(
    texts: Path, undisturbed: Path, tmp_path: Path, forced: str
) -> None:
    with cluster_of(tmp_path) as (cluster, hosts):
        two_workers(cluster)
        transport = ["--transport", f"write={forced}"] if forced else []
        places = ["--place", "read=one", "--place", "write=two"]
        across = apply(cluster, hosts["ctl"], texts, tmp_path / "across", *places, *transport)
        assert edges(across) == {("one", forced or "ring", "two")}
    assert fates(tmp_path / "across") == fates(undisturbed)


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("sender", marks=pytest.mark.slow),
        pytest.param("receiver's worker", marks=pytest.mark.slow),
        pytest.param("receiver", marks=pytest.mark.slow),
        pytest.param("sender's worker", marks=pytest.mark.slow),
    ],
)
def test_the_death_of_an_end_or_worker_is_seen_without_cost(
    texts: Path,
    reference: Path,
    tmp_path: Path,
    victim: str,
) -> None:
    with cluster_of(tmp_path) as (cluster, hosts):
        host = two_workers(cluster)
        run = Gated(cluster, hosts["ctl"], texts, tmp_path)
        assert run.link()["transport"] == "ring"
        name = "one" if victim.startswith("sender") else "two"
        task = next(task for task in run.status()["tasks"] if task["worker"] == name)
        if "worker" in victim:
            cluster.daemons[name].process.kill()
            cluster.daemons[name].process.wait(60)
            cluster.start(host, name, "worker", "--state", str(tmp_path / f"state-{name}"), "--cores", "1")
        else:
            os.kill(task_of(host, task["task"]), signal.SIGKILL)
        run.open_gate()
        assert run.finish() == fates(reference)
        assert run.link()["generation"] >= 2
        assert run.link()["transport"] == "ring"


def task_of(host: Host, task: str) -> int:
    """The process of a task."""

    def look() -> int:
        found = [pid for pid in task_processes(host) if task in Path(f"/proc/{pid}/cmdline").read_text()]
        return found[0] if found else 0

    return int(wait_for(look, f"the process of {task}"))
