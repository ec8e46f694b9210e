"""Launches on real Slurm, ssh and Ray: a node is lost in the middle of a run, and no record is.

The daemons are those of the system's packages (slurm-wlm, munge, openssh-server), started here on loopback; Ray is that
of an environment of its own, named by HEADRACE_TEST_RAY_PYTHON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.chaos.live.clusters.test_cluster import free_port
from tests.kits.run.daemons import until
from tests.kits.run.dataset import fates
from tests.kits.run.gated import write_pipeline
from tests.kits.run.kill import MARK, headrace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts daemons that want to be root"),
]
RECORDS = 1500
COMMAND = str(Path(sys.executable).with_name("headrace"))
SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"


class Work:
    """A corpus, the gated pipeline, and what marks every process that this test started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launch, self.mark = folder, folder / "a launch", os.urandom(8).hex()
        (folder / "in put").mkdir()
        source = (Path(__file__).parents[3] / "docs/design/ledger.md").read_text()
        for part in range(4):
            texts = (f"{number} {source[number % 5000 : number % 5000 + 1500]}" for number in range(part, RECORDS, 4))
            lines = [json.dumps({"id": f"r{part + 4 * at}", "text": text}) for at, text in enumerate(texts)]
            (folder / "in put" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        self.pipeline = write_pipeline(folder)
        path = f"{Path(COMMAND).parent}:{SBIN}"
        self.environment = {**os.environ, MARK: self.mark, "SPT_NOENV": "1", "PATH": path}

    def words(self, output: str) -> list[str]:
        return [str(self.pipeline), "-p", f"input={self.folder}/in put/*.jsonl", "-p", f"output={self.folder}/{output}"]

    def run(self, *words: str, code: int = 0, timeout_s: float = 240.0) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=timeout_s, cwd=self.folder
        )
        assert done.returncode == code, f"{words}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            said = self.run(COMMAND, "status", "--cluster", f"{self.launch}/cluster", "--json", timeout_s=20.0)
            found: dict[str, Any] = json.loads(said)
            return found
        return {}

    def workers(self) -> list[str]:
        return sorted(item["worker"] for item in self.status().get("workers", []) if item.get("state") != "lost")

    def runs(self) -> bool:
        """Whether records have come as far as the gate."""
        pipelines = self.status().get("pipelines", [])
        tasks = [task for pipeline in pipelines for task in pipeline.get("tasks", [])]
        return any(task.get("state") == "ready" for task in tasks)

    def living(self, chosen: Callable[[int, bytes], bool]) -> list[int]:
        """Processes with the mark that are chosen by their number and environment."""
        found: list[int] = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{name}/environ").read_bytes()
                if f"{MARK}={self.mark}".encode() in variables and chosen(int(name), variables):
                    found.append(int(name))
        return found

    def kill(self, chosen: Callable[[int, bytes], bool]) -> None:
        """SIGKILL to all that are chosen, until none is left."""

        def none_left() -> bool:
            left = [pid for pid in self.living(chosen) if pid != os.getpid()]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(none_left, "what is killed is gone")

    def check(self) -> None:
        """Lost 0, twice 0, and all as in a run that nothing happened to."""
        (self.folder / "gate").touch()
        self.run(*headrace("run", *self.words("reference"), "--json"))
        shown = json.loads(self.run(*headrace("dataset", "show", f"{self.folder}/out", "--json")))
        assert (shown["records_closed"], shown["records_open"], shown["complete"]) == (RECORDS, 0, True)
        assert shown["balanced"]
        self.run(*headrace("dataset", "verify", f"{self.folder}/out"))
        assert fates(self.folder / "out") == fates(self.folder / "reference")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    made = Work(tmp_path)
    try:
        yield made
    finally:
        made.kill(lambda _pid, _variables: True)


def started(work: Work, *words: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in work.environment.items() if name != MARK}
    return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


