"""Hosts by ssh: the controller on the first, a worker on each.

ssh hands its words to the remote user's shell as one text: it is `sh -c` and one quoted word. Secrets go by standard
input. Host keys are checked, and nothing is asked.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from collections.abc import Mapping

from headrace.client.launch.core.asked import CONTROLLER_FILES, Call, Launch, LaunchInput, LaunchPlan, Ssh, known_as

#: Looks for a sign of life, a fifth of a second apart, and for an end.
START_LOOKS, END_LOOKS = 300, 100
CONNECT_S = 10

_FOLDER = """umask 077
d="$HOME/.headrace/launch/@name@/@role@"
mine() { [ -f pid ] && [ "$(readlink "/proc/$(cat pid)/cwd")" = "$(pwd -P)" ]; }
"""
_START = (
    _FOLDER
    + """mkdir -p "$d" && cd "$d" || exit 1
if mine; then echo "a @role@ of launch @name@ runs here: end it with headrace launch down" >&2; exit 1; fi
rm -rf pid member cluster
@prepare@exec 3<&0
setsid nohup @command@ <&3 3<&- > out.log 2>&1 &
echo $! > pid
exec 3<&-
n=0
until @ready@; do
    mine || { tail -n 5 out.log >&2; exit 1; }
    n=$((n + 1))
    [ $n -lt @looks@ ] || { echo "the @role@ does not come up: see $d/out.log" >&2; exit 1; }
    sleep 0.2
done
"""
)
_STOP = (
    _FOLDER
    + """cd "$d" 2>/dev/null || exit 0
if mine; then
    kill "$(cat pid)"
    n=0
    while mine && [ $n -lt @looks@ ]; do n=$((n + 1)); sleep 0.2; done
    if mine; then kill -KILL -- "-$(cat pid)" 2>/dev/null || kill -KILL "$(cat pid)"; fi
fi
rm -rf pid member cluster
"""
)
#: A worker that died is started again, as the member that it is. One that never joined has no token left.
_WORKER = """exec 3<&0
child=
trap 'trap - TERM; [ -z "$child" ] || kill "$child" 2>/dev/null; wait; exit 143' TERM INT
try=0
while [ $try -lt @tries@ ]; do
    if [ -f member/member.json ]; then
        @again@ < /dev/null 3<&- &
    else
        @join@ <&3 3<&- &
    fi
    child=$!
    wait "$child"
    code=$?
    [ $code -ne 0 ] && [ $code -ne 2 ] && [ -f member/member.json ] || exit $code
    try=$((try + 1))
    sleep 2
done
exit 1
"""
#: Starts of a worker, two seconds apart.
TRIES = 60
_UNPACK = "mkdir cluster && tar -xf - -C cluster || exit 1\n"


def plan(launch: Ssh, given: LaunchInput) -> LaunchPlan:
    """The controller first, then all workers together."""
    cores = ("--cores", str(launch.cores)) if launch.cores else ()
    root = ("--root", launch.root) if launch.root else ()
    worker = _script(
        _START,
        launch,
        "worker",
        command=shlex.join(("sh", "-c", _again(launch, *cores))),
        prepare="",
        ready="[ -f member/member.json ]",
        looks=str(START_LOOKS),
    )
    controller = _script(
        _START,
        launch,
        "controller",
        command=shlex.join(
            (
                *(launch.headrace, "controller", "--cluster", "cluster", "--listen", f"0.0.0.0:{launch.port}"),
                *("--advertise", address(launch), "--logs", "logs", *root),
            )
        ),
        prepare=_UNPACK,
        ready='grep -q "join on port" out.log',
        looks=str(START_LOOKS),
    )
    token = f"{given.token}\n".encode()
    return LaunchPlan(
        (),
        (
            (Call(_ssh(launch, launch.hosts[0], controller), _tar(given.cluster), "the cluster's folder"),),
            tuple(Call(_ssh(launch, host, worker), token, "a token") for host in launch.hosts),
        ),
        run=local_run(launch),
        said=f"the controller is at {address(launch)}",
    )


def _again(launch: Ssh, *cores: str) -> str:
    """The program that keeps a worker."""
    rest = ("--state", "member", "--logs", "logs", *cores)
    words = {
        "tries": str(TRIES),
        "again": shlex.join((launch.headrace, "worker", *rest)),
        "join": shlex.join((launch.headrace, "worker", "--join", "-", *rest)),
    }
    return _MARK.sub(lambda found: words[found[1]], _WORKER)


_MARK = re.compile(r"@([a-z]+)@")


def local_run(launch: Launch) -> tuple[str, ...]:
    """The pipeline, applied from here."""
    if not launch.pipeline:
        return ()
    options = ("--cluster", f"{launch.folder}/cluster", "--workers", str(launch.nodes), "--wait")
    return (launch.headrace, "apply", *options, *launch.pipeline)


def stop(launch: Ssh, _answers: Mapping[str, str]) -> tuple[tuple[Call, ...], ...]:
    """Workers first; the controller then has nothing that runs."""
    looks = str(END_LOOKS)
    workers = tuple(Call(_ssh(launch, host, _script(_STOP, launch, "worker", looks=looks))) for host in launch.hosts)
    controller = _script(_STOP, launch, "controller", looks=looks)
    return (workers, (Call(_ssh(launch, launch.hosts[0], controller)),))


def address(launch: Ssh) -> str:
    """The first host's, for all others."""
    return f"{launch.advertise or launch.hosts[0].rpartition('@')[2]}:{launch.port}"


def _script(text: str, launch: Ssh, role: str, **words: str) -> str:
    for mark, word in {"name": known_as(launch), "role": role}.items():
        text = text.replace(f"@{mark}@", word)
    # What the user says comes last, and is not looked through for marks.
    for mark in sorted(words, key=lambda mark: mark == "command"):
        text = text.replace(f"@{mark}@", words[mark])
    return text


def _ssh(launch: Ssh, host: str, script: str) -> tuple[str, ...]:
    config = ("-F", launch.ssh_config) if launch.ssh_config else ()
    options = ("BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=15")
    given = (word for option in options for word in ("-o", option))
    return ("ssh", *config, *given, "--", host, f"exec sh -c {shlex.quote(script)}")


def _tar(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in CONTROLLER_FILES:
            data = files[name].encode("latin-1")
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
