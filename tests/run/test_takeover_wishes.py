"""What an operator asked for outlives the leader that took it up, and a wish during a take-over is not refused."""

import signal
from pathlib import Path

import pytest

from headrace.client.client import Client, RunOptions
from headrace.client.pipeline_file import load
from headrace.protos import control_pb2 as pb
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.log import Log, fold_log
from headrace.store.open import open_store
from tests.kits.run.daemons import Cluster, cluster, until
from tests.kits.run.dataset import fates
from tests.kits.run.kill import count_entries
from tests.kits.run.operators import write_paced


def states(made: Cluster) -> dict[str, str]:
    status = made.ask(made.leader())
    return {worker.worker: worker.state for worker in status.workers} if status is not None else {}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_pause_and_drain_outlive_their_leader_and_resume_waits(
    home: Path, tmp_path: Path, undisturbed: Path, how: signal.Signals
) -> None:
    output = tmp_path / "out"
    with cluster(home, tmp_path, str(tmp_path / "root")) as made:
        write_paced(home)
        name = made.apply("paced.py", f"input={home}/corpus/*.jsonl", f"output={output}")
        until(lambda: count_entries(output / "ledger") >= 5, "some shards")
        with Client(made.known()) as client:
            client.steer(pb.SteerRequest(pipeline=name, pause=True))
            until(lambda: (status := made.status(name)) is not None and status.state == "paused", "the pause")
            client.steer(pb.SteerRequest(worker="w1"))
            client.steer(pb.SteerRequest(pipeline=name, replicas={"read": 1}))
            until(lambda: states(made).get("w1") == "drained", "the drain")
            made.controllers["a"].signal(how)
            # Nobody leads now: the client asks until somebody does, and knows enough to judge it.
            client.steer(pb.SteerRequest(pipeline=name, places={"read": "w0"}))
            # What stands still is known when the workers have said so to the new leader.
            until(lambda: (status := made.status(name)) is not None and status.state == "paused", "the pause, again")
            status = made.status(name)
            assert status is not None
            assert status.state == "paused"
            assert {task.worker for task in status.tasks} == {"w0"}
            until(lambda: states(made) == {"w0": "registered", "w1": "drained"}, "both workers")
            (home / "pace").unlink()
            client.steer(pb.SteerRequest(pipeline=name, pause=False))
        assert made.wait_for_end(name).state == "completed"
    assert fates(output) == fates(undisturbed)


def test_an_apply_during_a_take_over_begins_one_run(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with cluster(home, tmp_path, str(tmp_path / "root"), workers=1) as made:
        log = Log(open_store(str(tmp_path / "root" / "controller")))
        until(lambda: fold_log(log, ClusterState()).workers, "the log knows of the worker")
        made.controllers["a"].kill()
        pipeline = load(home / "small.py", [f"input={home}/corpus/0.jsonl", f"output={output}"])
        with Client(made.known()) as client:
            client.apply(pipeline, RunOptions())
        assert made.wait_for_end("small").state == "completed"
