"""The systemd units are accepted by systemd itself, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")


#: Where the controller's user keeps the key of the authority.
KEYS = "/var/lib/headrace-controller"

#: What `systemd-analyze security` may find of a unit at most, in tenths: 0 is shut, 100 wide open.
EXPOSURE_MAX = 30

each_unit = pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@each_unit
def test_a_unit_is_shut_as_far_as_it_can_be(unit: Path) -> None:
    command = [str(ANALYZE), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_unit
def test_a_unit_waits_for_readiness_is_restarted_and_has_limits(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    for line in ("Type=notify", "NotifyAccess=main", "WatchdogSec=60s", "Restart=on-failure", "LimitNOFILE=65536"):
        assert line in lines


def test_restarts_go_on_and_lose_no_pipeline_and_no_other_task() -> None:
    for unit in ("controller", "worker"):
        assert values(unit)["StartLimitIntervalSec"] == "0", "a controller, a network or a store may come late"
    controller = (UNITS / "headrace-controller.service").read_text(encoding="utf-8")
    assert f"\nEnvironment=HEADRACE_ROOT=file://{Path(KEYS)}/root\n" in controller
    assert "headrace-controller.service" in values("worker")["After"], "it joins there"
    assert values("worker")["OOMPolicy"] == "continue"


def values(unit: str) -> dict[str, str]:
    """The settings of a unit that stand in it once."""
    lines = (UNITS / f"headrace-{unit}.service").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return {name: value for name, _, value in pairs if name != "Environment"}


def test_nothing_is_plain_text_and_the_defaults_stay_on_this_host() -> None:
    for unit in UNITS.glob("*.service"):
        assert "insecure-tcp" not in unit.read_text(encoding="utf-8")
    controller = (UNITS / "headrace-controller.service").read_text(encoding="utf-8")
    assert "\nEnvironment=HEADRACE_LISTEN=127.0.0.1:7420\n" in controller
    assert f"\nEnvironment=HEADRACE_CLUSTER={KEYS}/cluster\n" in controller, "with mutual TLS"
    settings = (UNITS / "headrace.env").read_text(encoding="utf-8").splitlines()
    assert [line for line in settings if line and not line.startswith("#")] == []


def test_the_two_are_users_of_their_own_with_folders_of_their_own() -> None:
    controller, worker = values("controller"), values("worker")
    for name in ("User", "Group", "StateDirectory", "RuntimeDirectory", "LogsDirectory", "WorkingDirectory"):
        assert controller[name] != worker[name]
    for unit in (controller, worker):
        assert (unit["StateDirectoryMode"], unit["RuntimeDirectoryMode"]) == ("0700", "0700")
        assert (unit["SupplementaryGroups"], unit["UMask"]) == ("headrace", "0007")


@each_unit
def test_a_unit_has_a_memory_limit_and_sees_no_other_users(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    assert any(re.fullmatch(r"MemoryMax=\d+[G%]", line) for line in lines)
    for line in ("ProtectProc=invisible", "ProtectSystem=strict", "NoNewPrivileges=yes"):
        assert line in lines


def test_a_worker_has_no_way_to_the_key_of_the_authority() -> None:
    assert f"HEADRACE_CLUSTER={KEYS}/cluster\n" in (UNITS / "headrace.env").read_text(encoding="utf-8")
    assert values("controller")["StateDirectory"] == Path(KEYS).name
    assert values("worker")["InaccessiblePaths"] == f"-{KEYS}"


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="no root: no folders for other users")
def test_users_and_folders_are_made_by_systemds_own_tools(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool in ("sysusers", "tmpfiles"):
        command = [f"systemd-{tool}", f"--root={tmp_path}", *(["--create"] if tool == "tmpfiles" else [])]
        command.append(str(UNITS / f"{tool}.d" / "headrace.conf"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    groups = dict(line.split(":", 1) for line in (tmp_path / "etc/group").read_text().splitlines())
    assert groups["headrace"].endswith(":headrace-controller,headrace-worker")
    users = [line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    assert {values(unit)["User"] for unit in ("controller", "worker")} <= set(users)
    data = (tmp_path / "var/lib/headrace/data").stat()
    assert data.st_mode & 0o7777 == 0o2770
    assert data.st_gid == int(groups["headrace"].split(":")[1])


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@each_unit
def test_a_unit_passes_verify(unit: Path, tmp_path: Path) -> None:
    # verify wants the command to exist; where headrace is installed is the administrator's business
    text = re.sub(r"^(Exec\w+=)\S+", r"\g<1>/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    command = [str(ANALYZE), "verify", "--man=no", "--recursive-errors=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_controller_and_worker_have_a_unit_each() -> None:
    assert {path.name for path in UNITS.glob("*.service")} == {"headrace-controller.service", "headrace-worker.service"}
