"""What a launch is asked for reaches programs as the word that it is, or is refused: no shell takes it for its own."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.client.launch.core import ssh
from headrace.client.launch.core.asked import (
    CONTROLLER_FILES,
    OPERATOR_FILES,
    Kubernetes,
    Launch,
    LaunchError,
    LaunchInput,
    Ray,
    Slurm,
    Ssh,
    check,
    known_as,
)
from headrace.client.launch.core.plan import LAUNCHERS, read, shown
from tests.kits.run.programs import EVIL, Programs

COMMON: dict[str, Any] = {"name": "press", "folder": "/l", "cwd": "/c", "nodes": 2}
ASKED: dict[str, Launch] = {
    "slurm": Slurm(**COMMON),
    "ssh": Ssh(**COMMON, hosts=("one", "anna@two")),
    "ray": Ray(**COMMON),
    "kubernetes": Kubernetes(**COMMON, namespace="default", image="r/headrace:1", root="s3://b/c"),
}
SECRET = LaunchInput(
    {name: f"SECRET of {name}" for name in {*CONTROLLER_FILES, *OPERATOR_FILES}}, "hrj1.SECRET", "x = 1"
)


def changed(launcher: str, **changes: Any) -> Launch:
    asked = ASKED[launcher]
    return type(asked)(**{**{name: getattr(asked, name) for name in asked.__dataclass_fields__}, **changes})


def test_every_launcher_of_the_table_has_a_case_here() -> None:
    assert ASKED.keys() == LAUNCHERS.keys()
    for launcher, asked in ASKED.items():
        assert type(asked) is LAUNCHERS[launcher].kind
        check(asked)


@pytest.mark.parametrize(
    ("launcher", "field"),
    [
        *((launcher, "name") for launcher in LAUNCHERS),
        *(("slurm", field) for field in ("partition", "account", "time")),
        ("ray", "address"),
        *(("kubernetes", field) for field in ("namespace", "image", "memory", "credentials")),
    ],
)
@pytest.mark.parametrize(
    "word", ["-x", "a b", "a;b", "$(x)", "a\nb", "a'b", 'a"b', "a\\b", "a\0b", "é", "x" * 5000, "`a`"]
)
def test_a_name_that_is_more_than_a_name_is_refused(launcher: str, field: str, word: str) -> None:
    with pytest.raises(LaunchError, match=f"--{field}"):
        check(changed(launcher, **{field: word}))


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "", "a b", "a;b", "@a", "a@-b", "a/b", "a\nb", "a:22", "[::1]"])
def test_a_host_that_ssh_could_take_for_an_option_is_refused(host: str) -> None:
    with pytest.raises(LaunchError, match="--host"):
        check(changed("ssh", hosts=("one", host)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("nodes", value) for value in (0, -1, 4097, True, "1")),
        *(("port", value) for value in (-1, 65535)),
        *(("days", value) for value in (0, 366)),
        *(("folder", value) for value in ("", "relative", "/a\nb", "/" + "x" * 5000)),
        *(("pipeline", value) for value in (("a\0",), ("a\n",), ("x",) * 257, (1,))),
        ("headrace", ""),
    ],
)
def test_numbers_and_paths_beyond_their_limits_are_refused(field: str, value: Any) -> None:
    with pytest.raises(LaunchError, match=f"--{field}"):
        check(changed("slurm", **{field: value}))


@pytest.mark.parametrize("root", ["", "/tmp/x", "file:///x", "bucket"])
def test_pods_have_their_log_in_a_store(root: str) -> None:
    with pytest.raises(LaunchError, match="--root"):
        LAUNCHERS["kubernetes"].plan(changed("kubernetes", root=root), LaunchInput())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_shown_and_what_is_called_holds_no_secret(launcher: str) -> None:
    """Command lines are read by every user; only the manifest holds secrets, and nobody else may read that."""
    asked = changed(launcher, pipeline=("p.py",))
    plan = LAUNCHERS[launcher].plan(asked, SECRET)
    calls = [call for step in (*plan.start, *LAUNCHERS[launcher].stop(asked, {"job": "7"})) for call in step]
    assert calls
    assert not [call.argv for call in calls if "SECRET" in " ".join(call.argv)]
    assert "SECRET" not in shown(LAUNCHERS[launcher].plan(asked, LaunchInput()))
    assert all(file.mode & 0o077 == 0 for file in plan.files)
    assert launcher == "kubernetes" or not [file for file in plan.files if "SECRET" in file.text]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_plan_is_shown_with_every_file_and_call(launcher: str) -> None:
    plan = LAUNCHERS[launcher].plan(changed(launcher, pipeline=("p.py",)), LaunchInput())
    lines = shown(plan).splitlines()
    assert [line for line in lines if line.startswith("# --- ")] == [
        *(f"# --- {file.name}" for file in plan.files),
        *("# --- " + (f"reads {call.what}: " if call.what else "") + "runs" for step in plan.start for call in step),
        *(["# --- runs, then ends all"] if plan.run else []),
    ]
    calls = [call.argv for step in plan.start for call in step] + ([plan.run] if plan.run else [])
    assert [shlex.join(call) in shown(plan) for call in calls] == [True] * len(calls)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_end_of_a_launch_reaches_none_of_the_same_name(launcher: str) -> None:
    def ends(folder: str) -> set[tuple[Any, ...]]:
        steps = LAUNCHERS[launcher].stop(changed(launcher, folder=folder), {})
        return {(call.argv, call.stdin) for step in steps for call in step}

    assert ends("/a") == ends("/a")
    assert not ends("/a") & ends("/b")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launch_is_remembered_as_it_was_asked_for(launcher: str) -> None:
    asked = changed(launcher, pipeline=("p.py", "-p", "a=b"))
    said = json.loads(json.dumps({name: getattr(asked, name) for name in asked.__dataclass_fields__}))
    assert read(launcher, said) == asked


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.sampled_from([*LAUNCHERS, "", "at"]), st.one_of(JSON, st.dictionaries(st.sampled_from(list(COMMON)), JSON)))
def test_what_is_no_launch_is_remembered_as_none(launcher: str, said: Any) -> None:
    with pytest.raises(LaunchError):
        read(launcher, said)


@pytest.mark.parametrize("job", ["x", "1 2", "-1", "1;a b", "1\n2", "1;", "9" * 13])
def test_an_answer_that_is_no_job_is_not_cancelled(job: str) -> None:
    with pytest.raises(LaunchError, match="no number of a job"):
        LAUNCHERS["slurm"].stop(ASKED["slurm"], {"job": job})
    ((call,),) = LAUNCHERS["slurm"].stop(ASKED["slurm"], {"job": "12;east"})
    assert call.argv == ("scancel", "--clusters=east", "12")


# -- scripts, by the shells that run them --

#: `headrace`, played: a controller and a worker go on until they are killed.
HEADRACE = """case $1 in
controller) : > controls; echo "join on port" >&2; exec tail -f /dev/null;;
worker) [ "$3" != - ] || cat > stdin; mkdir -p member; : > member/member.json; exec tail -f /dev/null;;
cluster) echo hrj1.made;;
apply) until [ -e controls ] && [ -e member/member.json ]; do :; done; exit 7;;
esac"""


@pytest.mark.parametrize("pipeline", [("p.py", "-p", EVIL, "--", ""), ()], ids=["a pipeline", "none"])
def test_a_job_calls_what_was_asked_for_and_ends_with_the_pipeline(tmp_path: Path, pipeline: tuple[str, ...]) -> None:
    programs = Programs(tmp_path)
    folder = tmp_path / EVIL
    headrace = programs.add("headrace", HEADRACE, into=tmp_path / f"a {EVIL}")
    programs.add(
        "srun",
        'SLURM_PROCID=0 "${@: -2}" & child=$!; trap "kill $child; wait; exit" TERM; wait'
        if pipeline
        else "until [ -e controls ]; do :; done",
    )
    (folder / "cluster").mkdir(parents=True)
    asked = changed(
        "slurm", folder=str(folder), cwd=str(folder), headrace=str(headrace), pipeline=pipeline, root=EVIL, port=0
    )
    plan = LAUNCHERS["slurm"].plan(asked, SECRET)
    for file in plan.files:
        (folder / file.name).write_text(file.text)
    done = subprocess.run(
        ["bash", str(folder / "job.sh")],
        env=programs.environment(SLURM_JOB_ID="12", SLURM_JOB_NUM_NODES="2"),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == (7 if pipeline else 0), done.stderr
    calls = {words[0]: words[1:] for words in programs.calls("headrace")}
    assert calls["controller"][-4:] == ["--root", EVIL, "--logs", "logs"]
    assert calls["cluster"] == ["token", "cluster", "--name", "press", "--nodes", "2", "--days", "1"]
    if pipeline:
        assert calls["apply"] == ["--cluster", f"{folder}/cluster", "--workers", "2", "--wait", *pipeline]
        assert calls["worker"][:4] == ["--join", "token", "--state", "members/12.0/0"]
    assert (folder / "token").read_text() == "hrj1.made\n"
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    host, _, port = json.loads((folder / "cluster" / "cluster.json").read_text())["controllers"][0].partition(":")
    assert host
    assert port == "10024"
    assert not list(tmp_path.rglob("canary"))
    assert f"--output={str(folder).replace('%', '%%')}/job.log" in plan.start[0][0].argv


def test_hosts_start_and_end_what_was_asked_for(tmp_path: Path) -> None:
    """ssh is played as sshd does it: the user's shell reads one text."""
    programs = Programs(tmp_path)
    headrace = programs.add("headrace", HEADRACE, into=tmp_path / f"a {EVIL}")
    asked = changed("ssh", headrace=str(headrace), root=EVIL, hosts=("one",), ssh_config=EVIL)
    environment = programs.environment(HOME=str(tmp_path / "home"))
    plan, stop = LAUNCHERS["ssh"].plan(asked, SECRET), LAUNCHERS["ssh"].stop(asked, {})
    at = tmp_path / "home" / ".headrace" / "launch" / known_as(asked)

    def run(steps: Any) -> list[str]:
        said: list[str] = []
        for step in steps:
            for call in step:
                assert call.argv[:3] == ("ssh", "-F", EVIL)
                assert "StrictHostKeyChecking=yes" in call.argv
                assert call.argv[-3:-1] == ("--", "one")
                shell = ["sh", "-c", call.argv[-1]]
                done = subprocess.run(
                    shell, input=call.stdin, capture_output=True, env=environment, timeout=300, cwd=tmp_path
                )
                said += [done.stderr.decode()] if done.returncode else []
        return said

    assert run(plan.start) == []
    try:
        assert (at / "worker" / "stdin").read_text() == "hrj1.SECRET\n"
        assert (at / "controller" / "cluster" / "cluster.key").read_text() == "SECRET of cluster.key"
        assert (at / "controller" / "cluster" / "cluster.key").stat().st_mode & 0o777 == 0o600
        assert all("ends" not in words and "end it with headrace launch down" in words for words in run(plan.start))
        pids = [int((at / role / "pid").read_text()) for role in ("controller", "worker")]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        assert run(stop) == []
    assert not [pid for pid in pids if "tail" in _command(pid)]
    assert not (at / "controller" / "cluster").exists()
    assert run(stop) == []
    controller, worker = programs.calls("headrace")[0], programs.calls("headrace")[-1]
    assert controller[0] == "controller"
    assert controller[-2:] == ["--root", EVIL]
    assert worker == ["worker", "--join", "-", "--state", "member", "--logs", "logs"]
    assert not list(tmp_path.rglob("canary"))