# -- Slurm --

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={at}/controller.pid
SlurmdPidFile={at}/%n.pid
SlurmdSpoolDir={at}/%n
StateSaveLocation={at}/state
SlurmctldLogFile={at}/controller.log
SlurmdLogFile={at}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=3
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=2 State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A munged, a slurmctld and three slurmd."""

    NODES = ("n1", "n2", "n3")

    def __init__(self, work: Work) -> None:
        self.work, self.at = work, Path("/tmp") / f"headrace-slurm-{work.mark}"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        (self.at / "munge").mkdir(parents=True)
        (self.at / "munge").chmod(0o700)
        (self.at / "munge" / "key").write_bytes(os.urandom(256))
        (self.at / "munge" / "key").chmod(0o600)
        (self.at / "state").mkdir()
        names, host = ",".join(self.NODES), socket.gethostname().partition(".")[0]
        ports = ",".join(str(free_port()) for _ in self.NODES)
        conf = CONF.format(host=host, at=self.at, port=free_port(), nodes=names, ports=ports)
        (self.at / "slurm.conf").write_text(conf)
        work.environment["SLURM_CONF"] = str(self.at / "slurm.conf")
        munge = [f"--{name}-file={self.at}/munge/{name}" for name in ("key", "pid", "seed", "log")]
        self.daemons["munged"] = started(
            work, "munged", "--foreground", "--force", f"--socket={self.at}/munge/socket", *munge
        )
        until((self.at / "munge" / "socket").exists, "munged listens")
        self.daemons["slurmctld"] = started(work, "slurmctld", "-D")
        for node in self.NODES:
            self.start(node)
        until(lambda: "idle" in self.states() and len(self.states()) == 1, "three nodes are idle")

    def start(self, node: str) -> None:
        self.daemons[node] = started(self.work, "slurmd", "-D", "-N", node)

    def states(self) -> set[str]:
        with contextlib.suppress(AssertionError):
            return set(self.work.run("sinfo", "-hN", "-o", "%T").split())
        return set()

    def job(self, number: str) -> dict[str, str]:
        said = self.work.run("scontrol", "-o", "show", "job", number)
        return dict(word.partition("=")[::2] for word in said.split())

    def lose(self, node: str, of_node: Callable[[int, bytes], bool]) -> None:
        """The node's daemon and all of its job's processes are gone at once."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        self.work.kill(of_node)

    def close(self) -> None:
        for process in reversed(self.daemons.values()):
            process.kill()
            process.wait()
        # What is left of steps, which are no children of ours.
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if str(self.at).encode() in Path(f"/proc/{name}/environ").read_bytes():
                    os.kill(int(name), signal.SIGKILL)
        shutil.rmtree(self.at, ignore_errors=True)


@pytest.fixture
def slurm(work: Work) -> Iterator[Slurm]:
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name, path=SBIN) is None]:
        pytest.skip(f"not installed: {missing}")
    made = Slurm(work)
    try:
        yield made
    finally:
        made.close()


