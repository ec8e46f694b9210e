"""Hosts that lose each other for a while, and tasks that die meanwhile: nothing is lost and nothing doubled."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.kits.run.dataset import fates
from tests.kits.run.gated import Gated, task_processes
from tests.kits.run.netns import cluster_of, wait_for


def test_a_short_cut_of_a_host_keeps_the_same_link(texts: Path, reference: Path, tmp_path: Path) -> None:
    with cluster_of(tmp_path, "one", "two") as (cluster, hosts):
        run = Gated(cluster, hosts["ctl"], texts, tmp_path)
        cluster.net.unplug("two")
        run.open_gate()
        wait_for(lambda: run.of_link("read", "in_flight_bytes") > 0, "frames on their way to nobody")
        cluster.net.plug("two")
        assert run.finish() == fates(reference)
        assert run.link()["generation"] == 1


@pytest.mark.slow
def test_a_long_cut_and_a_killed_task_lose_and_double_nothing(texts: Path, reference: Path, tmp_path: Path) -> None:
    with cluster_of(tmp_path, "one", "two") as (cluster, hosts):
        run = Gated(cluster, hosts["ctl"], texts, tmp_path)
        cluster.net.apart("one", "two")
        run.open_gate()
        wait_for(lambda: "Idle timeout" in run.link()["trouble"], "both ends find the link cut")
        (sink,) = task_processes(hosts["two"])
        os.kill(sink, signal.SIGKILL)
        wait_for(lambda: task_processes(hosts["two"]) not in ([], [sink]), "another attempt of the sink")
        cluster.net.together()
        assert run.finish() == fates(reference)
        status = run.status()
        assert run.link()["generation"] >= 2
        assert [task["restarts"] for task in status["tasks"]] == [0, 1], json.dumps(status)


@pytest.mark.slow
def test_a_host_long_away_comes_back_and_goes_on(texts: Path, reference: Path, tmp_path: Path) -> None:
    with cluster_of(tmp_path, "one", "two") as (cluster, hosts):
        run = Gated(cluster, hosts["ctl"], texts, tmp_path)
        cluster.net.unplug("two")
        run.open_gate()
        wait_for(lambda: len(cluster.status(hosts["ctl"])["workers"]) == 1, "the controller gives the host up")
        cluster.net.plug("two")
        assert run.finish() == fates(reference)
        cluster.wait_for_workers(hosts["ctl"], 2)
