"""The commands that serve, and those that make a cluster of them.

Like those of `main`, they import what they need when they run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import Application, ClusterFolder, ControllerAddress, Json
from headrace.client import UsageError, check_address, check_pairs, check_without_cluster

Metrics = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there; loopback if no host is given.")
]

LogsFolder = Annotated[
    str, typer.Option(metavar="DIR", help="Keep its log in files there, of bounded size; else below HEADRACE_LOGS.")
]

cluster_app = Application("Make clusters, and let nodes into them.")


def add_to(app: typer.Typer) -> None:
    """Give an application these commands."""
    app.command()(controller)
    app.command()(worker)
    app.add_typer(cluster_app, name="cluster")


def controller(
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where: unix:PATH, or HOST:PORT of a cluster; else HEADRACE_LISTEN.")
    ] = "",
    cluster: ClusterFolder = "",
    root: Annotated[str, typer.Option(metavar="URI", help="Store of the cluster's log; others of it stand by.")] = "",
    metrics: Metrics = "",
    advertise: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where workers find it behind a forwarder.")] = "",
    logs: LogsFolder = "",
    allow_chaos: Annotated[
        bool, typer.Option("--allow-chaos", help="Let `headrace chaos run` on another host kill and freeze it.")
    ] = False,
) -> int:
    """Serve as the controller: plan pipelines, write ledgers."""
    from headrace.client import cluster_folder
    from headrace.controller import main as serve
    from headrace.daemon import logs_folder

    folder = cluster_folder(cluster)
    listen = listen or os.environ.get("HEADRACE_LISTEN", "")
    if listen:
        (check_address if folder else check_without_cluster)("--listen", listen)
    if advertise:
        check_address("--advertise", advertise)
    arguments = ["--listen", listen, "--root", root or os.environ.get("HEADRACE_ROOT", "")]
    arguments += ["--metrics", _metrics_of(metrics, "HEADRACE_CONTROLLER_METRICS")]
    arguments += ["--logs", logs_folder(logs, "controller")]
    arguments += ["--advertise", advertise]
    arguments += ["--allow-chaos"] if allow_chaos else []
    return serve([*arguments, *(["--cluster", folder] if folder else [])])


def worker(
    controller: ControllerAddress = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="The worker's name; else the host's.")] = "",
    cores: Annotated[int, typer.Option(min=0, metavar="N", help="Cores to offer; without it all that it may use.")] = 0,
    label: Annotated[
        list[str], typer.Option("--label", metavar="KEY=VALUE", help="What stages may ask for; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    join: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Join a cluster first, by the token there; - is standard input. Else HEADRACE_JOIN_TOKEN.",
        ),
    ] = "",
    state: Annotated[str, typer.Option(metavar="DIR", help="Where a member keeps its key; else HEADRACE_STATE.")] = "",
    metrics: Metrics = "",
    logs: LogsFolder = "",
    relay_port: Annotated[
        int,
        typer.Option(
            min=-1, max=65535, metavar="PORT", help="UDP port to relay on; without it any, -1: relay for none."
        ),
    ] = 0,
    allow_chaos: Annotated[
        bool, typer.Option("--allow-chaos", help="Let `headrace chaos run` kill, freeze and cut off it and its tasks.")
    ] = False,
) -> int:
    """Serve as a worker: run the tasks that the controller gives it."""
    import socket

    from headrace.cli import usable_cores
    from headrace.daemon import logs_folder, usual_address
    from headrace.worker import main as work
    from headrace.worker.membership import SHOWN, is_token

    if is_token(join):
        raise UsageError(f"--join: {SHOWN}")
    check_pairs("--label", label)
    if not (join or state or os.environ.get("HEADRACE_STATE")):
        for address in usual_address(controller).split(","):
            check_without_cluster("--controller", address.strip())
    arguments = ["--name", name or socket.gethostname(), "--cores", str(cores or usable_cores())]
    arguments += ["--controller", controller or os.environ.get("HEADRACE_CONTROLLER", "")]
    arguments += [argument for item in label for argument in ("--label", item)]
    if folder := state or os.environ.get("HEADRACE_STATE", ""):
        arguments += ["--state", folder]
    called = name or socket.gethostname()
    arguments += ["--metrics", _metrics_of(metrics, "HEADRACE_WORKER_METRICS"), "--relay-port", str(relay_port)]
    arguments += ["--allow-chaos"] if allow_chaos else []
    return work([*arguments, "--join", join, "--logs", logs_folder(logs, f"worker-{called}")])


def _metrics_of(given: str, variable: str) -> str:
    """Where metrics are to be served: of the option, else of the environment, else nowhere."""
    address = given or os.environ.get(variable, "")
    if address:
        check_address("--metrics" if given else variable, address, host_needed=False)
    return address


@cluster_app.command("init")
def cluster_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make; keep it with the controllers.")],
    controller: Annotated[
        list[str],
        typer.Option("--controller", metavar="HOST:PORT", help="Where workers find the controller; once for each one."),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="The cluster's name.")] = "headrace",
) -> int:
    """Make a cluster: its authority and keys. Prints a token for the first worker."""
    from headrace.client import init

    return init(folder, name, controller)


@cluster_app.command("token")
def cluster_token(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of `headrace cluster init`.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the worker is called; else its key gives it a name.")
    ] = "",
    days: Annotated[int, typer.Option(min=1, metavar="N", help="Days for which the token is good.")] = 1,
) -> int:
    """Print a token with which one more worker can join."""
    from headrace.client import token

    return token(folder, name, days)


@cluster_app.command("operator")
def cluster_operator(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of `headrace cluster init`.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make, for that operator's machine.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What the operator is called.")],
) -> int:
    """Make a certificate for one more operator, and the folder with which he asks."""
    from headrace.client import operator

    return operator(folder, out, name)


@cluster_app.command("expel")
def cluster_expel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, as in its certificate.")],
    operator: Annotated[bool, typer.Option("--operator", help="NAME is an operator's, not a worker's.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Expel it. Without this, only say what would end.")] = False,
    controller: ControllerAddress = "",
    cluster: ClusterFolder = "",
    json: Json = False,
) -> int:
    """Revoke the certificates of a worker or an operator: it is cut off at once and refused from then on."""
    from headrace.cli.commands.expulsion import expel
    from headrace.client import controller_at

    return expel(controller_at(controller, cluster), name, operator=operator, agreed=yes, as_json=json)
