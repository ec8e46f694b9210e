"""A worker is expelled: what it held is done by others, and it comes back by a new token alone. Real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.chaos.live.clusters.test_cluster import free_port
from headrace.cluster.certificates import Credentials, Role, create_node, role_host, utc_now
from headrace.controller.membership.cluster_files import ClusterFiles
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc
from headrace.worker.membership.join import join, read_membership
from tests.kits.run.dataset import fates
from tests.kits.run.gated import write_pipeline
from tests.kits.run.netns import Cluster, Host, Net, wait_for

HERE = Host("here", "", "127.0.0.1", "")
EXPELLED = "worker 'one' was expelled from cluster headrace"


@pytest.fixture(params=[pytest.param("log", marks=pytest.mark.slow), "folder"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A controller on loopback, with a log or without."""
    net = Net()
    net.hosts["here"] = HERE
    made = Cluster(net, tmp_path, port=free_port(), root=str(tmp_path / "root") if request.param == "log" else "")
    try:
        made.init(HERE)
        made.controller(HERE)
        yield made
    finally:
        made.close()
        net.hosts.clear()
        net.close()


def expel(cluster: Cluster, *arguments: str) -> str:
    done = cluster.call(HERE, "cluster", "expel", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attend(cluster: Cluster, own: Credentials) -> str:
    """Why a worker with this certificate may not attend; empty if it may, but for its version."""
    options = [("grpc.ssl_target_name_override", role_host(Role.CONTROLLER))]
    tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
    with grpc.secure_channel(f"127.0.0.1:{cluster.port}", tls, options=options) as channel:
        stub = rpc.ControlStub(channel)  # type: ignore[no-untyped-call]
        asked = pb.FromWorker(register=pb.Register(worker="x", version="0.0.1", cores=1, pid=1))
        try:
            refusal = next(stub.Attend(iter([asked]), timeout=300)).refusal
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()}"
        return "" if "is Headrace 0.0.1" in refusal.reason else refusal.reason


def test_an_expelled_workers_work_is_done_and_a_token_readmits(
    cluster: Cluster, texts: Path, reference: Path, tmp_path: Path
) -> None:
    for name, label in (("one", "disk=ssd"), ("two", "disk=none")):
        cluster.worker(HERE, name, "--label", label)
    cluster.wait_for_workers(HERE, 2)
    done = cluster.call(
        HERE, "apply", str(write_pipeline(tmp_path)), "-p", f"input={texts}/*.jsonl", "-p", f"output={tmp_path}/out",
        "--place", "read=disk=ssd", "--place", "write=two", "--transport", "write=quic",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def run() -> dict[str, Any]:
        return dict(cluster.status(HERE)["pipelines"][0])

    wait_for(lambda: any(link["frames"] for task in run()["tasks"] for link in task["progress"]["links"]), "records")
    old = read_membership(tmp_path / "state-one")
    assert old is not None
    asked = cluster.call(HERE, "cluster", "expel", "one")
    assert asked.returncode == 2
    assert "worker one is cut off, with 1 task of pipeline gated" in asked.stderr
    cluster.worker(HERE, "three", "--label", "disk=ssd")
    cluster.wait_for_workers(HERE, 3)
    assert "worker one is expelled" in expel(cluster, "one", "--yes")
    assert cluster.status(HERE)["expelled"] == ["worker/one"]
    cluster.daemons["one"].wait_for(EXPELLED)
    assert cluster.daemons["one"].process.wait(60) == 1
    (tmp_path / "gate").touch()
    wait_for(lambda: run()["state"] in ("completed", "failed"), "the end of the run")
    assert run()["state"] == "completed", run()["failure"]
    assert fates(tmp_path / "out") == fates(reference)

    controller = cluster.daemons["controller"].process
    controller.kill()
    controller.wait(60)
    cluster.controller(HERE)
    wait_for(lambda: attend(cluster, old.credentials).startswith(f"PERMISSION_DENIED Attend: {EXPELLED}"), "a leader")
    again = cluster.start(HERE, "one", "worker", "--state", str(tmp_path / "state-one"))
    again.wait_for(EXPELLED)
    assert again.process.wait(60) == 1
    for name in ("member.json", "node.pem"):
        (tmp_path / "state-one" / name).unlink()
    kept = cluster.start(HERE, "one", "worker", "--join", str(cluster.token_file("one")), "--state", "state-one")
    kept.wait_for("this node was expelled, and shows the key that it had")
    assert kept.process.wait(60) == 1
    fresh = join(cluster.token("one"), tmp_path / "fresh")
    assert attend(cluster, fresh.credentials) == ""
    assert attend(cluster, old.credentials) != ""
    assert "worker/one" not in json.loads(cluster.call(HERE, "status", "--json").stdout)["expelled"]


def test_an_expelled_operator_hears_no_more_and_cannot_expel_himself(cluster: Cluster, tmp_path: Path) -> None:
    made = cluster.call(HERE, "cluster", "operator", str(cluster.files), str(tmp_path / "anna"), "--name", "anna")
    assert made.returncode == 0, made.stderr
    anna = ("--cluster", str(tmp_path / "anna"))
    wrong = cluster.call(HERE, "cluster", "expel", "anna", "--role", "viewer", "--yes")
    assert wrong.returncode == 1
    assert "no viewer 'anna' was ever seen in this cluster; the operator of that name keeps the access" in wrong.stderr
    slip = cluster.call(HERE, "cluster", "expel", "ana", "--operator", "--yes")
    assert slip.returncode == 1
    assert "no operator 'ana' was ever seen in this cluster" in slip.stderr
    own = cluster.call(HERE, "cluster", "expel", "anna", "--operator", "--yes", *anna)
    assert "nobody expels himself" in own.stderr
    expel(cluster, "anna", "--operator", "--yes")
    refused = cluster.call(HERE, "status", *anna)
    assert refused.returncode == 1
    assert "PERMISSION_DENIED: Status: operator 'anna' was expelled from cluster headrace" in refused.stderr
    # Whoever has the authority's key makes no certificate that is good under that name either.
    late = create_node(ClusterFiles.read(cluster.files).authority, Role.WORKER, "anna", utc_now())
    assert attend(cluster, late) == "", "a worker of that name is somebody else"