def test_a_job_that_loses_a_node_and_is_requeued_loses_no_record(work: Work, slurm: Slurm) -> None:
    launch = ("--nodes", "3", "--cores", "1", "--partition", "cpu", "--folder", str(work.launch), "--headrace", COMMAND)
    work.run(COMMAND, "launch", "slurm", *launch, "--", *work.words("out"))
    number = json.loads((work.launch / "launch.json").read_text())["answers"]["job"]
    until(lambda: len(work.workers()) == 3 and work.runs(), "three workers run the pipeline", 120)
    before = work.workers()
    # The last node is lost: the job goes on without it.
    slurm.lose("n3", lambda _pid, variables: b"SLURMD_NODENAME=n3" in variables)
    until(lambda: len(work.workers()) == 2 and work.runs(), "two workers go on", 120)
    assert slurm.job(number)["JobState"] == "RUNNING"
    # All of the job is killed, and it is requeued: another controller, other members.
    slurm.start("n3")
    until(lambda: "down" not in slurm.states(), "the lost node is back")
    work.kill(lambda _pid, variables: b"SLURM_JOB_ID=" in variables)
    with contextlib.suppress(AssertionError):
        work.run("scontrol", "requeue", number)
    until(lambda: len(work.workers()) == 3 and work.runs(), "three workers run the pipeline again", 180)
    assert int(slurm.job(number)["Restarts"]) == 1
    assert not set(before) & set(work.workers())
    (work.folder / "gate").touch()
    until(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the job ends with the pipeline", 120)
    work.check()
    work.run(COMMAND, "launch", "down", "--folder", str(work.launch))


def test_a_job_that_was_never_noted_is_cancelled_and_no_other(work: Work, slurm: Slurm) -> None:
    folders = [work.folder / name for name in ("noted", "not noted")]
    for folder in folders:
        work.run(COMMAND, "launch", "slurm", "--nodes", "1", "--folder", str(folder), "--headrace", COMMAND)
    remembered = json.loads((folders[1] / "launch.json").read_text())
    # As it stands when the launch is killed between the answer and its note.
    (folders[1] / "launch.json").write_text(json.dumps({**remembered, "answers": {}}))
    work.run(COMMAND, "launch", "down", "--folder", str(folders[1]))
    until(lambda: slurm.job(remembered["answers"]["job"])["JobState"] == "CANCELLED", "the job is cancelled", 60)
    number = json.loads((folders[0] / "launch.json").read_text())["answers"]["job"]
    assert slurm.job(number)["JobState"] in ("PENDING", "CONFIGURING", "RUNNING")
    work.run(COMMAND, "launch", "down", "--folder", str(folders[0]))
    until(lambda: not work.run("squeue", "-h"), "all jobs have ended", 60)


# -- ssh --


@pytest.fixture
def hosts(work: Work) -> Iterator[Callable[[str], None]]:
    """Two hosts by ssh, each an sshd of its own with a home of its own; what cuts one of them."""
    if shutil.which("sshd", path=SBIN) is None:
        pytest.skip("not installed: sshd")
    at = work.folder / "ssh"
    at.mkdir(mode=0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        work.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(at / name))
    (at / "authorized").write_text((at / "user.pub").read_text())
    lines, known, daemons = [], [], {}
    for name in ("first", "second"):
        port, home = free_port(), at / f"home of {name}"
        home.mkdir()
        (at / f"{name}.conf").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\n"
            f"StrictModes no\nPidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f'SetEnv "HOME={home}" {MARK}={work.mark} SPT_NOENV=1 HOST={name}\n'
        )
        daemons[name] = started(work, "/usr/sbin/sshd", "-D", "-e", "-f", str(at / f"{name}.conf"))
        lines += [
            f"Host {name}",
            " HostName 127.0.0.1",
            f" Port {port}",
            f" IdentityFile {at}/user",
            f" UserKnownHostsFile {at}/known",
        ]
        known.append(f"[127.0.0.1]:{port} {(at / 'host.pub').read_text()}")
    (at / "known").write_text("".join(known))
    (at / "config").write_text("\n".join(lines) + "\n")

    def cut(name: str) -> None:
        daemons[name].kill()
        work.kill(lambda _pid, variables: f"HOST={name}\0".encode() in variables)

    try:
        yield cut
    finally:
        for daemon in daemons.values():
            daemon.kill()
            daemon.wait()


def test_a_host_by_ssh_that_is_cut_off_loses_no_record(work: Work, hosts: Callable[[str], None]) -> None:
    config = work.folder / "ssh" / "config"
    words = ("--ssh-config", str(config), "--folder", str(work.launch), "--headrace", COMMAND, "--cores", "1")
    both = ("--host", "first", "--host", "second", "--port", str(free_port()), "--advertise", "127.0.0.1")
    work.run(COMMAND, "launch", "ssh", *both, *words)
    until(lambda: len(work.workers()) == 2, "two workers are there", 60)
    work.run(COMMAND, "apply", *work.words("out"), "--cluster", f"{work.launch}/cluster")
    until(work.runs, "the pipeline runs", 60)
    before = work.workers()

    def is_worker(pid: int, variables: bytes) -> bool:
        # The shell that starts it again, and its pause, are left alone: else each look ends one more of its tries.
        return b"HOST=second\0" in variables and not _command(pid).startswith((b"sh\0", b"sleep\0"))

    killed = set(work.living(is_worker))
    work.kill(is_worker)
    until(lambda: set(work.living(is_worker)) - killed, "the worker that died is started again", 60)
    until(lambda: work.workers() == before, "it is the member that it was", 60)
    hosts("second")
    until(lambda: len(work.workers()) == 1, "one worker goes on", 90)
    (work.folder / "gate").touch()
    work.run(COMMAND, "apply", *work.words("out"), "--cluster", f"{work.launch}/cluster", "--wait")
    work.check()


