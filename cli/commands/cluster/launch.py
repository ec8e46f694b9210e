"""The group `launch`: controllers and workers on Slurm, hosts by ssh, Ray and Kubernetes."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.client.launch import Launch

Nodes = Annotated[int, typer.Option(min=1, metavar="N", help="Workers, one a node.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print scripts, manifest and calls; start nothing.")]
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the launch; for Slurm one that all nodes share.")]
Port = Annotated[
    int, typer.Option(min=0, max=65534, metavar="PORT", help="The controller's port; nodes join on the next. 0: any.")
]
Pipeline = Annotated[
    list[str],
    typer.Argument(metavar="-- PIPELINE.py", help="Arguments of `headrace apply`; when it ends, the launch ends."),
]
_FOLDER = Path("launch")


@dataclass(frozen=True, slots=True)
class Common:
    """What every launch is asked."""

    folder: Folder = _FOLDER
    name: str = typer.Option("headrace", metavar="NAME", help="Name of the launch, its cluster and its workers.")
    cores: int = typer.Option(0, min=0, metavar="N", help="Cores of each worker; default: all usable cores.")
    headrace: str = typer.Option("headrace", metavar="PATH", help="The command `headrace` on the nodes.")
    port: Port = 7420
    root: str = typer.Option("", metavar="URI", help="Store of the cluster's log, which all nodes reach.")
    days: int = typer.Option(7, min=1, max=365, metavar="N", help="Days until tokens expire.")

    def given(self, nodes: int, pipeline: list[str]) -> dict[str, Any]:
        """These facts of a launch, with paths from here."""
        root = str(Path(self.root).absolute()) if self.root and "://" not in self.root else self.root
        more = {"folder": str(self.folder.absolute()), "root": root, "cwd": os.getcwd()}
        return asdict(self) | more | {"nodes": nodes, "pipeline": tuple(pipeline)}


@dataclass(frozen=True, slots=True)
class OnSlurm(Common):
    """The same; many a job may share a host."""

    port: Port = 0


def add_to(app: typer.Typer, group: typer.Typer) -> None:
    """Give an application the group `launch`."""
    for command in (slurm, ssh, ray, kubernetes, down):
        group.command()(command)
    app.add_typer(group, name="launch")


def slurm(
    nodes: Nodes,
    pipeline: Pipeline = [],  # noqa: B006 - typer copies it
    partition: str = typer.Option("", metavar="NAME", help="The partition."),
    account: str = typer.Option("", metavar="NAME", help="The account."),
    time: str = typer.Option("", metavar="TIME", help="The job's time limit, such as 12:00:00."),
    *,
    common: OnSlurm,
    dry_run: DryRun = False,
) -> int:
    """Submit a job: the controller on its first node, a worker on each."""
    from headrace.client.launch import Slurm

    given = common.given(nodes, pipeline)
    return _launch("slurm", Slurm(**given, partition=partition, account=account, time=time), dry_run=dry_run)


def ssh(
    host: list[str] = typer.Option(..., "--host", metavar="HOST", help="HOST or USER@HOST; repeatable."),
    pipeline: Pipeline = [],  # noqa: B006 - typer copies it
    ssh_config: str = typer.Option("", metavar="FILE", help="Configuration for ssh; default: its own."),
    advertise: str = typer.Option("", metavar="ADDRESS", help="The first host's address for the others."),
    *,
    common: Common,
    dry_run: DryRun = False,
) -> int:
    """Start a controller on the first host and a worker on each; their host keys must be known."""
    from headrace.client.launch import Ssh

    config = ssh_config and str(Path(ssh_config).absolute())
    given = common.given(len(host), pipeline)
    return _launch("ssh", Ssh(**given, hosts=tuple(host), advertise=advertise, ssh_config=config), dry_run=dry_run)


def ray(
    nodes: Nodes,
    pipeline: Pipeline = [],  # noqa: B006 - typer copies it
    address: str = typer.Option("auto", metavar="ADDRESS", help="The Ray cluster."),
    python: str = typer.Option("python3", metavar="PATH", help="A Python that has Ray."),
    *,
    common: Common,
    dry_run: DryRun = False,
) -> int:
    """Start actors in a placement group of a Ray cluster; a lost one starts again on another node."""
    from headrace.client.launch import Ray

    given = common.given(nodes, pipeline)
    return _launch("ray", Ray(**given, address=address, python=python), dry_run=dry_run)


def kubernetes(
    nodes: Nodes,
    image: str = typer.Option(metavar="IMAGE", help="The image; --dry-run prints a Containerfile."),
    pipeline: Pipeline = [],  # noqa: B006 - typer copies it
    namespace: str = typer.Option("default", metavar="NAME", help="The namespace."),
    memory: str = typer.Option("4Gi", metavar="SIZE", help="Memory limit of each pod."),
    credentials: str = typer.Option("", metavar="NAME", help="A Secret with variables for stores."),
    *,
    common: Common,
    dry_run: DryRun = False,
) -> int:
    """Apply a manifest: a controller, workers, Secrets, and a job for the pipeline."""
    from headrace.client.launch import Kubernetes

    given = common.given(nodes, pipeline)
    asked = Kubernetes(**given, image=image, namespace=namespace, memory=memory, credentials=credentials)
    return _launch("kubernetes", asked, dry_run=dry_run)


def down(folder: Folder = _FOLDER) -> int:
    """End what a launch started; the datasets and the folder's logs stay."""
    from headrace.client.launch import end_launch

    return end_launch(folder.absolute())


def _launch(launcher: str, asked: Launch, *, dry_run: bool) -> int:
    from headrace.client.launch import start_launch

    return start_launch(launcher, asked, dry_run=dry_run)