def test_a_worker_by_ssh_that_dies_is_started_as_the_same_member(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    played = 'mkdir -p member && touch member/member.json; [ "$2" = --join ] && exit 1; exit 0'
    headrace = programs.add("headrace", played, into=tmp_path / f"a {EVIL}")
    asked = changed("ssh", headrace=str(headrace), hosts=("one",))
    assert isinstance(asked, Ssh)
    script = ssh._again(asked, "--cores", "1")
    done = subprocess.run(
        ["sh", "-c", script], input=b"a token\n", env=programs.environment(), cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0
    rest = ["--state", "member", "--logs", "logs", "--cores", "1"]
    assert programs.calls("headrace") == [["worker", "--join", "-", *rest], ["worker", *rest]]
    assert not list(tmp_path.rglob("canary"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_another_process_with_the_number_is_left_alone(tmp_path: Path) -> None:
    """What stands in `pid` after a restart of the host may be anybody's."""
    asked = changed("ssh", hosts=("one",))
    (_, (call,)) = LAUNCHERS["ssh"].stop(asked, {})
    at = tmp_path / ".headrace" / "launch" / known_as(asked) / "controller"
    at.mkdir(parents=True)
    with subprocess.Popen(["tail", "-f", "/dev/null"], cwd=tmp_path) as other:
        (at / "pid").write_text(f"{other.pid}\n")
        done = subprocess.run(
            ["sh", "-c", call.argv[-1]], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, timeout=60
        )
        assert done.returncode == 0
        assert other.poll() is None
        other.kill()


# -- the manifest --


def test_the_manifest_has_what_pods_need_and_nothing_more() -> None:
    asked = changed("kubernetes", pipeline=("p.py", "-p", EVIL), cores=3, credentials="aws", headrace=EVIL)
    plan = LAUNCHERS["kubernetes"].plan(asked, SECRET)
    manifest = json.loads(plan.files[0].text)
    assert plan.start[0][0].stdin.decode() == plan.files[0].text
    items = {f"{item['kind']}/{item['metadata']['name']}": item for item in manifest["items"]}
    assert sorted(items) == [
        "ConfigMap/press-pipeline",
        "Deployment/press-worker",
        "Job/press-apply",
        "Secret/press-cluster",
        "Secret/press-join",
        "Secret/press-operator",
        "Service/press-controller",
        "StatefulSet/press-controller",
    ]
    kinds = LAUNCHERS["kubernetes"].stop(asked, {})[0][0].argv[4].split(",")
    assert {name.partition("/")[0].lower() for name in items} == set(kinds)
    for name, item in items.items():
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == known_as(asked)
        template = item.get("spec", {}).get("template")
        if template is None:
            continue
        pod = template["spec"]
        (container,) = pod["containers"]
        assert not pod["automountServiceAccountToken"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"] == {"memory": "4Gi", "cpu": "3"}
        assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
        assert EVIL not in container["command"][2]
        assert EVIL in container["command"][3:]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        if name != "Job/press-apply":
            selector = item["spec"]["selector"]["matchLabels"]
            assert selector.items() <= template["metadata"]["labels"].items()
            assert "readinessProbe" in container
    service = items["Service/press-controller"]["spec"]
    assert service["clusterIP"] == "None"
    assert items["StatefulSet/press-controller"]["spec"]["serviceName"] == "press-controller"
    assert items["Deployment/press-worker"]["spec"]["replicas"] == 2
    environment = items["Deployment/press-worker"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "press-join", "key": "token"} in [
        item.get("valueFrom", {}).get("secretKeyRef") for item in environment
    ]
    assert "SECRET" not in "".join(json.dumps(item) for item in items.values() if item["kind"] != "Secret")


def test_the_scripts_of_pods_take_what_the_user_says_as_words(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    headrace = programs.add("headrace", into=tmp_path / EVIL)
    asked = changed("kubernetes", pipeline=("p.py", "-p", EVIL), headrace=str(headrace), root=f"s3://b/{EVIL}", cores=2)
    plan = LAUNCHERS["kubernetes"].plan(asked, SECRET)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "cluster.key").write_text("key")
    for item in json.loads(plan.files[0].text)["items"]:
        if "template" in item.get("spec", {}):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            words = [
                word.replace("/secret/", f"{secret}/") if at == 2 else word
                for at, word in enumerate(container["command"])
            ]
            environment = programs.environment(HOME=str(tmp_path / "home"))
            subprocess.run(words, env=environment, check=True, timeout=300, cwd=tmp_path)
    apply, controller, worker = programs.calls("headrace")
    home = str(tmp_path / "home")
    options = ["--cluster", f"{home}/cluster", "--workers", "2", "--wait"]
    assert apply == ["apply", *options, "/pipeline/pipeline.py", "-p", EVIL]
    assert controller[-2:] == ["--root", f"s3://b/{EVIL}"]
    assert worker == ["worker", "--state", f"{home}/member", "--cores", "2"]
    assert (tmp_path / "home" / "cluster" / "cluster.key").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.rglob("canary"))
