"""The units of `systemd/` under systemd itself, installed by the steps in headrace.env, in namespaces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.host.booted import PATIENCE_S, Booted, booted, need_systemd
from tests.kits.host.silent import wait_until

pytestmark = pytest.mark.slow

CONTROLLER, WORKER = "headrace-controller", "headrace-worker"
CLUSTER = f"/var/lib/{CONTROLLER}/cluster"
DATA = "/var/lib/headrace/data"
RECORDS = 400
MEMORY_MAX = 700 << 20
#: As `TimeoutStopSec` has it, with some time of a busy machine.
STOP_S_MAX = 90.0

#: A function of a task: what it does is in its text. Records behind the first hundred wait for the gate.
PIPELINE = f'''
import json, os, socket, time
from pathlib import Path
from headrace import Pipeline, map_records, read, write_documents

def gate(record):
    while int(record["id"]) >= 100 and not os.path.exists("{DATA}/open"):
        time.sleep(0.01)
    return record

def eat(record):
    held = []
    while True:
        held.append(bytearray(64 << 20))

def tried(call):
    try:
        return call() and "done"
    except OSError as error:
        return type(error).__name__

def probe(record):
    files = ["{CLUSTER}/authority.key", "/etc/headrace/worker.env", "/etc/shadow"]
    folders = ["/var/lib/{CONTROLLER}", "/run/{CONTROLLER}", "/var/log/{CONTROLLER}", "/root", "/home"]
    closed = ["/etc", "/usr", "/opt/headrace", "/var", "/var/lib/headrace", "/run", "/sys/fs/cgroup"]
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    found = {{
        "read": [tried(lambda: open(path).read(1)) for path in files],
        "list": [tried(lambda: os.listdir(path)) for path in folders],
        "write": [tried(lambda: Path(path, "probe").touch() or True) for path in closed],
        "users": sorted({{os.stat(f"/proc/{{pid}}").st_uid for pid in pids}}),
        "signal": tried(lambda: os.kill(1, 0) or True),
        "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "raw": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
        "devices": tried(lambda: open("/dev/mem")),
        "rights": [line for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))],
        "user": os.getuid(),
    }}
    return {{**record, "text": json.dumps(found)}}

def build(input: str, output: str, what: str) -> Pipeline:
    stage = map_records({{"gate": gate, "eat": eat, "probe": probe}}[what])
    return Pipeline.chain(Path(output).name, output, read(input, batch_bytes=1 << 10), stage, write_documents())
'''


def steps() -> str:
    """The commands that headrace.env gives for one host, where `#` and three spaces begin a line."""
    lines = (Path(__file__).parents[2] / "systemd" / "headrace.env").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("# Who operates it"))
    return "\n".join(line[4:] for line in lines[:end] if line.startswith("#   "))


@pytest.fixture(scope="module")
def host() -> Iterator[Booted]:
    need_systemd()
    with booted() as host:
        host.said("sh", "-ec", f"cd /opt/tree\n{steps()}")
        host.write(f"{DATA}/pipeline.py", PIPELINE)
        lines = [json.dumps({"id": str(number), "text": "some words"}) + "\n" for number in range(RECORDS)]
        host.write(f"{DATA}/many.jsonl", "".join(lines))
        host.write(f"{DATA}/one.jsonl", lines[0])
        yield host


def headrace(host: Booted, *command: str) -> str:
    return host.said("runuser", "-u", CONTROLLER, "--", "headrace", *command, "--cluster", CLUSTER)


def apply(host: Booted, what: str, texts: str, output: str, *more: str) -> str:
    return headrace(host, "apply", f"{DATA}/pipeline.py", *parameters(what, texts, output), *more)


def parameters(what: str, texts: str, output: str) -> list[str]:
    given = (f"input={DATA}/{texts}.jsonl", f"output={DATA}/{output}", f"what={what}")
    return [word for value in given for word in ("-p", value)]


def dataset(host: Booted, command: str, name: str, *more: str) -> dict[str, Any]:
    words = ("headrace", "dataset", command, f"{DATA}/{name}", "--json", *more)
    found: dict[str, Any] = json.loads(host.said("runuser", "-u", CONTROLLER, "--", *words))
    return found


def status(host: Booted) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(headrace(host, "status", "--json"))
    return found


def test_both_units_run_as_their_own_users_and_the_worker_joined(host: Booted) -> None:
    for unit in (CONTROLLER, WORKER):
        facts = host.facts(unit, "ActiveState", "MainPID", "User", "StatusText")
        assert (facts["ActiveState"], facts["User"]) == ("active", unit)
        assert host.said("ps", "-o", "user:32=", "-p", facts["MainPID"]).strip() == unit
        assert facts["StatusText"]
        assert host.said("sh", "-c", f"stat -c %U:%a /var/lib/{unit} /run/{unit}").split() == [f"{unit}:700"] * 2
    wait_until(lambda: bool(status(host)["workers"]), PATIENCE_S, "the worker to be registered")


def test_a_run_balances_though_both_are_killed(host: Booted) -> None:
    apply(host, "gate", "many", "gate")
    wait_until(lambda: '"ready"' in json.dumps(status(host)), PATIENCE_S, "tasks to run")
    for unit in (WORKER, CONTROLLER):
        kill(host, unit)
    host.write(f"{DATA}/open", "")
    wait_until(lambda: '"completed"' in headrace(host, "status", "--json"), PATIENCE_S, "the run to end")
    shown = dataset(host, "show", "gate")
    assert shown["balanced"] is True
    assert f'"kept": {RECORDS}' in json.dumps(shown)


def kill(host: Booted, unit: str) -> None:
    """Kill a unit's processes, and wait until it was started again."""
    before = host.facts(unit, "MainPID")["MainPID"]

    def is_back() -> bool:
        facts = host.facts(unit, "ActiveState", "MainPID", "NRestarts")
        return facts["ActiveState"] == "active" and facts["MainPID"] != before and facts["NRestarts"] == "1"

    host.said("systemctl", "kill", "--signal=KILL", unit)
    wait_until(is_back, PATIENCE_S, f"{unit} to be started again")


