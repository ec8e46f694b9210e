"""Options that several groups of commands have. A dataclass of options stands for each of its fields in a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.client import ControllerAt

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
ControllerAddress = Annotated[
    str,
    typer.Option(
        "--controller",
        metavar="ADDRESS",
        help="The controller; default: HEADRACE_CONTROLLER, else this user's on this host.",
    ),
]
ClusterFolder = Annotated[
    str,
    typer.Option("--cluster", metavar="DIR", help="The cluster's folder, for mutual TLS; default: HEADRACE_CLUSTER."),
]


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The controller that is asked."""

    controller: ControllerAddress = ""
    cluster: ClusterFolder = ""

    def at(self) -> ControllerAt:
        """Where it is. Raises CliError."""
        from headrace.client import controller_at

        return controller_at(self.controller, self.cluster)


@dataclass(frozen=True, slots=True)
class CanaryOptions:
    """What is asked of a canary; `share` is "" for none."""

    share: Annotated[
        str,
        typer.Option(
            "--canary",
            metavar="SHARE",
            help="Run both versions here on a share of the fragments, such as 2%, and show the verdicts that differ.",
        ),
    ] = ""
    yes: Annotated[
        bool, typer.Option("--yes", help="With --canary: then make the change; without it none is made.")
    ] = False
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="With --canary: run the code that the dataset's ledger names.")
    ] = False
