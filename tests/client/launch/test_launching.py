"""A launch has a folder of its own: it remembers how to end, closed to others, whatever the calls answer."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.errors import EXIT_INTERRUPTED, CliError, UsageError
from headrace.client.launch import launching
from headrace.client.launch.core.asked import Kubernetes, Slurm, Ssh
from headrace.client.launch.launching import end_launch, start_launch
from headrace.cluster.join import read_token
from headrace.daemon.signals import Handler, hear
from tests.kits.run.programs import EVIL, Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


def slurm(tmp_path: Path) -> Slurm:
    return Slurm(name="press", folder=str(tmp_path / EVIL), cwd=str(tmp_path), nodes=2)


def test_a_job_is_submitted_once_and_cancelled_by_its_number(tmp_path: Path, programs: Programs) -> None:
    programs.add("sbatch", "echo noise; echo 77")
    programs.add("scancel")
    asked, folder = slurm(tmp_path), tmp_path / EVIL
    assert start_launch("slurm", asked, dry_run=False) == 0
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir() if path.name != "cluster"} == {0}
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(CliError, match="has a launch: end it"):
        start_launch("slurm", asked, dry_run=False)
    assert end_launch(folder) == 0
    assert programs.calls("scancel") == [["77"]]
    assert end_launch(folder) == 0
    assert len(programs.calls("scancel")) == 1
    # The folder's cluster is the one of the next launch, too.
    before = (folder / "cluster" / "authority.pem").read_bytes()
    assert start_launch("slurm", asked, dry_run=False) == 0
    assert (folder / "cluster" / "authority.pem").read_bytes() == before


def test_a_launch_that_fails_says_why_and_leaves_nothing_to_end(tmp_path: Path, programs: Programs) -> None:
    programs.add("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    programs.add("scancel")
    with pytest.raises(CliError, match=r"sbatch .*: sbatch: error: invalid partition"):
        start_launch("slurm", slurm(tmp_path), dry_run=False)
    assert not (tmp_path / EVIL / "launch.json").exists()


def test_a_job_that_was_not_noted_is_cancelled_by_its_name(tmp_path: Path, programs: Programs) -> None:
    programs.add("sbatch", "echo 77")
    programs.add("scancel")
    asked, folder = slurm(tmp_path), tmp_path / EVIL
    start_launch("slurm", asked, dry_run=False)
    # As it stands when the launch is killed between the answer and its note.
    remembered = json.loads((folder / "launch.json").read_text())
    (folder / "launch.json").write_text(json.dumps({**remembered, "answers": {}}))
    assert end_launch(folder) == 0
    (named,) = [word.partition("=")[2] for word in programs.calls("sbatch")[0] if word.startswith("--job-name=")]
    assert programs.calls("scancel") == [["--me", f"--jobname={named}"]]
    assert named.startswith("press-")


def test_a_program_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match="sbatch is not installed here"):
        start_launch("slurm", slurm(tmp_path), dry_run=False)


def test_one_host_that_fails_ends_what_started_on_the_others(tmp_path: Path, programs: Programs) -> None:
    programs.add("ssh", 'case "$*" in *@two*member.json*) echo refused >&2; exit 255;; esac')
    asked = Ssh(name="press", folder=str(tmp_path / "l"), cwd=str(tmp_path), nodes=2, hosts=("a@one", "a@two"))
    with pytest.raises(CliError, match=r"ssh .*a@two: refused"):
        start_launch("ssh", asked, dry_run=False)
    started = [words[-2] for words in programs.calls("ssh") if "setsid" in words[-1]]
    ended = [words[-2] for words in programs.calls("ssh") if "kill -KILL" in words[-1]]
    assert sorted(started) == ["a@one", "a@one", "a@two"]
    assert sorted(ended) == ["a@one", "a@one", "a@two"]


def test_what_a_host_says_without_end_is_not_held(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.add("scancel")
    programs.add("sbatch", "head -c 200000000 /dev/zero >&2; head -c 200000000 /dev/zero; echo; echo 77")
    tracemalloc.start()
    try:
        assert start_launch("slurm", slurm(tmp_path), dry_run=False) == 0
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert end_launch(tmp_path / EVIL) == 0
    assert programs.calls("scancel") == [["77"]]
    programs.add("sbatch", "exec yes")
    monkeypatch.setattr(launching, "CALL_S", 0.5)
    with pytest.raises(CliError, match="no answer within"):
        start_launch("slurm", slurm(tmp_path), dry_run=False)


def test_a_folder_that_is_not_there_has_nothing_to_end(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="is no folder: give the --folder of the launch"):
        end_launch(tmp_path / "slip")


def test_a_launch_whose_end_fails_can_be_ended_again(tmp_path: Path, programs: Programs) -> None:
    programs.add("sbatch", "echo 77")
    programs.add("scancel", "exit 3")
    start_launch("slurm", slurm(tmp_path), dry_run=False)
    with pytest.raises(CliError, match="not all has ended"):
        end_launch(tmp_path / EVIL)
    programs.add("scancel")
    assert end_launch(tmp_path / EVIL) == 0


def test_a_fault_names_the_host_and_what_its_log_says_once(tmp_path: Path, programs: Programs) -> None:
    programs.add("ssh", """echo '{"level":"error","message":"cannot listen"}' >&2; exit 1""")
    asked = Ssh(name="press", folder=str(tmp_path / "l"), cwd=str(tmp_path), nodes=1, hosts=("node1",))
    with pytest.raises(CliError) as caught:
        start_launch("ssh", asked, dry_run=False)
    assert str(caught.value) == "ssh node1: cannot listen"
    assert len(caught.value.details) == 1


def launched(tmp_path: Path, programs: Programs, script: str) -> int:
    """What a launch ends with whose command does so."""
    programs.add("ssh")
    headrace = programs.add("headrace", script)
    (tmp_path / "p.py").write_text("x = 1\n")
    common = {"name": "press", "folder": str(tmp_path / "l"), "cwd": str(tmp_path), "nodes": 1, "hosts": ("one",)}
    asked = Ssh(**common, headrace=str(headrace), pipeline=("p.py", "-p", EVIL))  # type: ignore[arg-type]
    return start_launch("ssh", asked, dry_run=False)


def test_a_pipeline_runs_and_all_ends_with_it(tmp_path: Path, programs: Programs) -> None:
    assert launched(tmp_path, programs, "exit 4") == 4
    options = ["--cluster", f"{tmp_path}/l/cluster", "--workers", "1", "--wait"]
    assert programs.calls("headrace") == [["apply", *options, "p.py", "-p", EVIL]]
    assert len([words for words in programs.calls("ssh") if "kill -KILL" in words[-1]]) == 2
    assert not (tmp_path / "l" / "launch.json").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_after_ctrl_c_a_launched_pipeline_commits_before_all_ends(tmp_path: Path, programs: Programs) -> None:
    assert launched(tmp_path, programs, "kill -INT $PPID; echo > committed; exit 7") == 7
    assert (tmp_path / "committed").exists()
    assert not (tmp_path / "l" / "launch.json").exists()


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_kills_a_launched_pipeline_and_ends_all(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hear_and_press_again(handler: Handler) -> object:
        before = hear(handler)
        signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr(launching, "hear", hear_and_press_again)
    assert launched(tmp_path, programs, "kill -INT $PPID; exec tail -f /dev/null") == EXIT_INTERRUPTED
    assert not (tmp_path / "l" / "launch.json").exists()


def test_pods_get_a_token_for_each_and_some_to_move(tmp_path: Path, programs: Programs) -> None:
    programs.add("kubectl", "cat > $0.stdin")
    common = {"name": "press", "folder": str(tmp_path / "l"), "cwd": str(tmp_path), "nodes": 3, "days": 2}
    asked = Kubernetes(**common, namespace="n", image="i", root="s3://b/c")  # type: ignore[arg-type]
    assert start_launch("kubernetes", asked, dry_run=False) == 0
    manifest = json.loads((programs.bin / "kubectl.stdin").read_text())
    (secret,) = [item for item in manifest["items"] if item["metadata"]["name"] == "press-join"]
    import base64

    token = read_token(base64.b64decode(secret["data"]["token"]).decode())
    assert token.nodes == 48
    assert token.controllers == ("press-controller-0.press-controller.n.svc:7420",)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_folder_that_others_may_enter_holds_no_keys(tmp_path: Path, programs: Programs, mode: int) -> None:
    folder = tmp_path / EVIL
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CliError, match="holds keys, so only you may reach it"):
        start_launch("slurm", slurm(tmp_path), dry_run=False)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away")
def test_a_folder_of_another_user_holds_no_keys(tmp_path: Path, programs: Programs) -> None:
    folder = tmp_path / EVIL
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(CliError, match="holds keys, so only you may reach it"):
        start_launch("slurm", slurm(tmp_path), dry_run=False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"launcher": "slurm"}', "\x00", "[" * 5000])
def test_a_folder_that_remembers_something_else_is_refused(tmp_path: Path, text: str) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises(CliError, match="remembers no launch"):
        end_launch(tmp_path)


def test_a_pipeline_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    common = {"name": "press", "folder": str(tmp_path / "l"), "cwd": str(tmp_path), "nodes": 1}
    with pytest.raises(UsageError, match="after -- comes a pipeline file"):
        start_launch("slurm", Slurm(**common, pipeline=("p.py",)), dry_run=False)  # type: ignore[arg-type]
    assert not (tmp_path / "l").exists()


def test_a_plan_that_is_shown_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start_launch("slurm", slurm(tmp_path), dry_run=True) == 0
    assert "sbatch --parsable" in capsys.readouterr().out
    assert not (tmp_path / EVIL).exists()