def test_a_host_whose_key_is_not_known_is_told_nothing(work: Work, hosts: Callable[[str], None]) -> None:
    at = work.folder / "ssh"
    (at / "known").write_text("")
    words = ("--host", "first", "--ssh-config", str(at / "config"), "--folder", str(work.launch))
    done = subprocess.run(
        [COMMAND, "launch", "ssh", *words],
        env=work.environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=work.folder,
    )
    assert done.returncode == 1
    assert "Host key verification failed" in done.stderr
    assert not list((at / "home of first").iterdir())


# -- Ray --

RAY = """import json, sys, threading
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
print(json.dumps(cluster.address), flush=True)
for line in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("lost", flush=True)
cluster.shutdown()
"""


@pytest.fixture
def ray(work: Work) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    python = os.environ.get("HEADRACE_TEST_RAY_PYTHON", "")
    if not python:
        pytest.skip("HEADRACE_TEST_RAY_PYTHON names no Python with Ray")
    environment = {**work.environment, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DASHBOARD": "1"}
    # A busy machine takes longer than the half minute that Ray grants its own daemon.
    environment["RAY_raylet_start_wait_time_s"] = "240"
    with subprocess.Popen([python, "-c", RAY], env=environment, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield python, json.loads(process.stdout.readline()), process
        finally:
            process.stdin.close()
            process.wait(60)


def test_a_node_of_ray_that_is_lost_loses_no_record(work: Work, ray: tuple[str, str, subprocess.Popen[str]]) -> None:
    python, address, cluster = ray
    words = ("--python", python, "--address", address, "--folder", str(work.launch), "--headrace", COMMAND)
    work.run(COMMAND, "launch", "ray", "--nodes", "3", "--cores", "1", "--port", "0", *words)
    until(lambda: len(work.workers()) == 3, "three workers are there", 90)
    before = work.workers()
    work.run(COMMAND, "apply", *work.words("out"), "--cluster", f"{work.launch}/cluster")
    until(work.runs, "the pipeline runs", 60)
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    cluster.stdin.write("lose one\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "lost\n"
    until(lambda: set(work.workers()) - set(before), "a lost actor has started again elsewhere", 120)
    (work.folder / "gate").touch()
    work.run(COMMAND, "apply", *work.words("out"), "--cluster", f"{work.launch}/cluster", "--wait")
    work.check()
    work.run(COMMAND, "launch", "down", "--folder", str(work.launch))
    until(lambda: not work.living(lambda pid, _: b"headrace" in _command(pid)[:20]), "all has ended")


GROUPS = """import json, sys, ray
from ray.util import placement_group_table

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
actors = [item["name"] for item in ray.util.list_named_actors(all_namespaces=True)]
print(json.dumps([[group["state"] for group in placement_group_table().values()], actors]))
"""


def test_a_launch_on_ray_that_is_killed_half_way_is_ended(
    work: Work, ray: tuple[str, str, subprocess.Popen[str]]
) -> None:
    python, address, _ = ray
    words = (COMMAND, "launch", "ray", "--python", python, "--address", address, "--headrace", COMMAND, "--port", "0")
    work.run(*words, "--nodes", "1", "--cores", "1", "--folder", str(work.launch))
    # There is no room for its workers, so it waits.
    folder = work.folder / "half way"
    half = subprocess.Popen([*words, "--nodes", "9", "--cores", "2", "--folder", str(folder)], env=work.environment)

    def found() -> tuple[list[str], list[str]]:
        states, actors = json.loads(work.run(python, "-c", GROUPS, address).splitlines()[-1])
        return sorted(states), sorted(actors)

    until(lambda: found()[0] == ["CREATED", "PENDING"], "it waits for room", 120)
    half.kill()
    half.wait()
    until(lambda: not work.living(lambda pid, _: b"ray_driver.py\0start" in _command(pid)), "its driver ends with it")
    work.run(COMMAND, "launch", "down", "--folder", str(folder))
    assert found() == (["CREATED", "REMOVED"], ["controller", "worker-0"])
    until(lambda: len(work.workers()) == 1, "the other launch of the name goes on", 90)
    work.run(COMMAND, "launch", "down", "--folder", str(work.launch))
    assert found() == (["REMOVED", "REMOVED"], [])


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
