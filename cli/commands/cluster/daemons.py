"""The commands that start daemons, and the group `cluster`.

They import what they need when they run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.commands.cluster.metrics import metrics
from headrace.cli.ui import ClusterFolder, ControllerAddress, ControllerOptions, Json
from headrace.client import UsageError, check_address, check_pairs, check_without_cluster

#: Cores that a controller believes a worker (`controller/core/cluster/event_checks.py`).
CORES_MAX = 1 << 16
#: Days of the longest token: a century.
DAYS_MAX = 36_500

Metrics = Annotated[str, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics; default host: loopback.")]

LogsFolder = Annotated[
    str, typer.Option(metavar="DIR", help="Folder for log files of bounded size; default: below HEADRACE_LOGS.")
]


def add_to(app: typer.Typer, cluster: typer.Typer) -> None:
    """Give an application these commands, and the group `cluster`."""
    app.command()(controller)
    app.command()(worker)
    app.command()(metrics)
    for command in (cluster_init, cluster_token, cluster_operator, cluster_renew, cluster_expel):
        cluster.command(command.__name__.removeprefix("cluster_"))(command)
    app.add_typer(cluster, name="cluster")


def controller(
    listen: str = typer.Option(
        "", metavar="ADDRESS", help="Address: unix:PATH, or HOST:PORT with --cluster; default: HEADRACE_LISTEN."
    ),
    cluster: ClusterFolder = "",
    root: str = typer.Option("", metavar="URI", help="Store of the cluster's log; further controllers on it stand by."),
    metrics: Metrics = "",
    page: str = typer.Option(
        "", metavar="HOST:PORT", help="Serve a page for browsers of this host; its log says where."
    ),
    advertise: str = typer.Option("", metavar="HOST:PORT", help="Address for workers, if it is behind a forwarder."),
    logs: LogsFolder = "",
    allow_chaos: bool = typer.Option(
        False, "--allow-chaos", help="Allow `headrace chaos run` on another host to kill and freeze it."
    ),
) -> int:
    """Start a controller: it plans pipelines and writes ledgers."""
    from headrace.client import cluster_folder
    from headrace.controller import main as serve
    from headrace.daemon import logs_folder

    folder = cluster_folder(cluster)
    listen = listen or os.environ.get("HEADRACE_LISTEN", "")
    if listen:
        (check_address if folder else check_without_cluster)("--listen", listen)
    if advertise:
        check_address("--advertise", advertise)
    if page:
        check_address("--page", page)
    arguments = ["--listen", listen, "--root", root or os.environ.get("HEADRACE_ROOT", "")]
    arguments += ["--metrics", _metrics_of(metrics, "HEADRACE_CONTROLLER_METRICS")]
    arguments += ["--logs", logs_folder(logs, "controller")]
    arguments += ["--advertise", advertise, "--page", page]
    arguments += ["--allow-chaos"] if allow_chaos else []
    return serve([*arguments, *(["--cluster", folder] if folder else [])])


def worker(
    controller: ControllerAddress = "",
    name: str = typer.Option("", metavar="NAME", help="The worker's name; default: the host name."),
    cores: int = typer.Option(0, min=0, max=CORES_MAX, metavar="N", help="Cores to offer; default: all usable cores."),
    label: list[str] = typer.Option(
        [], "--label", metavar="KEY=VALUE", help="A label for placement of stages; repeatable."
    ),
    join: str = typer.Option(
        "",
        metavar="FILE",
        help="Join a cluster by the token in this file; - is standard input. Default: HEADRACE_JOIN_TOKEN.",
    ),
    state: str = typer.Option("", metavar="DIR", help="Folder of the member's key; default: HEADRACE_STATE."),
    metrics: Metrics = "",
    logs: LogsFolder = "",
    relay_port: int = typer.Option(
        0, min=-1, max=65535, metavar="PORT", help="UDP port of its relay; default: any; -1: no relay."
    ),
    drain: float = typer.Option(
        25.0, min=0, metavar="SECONDS", help="To hand on its tasks before it ends; 0: it does not."
    ),
    notice: str = typer.Option(
        "", metavar="FILE|URL", help="Hand on its tasks and end once this file is there, or this URL says so."
    ),
    idle: float = typer.Option(0.0, min=0, metavar="SECONDS", help="End after so long without a task; 0: never."),
    allow_chaos: bool = typer.Option(
        False, "--allow-chaos", help="Allow `headrace chaos run` to kill, freeze and cut off the worker and its tasks."
    ),
) -> int:
    """Start a worker: it runs the tasks of a controller. At a signal it hands them on before it ends."""
    import socket

    from headrace.client import usable_cores
    from headrace.daemon import logs_folder, usual_address
    from headrace.worker import main as work
    from headrace.worker.membership import SHOWN, is_token

    if is_token(join):
        raise UsageError(f"--join: {SHOWN}")
    if "://" in notice and not notice.startswith("http://"):
        raise UsageError("--notice: a metadata service is asked over http:// alone; give such a URL, or a file")
    check_pairs("--label", label)
    if not (join or state or os.environ.get("HEADRACE_STATE")):
        for address in usual_address(controller).split(","):
            check_without_cluster("--controller", address.strip())
    arguments = ["--name", name or socket.gethostname(), "--cores", str(cores or usable_cores())]
    arguments += ["--controller", controller or os.environ.get("HEADRACE_CONTROLLER", "")]
    arguments += [argument for item in label for argument in ("--label", item)]
    if folder := state or os.environ.get("HEADRACE_STATE", ""):
        arguments += ["--state", folder]
    arguments += _facts_arguments()
    called = name or socket.gethostname()
    arguments += ["--metrics", _metrics_of(metrics, "HEADRACE_WORKER_METRICS"), "--relay-port", str(relay_port)]
    arguments += ["--allow-chaos"] if allow_chaos else []
    arguments += ["--drain", str(drain), "--notice", notice, "--idle", str(idle)]
    return work([*arguments, "--join", join, "--logs", logs_folder(logs, f"worker-{called}")])


def _facts_arguments() -> list[str]:
    """What was measured of this host and helps to place tasks."""
    from headrace.cli.host import facts_for_others
    from headrace.controller.core.plan import PLACEMENT_FACTS

    told = facts_for_others()
    return [word for fact in PLACEMENT_FACTS if fact in told for word in ("--fact", f"{fact}={told[fact]}")]


def _metrics_of(given: str, variable: str) -> str:
    """Where metrics are to be served: of the option, else of the environment, else nowhere."""
    address = given or os.environ.get(variable, "")
    if address:
        check_address("--metrics" if given else variable, address, host_needed=False)
    return address


def cluster_init(
    folder: Path = typer.Argument(metavar="DIR", help="The folder to create; keep it with the controllers."),
    controller: list[str] = typer.Option(
        ..., "--controller", metavar="HOST:PORT", help="Address of a controller for workers; repeatable."
    ),
    name: str = typer.Option("headrace", metavar="NAME", help="The cluster's name."),
) -> int:
    """Create a cluster: authority and keys. Prints a token for the first worker."""
    from headrace.client import init

    return init(folder, name, controller)


def cluster_token(
    folder: Path = typer.Argument(metavar="DIR", help="The folder of `headrace cluster init`."),
    name: str = typer.Option(
        "", metavar="NAME", help="The worker's name, or the beginning of several; default: worker-KEY."
    ),
    days: int = typer.Option(1, min=1, max=DAYS_MAX, metavar="N", help="Days until the token expires."),
    nodes: int = typer.Option(
        1, min=1, max=4096, metavar="N", help="Workers that it lets in, each with a key of its own."
    ),
) -> int:
    """Print a token for one more worker, or several."""
    from headrace.client import token

    return token(folder, name, days, nodes)


def cluster_operator(
    folder: Path = typer.Argument(metavar="DIR", help="The folder of `headrace cluster init`."),
    out: Path = typer.Argument(metavar="OUT", help="The folder to create, for the operator's machine."),
    name: str = typer.Option(metavar="NAME", help="The person's name."),
    role: str = typer.Option(
        "operator",
        metavar="operator|user|viewer",
        help="What he may do: anything; apply pipelines and change those; or look.",
    ),
) -> int:
    """Create the folder and certificate of one more operator, user or viewer."""
    from headrace.client import operator

    return operator(folder, out, name, role)


def cluster_renew(
    folder: Path = typer.Argument(metavar="DIR", help="The folder of `headrace cluster init`."),
) -> int:
    """Renew the certificates of the controller and of the folder's operator, for a year."""
    from headrace.client import renew

    return renew(folder)


def cluster_expel(
    name: str = typer.Argument(metavar="NAME", help="The worker's name, as in its certificate."),
    operator: bool = typer.Option(False, "--operator", help="NAME is an operator."),
    role: str = typer.Option("", metavar="operator|user|viewer", help="NAME is a person of this role."),
    yes: bool = typer.Option(False, "--yes", help="Expel the member; without it only say what would end."),
    *,
    on: ControllerOptions,
    json: Json = False,
) -> int:
    """Revoke the certificates of a worker or an operator: it is cut off at once and refused from then on."""
    from headrace.cli.commands.cluster.reconfigure import expel

    role = role or ("operator" if operator else "worker")
    return expel(on.at(), name, role=role, agreed=yes, as_json=json)
