"""Chaos on a cluster that lives on several hosts: faults befall what runs elsewhere, where its worker allows it.

Each host has a network namespace, and its processes a PID namespace: nobody outside can signal them. The first process
there starts the worker again whenever it ends, as a service manager does.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kits.run.dataset import fates
from tests.kits.run.gated import write_pipeline
from tests.kits.run.kill import headrace
from tests.kits.run.netns import Cluster, Daemon, Host, Net, wait_for

#: A service manager in one line, whose daemon ends with it.
MANAGER = 'while :; do setpriv --pdeathsig KILL "$@"; done'
#: Its processes cannot be seen from inside, and end with the first one.
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
PERMISSION = "--allow-chaos"
#: Of the pipeline, in the folder that its tasks run in: the same text for all.
GATE = "gate"
#: Seconds in which a run comes to its last fault, and then to its end.
LAST_S_MAX = 180.0


@pytest.fixture(scope="module")
def reference(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pipeline makes on one host, with its gate open."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "gate").touch()
    gated = str(write_pipeline(folder, GATE))
    command = headrace("run", gated, "-p", f"input={texts}/*.jsonl", "-p", f"output={folder}/out", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


class Watched:
    """A cluster whose daemons are kept alive on hosts of their own.

    Commands are given on a host with a controller that allows no chaos, or, where there are `controllers`, on one that
    has nothing else.
    """

    def __init__(self, folder: Path, controllers: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.net = Net()
        self.cluster = Cluster(self.net, folder)
        self.ctl = self.net.host("ctl")
        hosts = {name: self.net.host(name) for name in controllers} if controllers else {"controller": self.ctl}
        self.addresses = [f"{host.address}:{self.cluster.port}" for host in hosts.values()]
        known = [word for address in self.addresses for word in ("--controller", address)]
        made = self.cluster.call(self.ctl, "cluster", "init", str(self.cluster.files), *known)
        assert made.returncode == 0, made.stderr
        for (name, host), address in zip(hosts.items(), self.addresses, strict=True):
            more = controllers[name] if controllers else ()
            listen = ("--listen", address, "--root", str(folder / "root"))
            command = headrace("controller", "--cluster", str(self.cluster.files), *listen, *more)
            self._keep_alive(host, name, *command, apart=APART if controllers else ()).wait_for("serves on")

    def worker(self, name: str, *more: str) -> Daemon:
        folder = self.cluster.folder
        state = ("--state", str(folder / f"state-{name}"))
        command = headrace("worker", "--join", str(self.cluster.token_file(name)), *state, "--cores", "1", *more)
        return self._keep_alive(self.net.host(name), name, *command, apart=APART)

    def _keep_alive(self, host: Host, name: str, *command: str, apart: tuple[str, ...] = ()) -> Daemon:
        log = self.cluster.folder / f"{name}.log"
        managed = host.command(*apart, "sh", "-c", MANAGER, "sh", *command)
        with log.open("wb") as file:
            process = subprocess.Popen(
                managed, cwd=self.cluster.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        made = self.cluster.daemons[name] = Daemon(process, log)
        return made

    def chaos(self, scenario: str, *arguments: str) -> "subprocess.Popen[str]":
        """`headrace chaos run` on the controller's host, with the gated pipeline."""
        folder = self.cluster.folder
        (folder / "x.toml").write_text(scenario)
        command = headrace("chaos", "run", str(folder / "x.toml"), str(write_pipeline(folder, GATE)), *arguments)
        command += ["--cluster", str(self.cluster.files), "--folder", str(folder), "--report", str(folder / "report")]
        host: Host = self.ctl
        return subprocess.Popen(
            host.command(*command, "--rebuilds", "0", "--rounds", "1", "--keep", "--json"),
            cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        self.cluster.close()
        self.net.close()


@contextmanager
def hosts_of(
    folder: Path, controllers: Mapping[str, tuple[str, ...]] | None = None, **permissions: tuple[str, ...]
) -> Iterator[Watched]:
    """A worker on each of the named hosts, with these options, and so for controllers."""
    made = Watched(folder, controllers)
    try:
        for name, more in permissions.items():
            made.worker(name, *more)
        made.cluster.wait_for_workers(made.ctl, len(permissions))
        yield made
    finally:
        made.close()


def table(**keys: object) -> str:
    return "\n".join(["[[fault]]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]) + "\n"


def done_to(
    watched: Watched,
    faults: list[dict[str, Any]],
    texts: Path,
    reference: Path,
    told: Callable[[Iterator[bool]], bool] = all,
    on: tuple[str, ...] = ("one", "two"),
) -> dict[str, Any]:
    """The report of a run in which one fault follows the other; the last records come when the last one goes on.

    What a fault that lasts befalls must pass meanwhile: it lasts longer than the run, and ends with it. That the last
    one goes on is `told` by the logs of these daemons: by all of them, or by any.
    """
    tables = ['[run.place]\nread = "one"\nwrite = "two"\n']
    tables += [
        table(**fault, **({"follows": number - 1, "after_s": 0.5} if number else {"after_commits": 1}))
        for number, fault in enumerate(faults)
    ]
    process = watched.chaos("".join(tables), "-p", f"input={texts}/*.jsonl", "--reference", str(reference))
    try:
        last = faults[-1]
        wait_for(
            lambda: process.poll() is not None or told(
                f"an operator asked for: {last['kind']}" in watched.cluster.daemons[name].log.read_text()
                for name in on
            ),
            "the last fault",
            LAST_S_MAX,
        )  # fmt: skip
        (watched.cluster.folder / "gate").touch()
        out, errors = process.communicate(timeout=LAST_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out + errors
    report: dict[str, Any] = json.loads(out)
    assert report["verdict"] == "passed"
    assert [fired["kind"] for fired in report["fired"]] == [fault["kind"] for fault in faults]
    (faulted,) = watched.cluster.folder.glob("headrace-chaos-*/faulted")
    assert fates(faulted) == fates(reference)
    return report


@pytest.mark.slow
def test_tasks_workers_and_links_elsewhere_are_hit_without_loss(texts: Path, reference: Path, tmp_path: Path) -> None:
    faults: list[dict[str, Any]] = [
        {"kind": "kill", "target": "sink"},
        {"kind": "freeze", "target": "stage:read", "for_s": 0.3},
        {"kind": "kill", "target": "worker"},
        {"kind": "delay", "target": "links", "delay_s": 0.02, "for_s": 120.0},
    ]
    with hosts_of(tmp_path, one=(PERMISSION,), two=(PERMISSION,)) as watched:
        report = done_to(watched, faults, texts, reference)
    fired = {item["kind"]: item for item in report["fired"]}
    victims = [item["victims"] for item in report["fired"]]
    assert victims[0][0].startswith("headrace task gated/write.0")
    assert victims[0][0].endswith("on worker two")
    assert victims[1][0].endswith("on worker one")
    assert victims[2][0].startswith("headrace worker ")
    assert fired["delay"]["affected"]["link datagrams between workers"] > 0
    assert {finding["name"]: finding["passed"] for finding in report["findings"]}[
        "the faults of the network were felt"
    ] is True


@pytest.mark.slow
def test_controllers_of_other_hosts_are_hit_and_the_dataset_is_the_same(
    texts: Path, reference: Path, tmp_path: Path
) -> None:
    faults: list[dict[str, Any]] = [
        {"kind": "freeze", "target": "controller", "for_s": 1.0},
        {"kind": "restart", "target": "controller"},
        {"kind": "kill", "target": "controller"},
    ]
    both = {"first": (PERMISSION,), "second": (PERMISSION,)}
    with hosts_of(tmp_path, both, one=(), two=()) as watched:
        report = done_to(watched, faults, texts, reference, any, ("first", "second"))
    addresses = {f"headrace controller {address}" for address in watched.addresses}
    for fired in report["fired"]:
        (victim,) = fired["victims"]
        assert victim in addresses


@pytest.mark.slow
def test_every_fault_of_other_hosts_leaves_the_dataset_that_it_should(
    texts: Path, reference: Path, tmp_path: Path
) -> None:
    faults: list[dict[str, Any]] = [
        {"kind": "restart", "target": "stage:read"},
        {"kind": "slow", "target": "sink", "for_s": 1.0},
        {"kind": "restart", "target": "worker"},
        {"kind": "freeze", "target": "worker", "for_s": 6.0},
        {"kind": "partition", "target": "worker", "for_s": 6.0},
        {"kind": "loss", "target": "control", "share": 0.5, "for_s": 1.0},
        {"kind": "partition", "target": "controller", "for_s": 2.0},
        {"kind": "kill", "target": "everything"},
        *({"kind": kind, "target": "links", "for_s": 120.0} for kind in ("duplicate", "loss", "corrupt", "reorder")),
    ]
    with hosts_of(tmp_path, one=(PERMISSION,), two=(PERMISSION,)) as watched:
        report = done_to(watched, faults, texts, reference)
    for fired in report["fired"][-4:]:
        assert fired["affected"]["link datagrams between workers"] > 0, fired
    # Who is registered at that moment; the controller's own sessions may just have been cut.
    roles = {victim.split()[1] for victim in report["fired"][7]["victims"]}
    assert roles >= {"worker", "controller"}


def test_what_is_not_permitted_is_refused_with_one_line(texts: Path, tmp_path: Path) -> None:
    with hosts_of(tmp_path, one=(PERMISSION,), two=()) as watched:
        for fault in (
            table(kind="kill", target="task", after_s=0),
            table(kind="loss", target="links", after_s=0),
        ):
            process = watched.chaos(fault, "-p", f"input={texts}/*.jsonl")
            out, errors = process.communicate(timeout=LAST_S_MAX)
            assert (process.returncode, out) == (1, "")
            (line,) = (line for line in errors.splitlines() if not line.startswith("chaos: "))
            assert "worker two on host" in line
            assert "does not allow chaos: start it with --allow-chaos" in line


def test_a_remote_controller_without_permission_is_named_in_one_line(texts: Path, tmp_path: Path) -> None:
    with hosts_of(tmp_path, {"first": (PERMISSION,), "second": ()}, one=()) as watched:
        fault = table(kind="kill", target="controller", after_s=0)
        out, errors = (process := watched.chaos(fault, "-p", f"input={texts}/*.jsonl")).communicate(timeout=LAST_S_MAX)
        assert (process.returncode, out) == (1, "")
        (line,) = (line for line in errors.splitlines() if not line.startswith("chaos: "))
        assert f"controller {watched.addresses[1]} does not allow chaos: start it with --allow-chaos" in line