def test_a_task_reaches_nothing_of_the_controller_and_the_host(host: Booted) -> None:
    apply(host, "probe", "one", "probe", "--wait")
    told = dataset(host, "head", "probe", "--characters", "0")
    found = json.loads(told["records"][0]["text"])
    user = int(host.said("id", "-u", WORKER))
    assert found["user"] == user
    assert found["users"] == [user], "it sees processes of other users"
    refused = {"PermissionError", "FileNotFoundError", "OSError"}
    for kind in ("read", "list", "write"):
        assert set(found[kind]) <= refused, found
    assert {found[kind] for kind in ("signal", "packet", "raw", "devices")} <= refused, found
    assert [line.split()[1].strip("0") for line in found["rights"]] == ["", "1"]


def test_what_takes_more_than_the_limit_dies_and_its_worker_lives(host: Booted) -> None:
    host.said("systemctl", "set-property", "--runtime", WORKER, f"MemoryMax={MEMORY_MAX}")
    if host.facts(WORKER, "MemoryCurrent")["MemoryCurrent"] == "[not set]":
        pytest.skip("no memory controller here")
    before = host.facts(WORKER, "MainPID", "NRestarts")
    command = ("runuser", "-u", CONTROLLER, "--", "headrace", "apply", f"{DATA}/pipeline.py", "--wait")
    done = host.run(*command, *parameters("eat", "one", "eat"), "--cluster", CLUSTER)
    assert done.returncode == 1
    assert "killed by signal 9" in done.stderr
    assert "eat/killed its process" in done.stderr, "one record is put aside"
    assert host.facts(WORKER, "MainPID", "NRestarts") == before


def test_stop_ends_a_unit_cleanly_and_leaves_no_process(host: Booted) -> None:
    host.said("rm", f"{DATA}/open")
    apply(host, "gate", "many", "stopped")
    wait_until(lambda: '"ready"' in json.dumps(status(host)), PATIENCE_S, "tasks to run")
    for unit in (WORKER, CONTROLLER):
        host.said("timeout", str(STOP_S_MAX), "systemctl", "stop", unit)
        facts = host.facts(unit, "ActiveState", "Result", "ExecMainStatus")
        assert facts == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
        assert host.run("pgrep", "-u", unit).stdout == ""


def test_systemd_finds_little_exposed_of_running_units(host: Booted) -> None:
    told = host.said("systemd-analyze", "security", "--no-pager")
    found = dict(re.findall(r"^(headrace-\w+)\.service\s+([\d.]+)", told, re.MULTILINE))
    assert {unit: float(value) <= 2 for unit, value in found.items()} == {CONTROLLER: True, WORKER: True}
