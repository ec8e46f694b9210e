"""The systemd units are accepted by systemd itself, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")


#: What `systemd-analyze security` may find of a unit at most, in tenths: 0 is shut, 100 wide open.
EXPOSURE_MAX = 30

each_unit = pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@each_unit
def test_a_unit_is_shut_as_far_as_it_can_be(unit: Path) -> None:
    command = [str(ANALYZE), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_unit
def test_a_unit_waits_for_its_daemons_word_is_started_again_and_has_limits(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    for line in ("Type=notify", "NotifyAccess=main", "WatchdogSec=60s", "Restart=on-failure", "LimitNOFILE=65536"):
        assert line in lines


@each_unit
def test_a_unit_meets_the_other_at_a_socket_that_no_other_user_reaches(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    lines = text.splitlines()
    for line in ("Environment=HEADRACE_RUNTIME_DIR=/run/headrace", "RuntimeDirectory=headrace"):
        assert line in lines
    assert "RuntimeDirectoryMode=0700" in lines
    settings = (UNITS / "headrace.env").read_text(encoding="utf-8").splitlines()
    set_by_default = [line for line in settings if line and not line.startswith("#")]
    assert "insecure-tcp" not in text
    assert set_by_default == [], "nothing listens on a network before somebody says so"


@each_unit
def test_a_unit_has_a_limit_of_memory_and_sees_no_other_users_processes(unit: Path) -> None:
    lines = unit.read_text(encoding="utf-8").splitlines()
    assert any(re.fullmatch(r"MemoryMax=\d+[G%]", line) for line in lines)
    for line in ("ProtectProc=invisible", "ProtectSystem=strict", "NoNewPrivileges=yes", "User=headrace"):
        assert line in lines


def test_a_worker_has_no_way_to_the_key_of_the_authority() -> None:
    documented = "/var/lib/headrace/cluster"
    assert f"HEADRACE_CLUSTER={documented}\n" in (UNITS / "headrace.env").read_text(encoding="utf-8")
    worker = (UNITS / "headrace-worker.service").read_text(encoding="utf-8")
    assert f"\nInaccessiblePaths=-{documented}\n" in worker


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@each_unit
def test_a_unit_passes_verify(unit: Path, tmp_path: Path) -> None:
    # verify wants the command to exist; where headrace is installed is the administrator's business
    text = re.sub(r"^(Exec\w+=)\S+", r"\g<1>/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    command = [str(ANALYZE), "verify", "--man=no", "--recursive-errors=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_controller_and_worker_have_a_unit_each() -> None:
    assert {path.name for path in UNITS.glob("*.service")} == {"headrace-controller.service", "headrace-worker.service"}
