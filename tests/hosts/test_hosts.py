"""Two workers in two network namespaces are two hosts: rings inside, QUIC between, and the same dataset."""

from pathlib import Path
from typing import Any

from tests.kits.run.dataset import fates
from tests.kits.run.netns import Cluster, Host, cluster_of

ROOT = Path(__file__).parents[2]


def apply(cluster: Cluster, host: Host, texts: Path, output: Path, *more: str) -> dict[str, Any]:
    """Run examples/plain.py to its end; its status."""
    plain = str(ROOT / "examples/plain.py")
    parameters = ["-p", f"input={texts}/*.jsonl", "-p", f"output={output}", "-p", "seq_len=512"]
    done = cluster.call(host, "apply", plain, *parameters, "--wait", *more)
    assert done.returncode == 0, done.stderr
    pipeline: dict[str, Any] = cluster.status(host)["pipelines"][-1]
    return pipeline


def edges(status: dict[str, Any]) -> set[tuple[str, str, str]]:
    at = {task["task"]: task["worker"] for task in status["tasks"]}
    return {(at[link["sender"]], link["transport"], at[link["receiver"]]) for link in status["links"]}


def test_a_pipeline_across_and_inside_two_hosts_gives_the_same_dataset(
    texts: Path, undisturbed: Path, tmp_path: Path
) -> None:
    with cluster_of(tmp_path, "one", "two") as (cluster, hosts):
        ctl = hosts["ctl"]
        across = apply(cluster, ctl, texts, tmp_path / "across", "--place", "read=one", "--place", "write=two")
        assert edges(across) == {("one", "quic", "two")}
        assert "quic" in cluster.call(ctl, "status").stdout

        columns = apply(cluster, ctl, texts, tmp_path / "columns", "--no-fuse")
        assert edges(columns) == {("one", "ring", "one"), ("two", "ring", "two")}

        refused = cluster.call(
            ctl, "apply", str(ROOT / "examples/plain.py"), "-p", f"input={texts}/*.jsonl", "-p",
            f"output={tmp_path}/forced", "--place", "read=one", "--place", "write=two",
            "--transport", "write=ring",
        )  # fmt: skip
        assert refused.returncode == 1
        assert "cannot be joined by a ring: it is of one host, and they are on different hosts" in refused.stderr
    for name in ("across", "columns"):
        assert fates(tmp_path / name) == fates(undisturbed)
