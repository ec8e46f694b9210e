"""A job of Slurm: the controller on its first node, a worker on each.

What the user says stands in the script as a quoted word, in `sbatch` as an argument of its own. The script makes the
token when it runs, so that it does not expire in the queue; it is in no script, no argument and no environment. A job
that is requeued has another first node, other members and another token, and the same log of the cluster: the new
controller leads it, and what was open is read again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from headrace.client.launch.core.asked import Call, File, LaunchError, LaunchInput, LaunchPlan, Slurm, known_as

_JOB = re.compile(r"([0-9]{1,12})(;[A-Za-z0-9_.-]{1,64})?")

_SCRIPT = """#!/bin/bash
# A controller on the first node of the job, a worker on each.
set -u
umask 077
headrace=@headrace@
folder=@folder@
host=$(hostname -f 2>/dev/null || hostname)
case $host in ''|*[!A-Za-z0-9.-]*) echo "the host name $host cannot stand in an address" >&2; exit 1;; esac
port=@port@
[ "$port" -gt 0 ] || port=$((10000 + SLURM_JOB_ID % 10000 * 2))
cd -- "$folder" || exit 1
printf '{"name": "%s", "controllers": ["%s:%s"]}' @name@ "$host" "$port" > cluster/.cluster.json.new &&
    mv -f cluster/.cluster.json.new cluster/cluster.json &&
    "$headrace" cluster token cluster --name @name@ --nodes @joins@ --days @days@ > token || exit 1

trap 'trap - TERM; kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 143' TERM INT
"$headrace" controller --cluster cluster --listen "0.0.0.0:$port" --advertise "$host:$port" \\
    --root @root@ --logs logs &
controller=$!
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 @cores@--overlap \\
    --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 /bin/bash worker.sh &
workers=$!
echo "headrace: the controller is at $host:$port"
@run@"""

_WAIT = """wait -n
"""
#: Whatever of the three ends first ends the job.
_APPLY = """cd -- @cwd@ || exit 1
"$headrace" apply --cluster "$folder/cluster" --workers @joins@ --wait @pipeline@ &
apply=$!
wait -n
code=$?
if kill -0 "$apply" 2>/dev/null; then
    echo "headrace: the controller or the workers ended before the pipeline" >&2
    exit 1
fi
exit "$code"
"""
#: A worker that the controller does not admit yet, or that died, is started again.
_WORKER = """#!/bin/bash
# The worker of one node of the job.
set -u
umask 077
headrace=@headrace@
cd -- @folder@ || exit 1
state=members/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}/$SLURM_PROCID
mkdir -p "$state" || exit 1
child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; wait; exit 143' TERM INT
for try in {1..@tries@}; do
    "$headrace" worker --join token --state "$state" --logs "logs/worker-$SLURM_PROCID" @cores@&
    child=$!
    wait "$child"
    code=$?
    [ "$code" -ne 0 ] && [ "$code" -ne 2 ] || exit "$code"
    sleep 2
done
exit 1
"""
#: Starts of a worker in one start of the job, two seconds apart.
TRIES = 60


def plan(launch: Slurm, _given: LaunchInput) -> LaunchPlan:
    """The scripts and the one call of `sbatch`."""
    cores = launch.cores
    words = {
        "headrace": shlex.quote(launch.headrace),
        "folder": shlex.quote(launch.folder),
        "cwd": shlex.quote(launch.cwd),
        "name": shlex.quote(launch.name),
        "root": shlex.quote(launch.root or f"{launch.folder}/root"),
        "port": str(launch.port),
        "days": str(launch.days),
        "joins": str(launch.nodes),
        "tries": str(TRIES),
        "pipeline": shlex.join(launch.pipeline),
    }
    script = _SCRIPT.replace("@run@", _APPLY if launch.pipeline else _WAIT)
    return LaunchPlan(
        (
            File("job.sh", _filled(script, words, f"--cpus-per-task={cores} " if cores else ""), 0o700),
            File("worker.sh", _filled(_WORKER, words, f"--cores {cores} " if cores else ""), 0o700),
        ),
        ((Call(_sbatch(launch), keep="job"),),),
        said="job {job}: its output is in job.log",
    )


def _filled(text: str, words: Mapping[str, str], cores: str) -> str:
    """The text with its marks replaced, all at once: what replaces one is not looked at again."""
    known = {**words, "cores": cores}
    return _MARK.sub(lambda found: known[found[1]], text)


_MARK = re.compile(r"@([a-z]+)@")


def _sbatch(launch: Slurm) -> tuple[str, ...]:
    wanted = {"partition": launch.partition, "account": launch.account, "time": launch.time}
    log = launch.folder.replace("%", "%%")
    return (
        *("sbatch", "--parsable", f"--job-name={known_as(launch)}", f"--nodes={launch.nodes}", "--ntasks-per-node=1"),
        *((f"--cpus-per-task={launch.cores}",) if launch.cores else ("--exclusive",)),
        # A node that is lost takes its worker along; if it is the first, the job begins again.
        *("--no-kill", "--requeue", "--open-mode=append", f"--chdir={launch.folder}", f"--output={log}/job.log"),
        *(f"--{name}={value}" for name, value in wanted.items() if value),
        f"{launch.folder}/job.sh",
    )


def stop(launch: Slurm, answers: Mapping[str, str]) -> tuple[tuple[Call, ...], ...]:
    """Cancel the job that was submitted, by its name where its number was not answered or noted. Raises LaunchError."""
    job = answers.get("job", "")
    if not job:
        return ((Call(("scancel", "--me", f"--jobname={known_as(launch)}")),),)
    found = _JOB.fullmatch(job)
    if found is None:
        raise LaunchError(f"{job[:80]!r} is no number of a job")
    where = (f"--clusters={found[2][1:]}",) if found[2] else ()
    return ((Call(("scancel", *where, found[1])),),)


def address(launch: Slurm) -> str:
    """The job says it when it runs."""
    return f"the-first-node-of-{launch.name}:{launch.port}"
