"""Options that several groups of commands have."""

from __future__ import annotations

from typing import Annotated

import typer

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
Canary = Annotated[
    str,
    typer.Option(
        "--canary",
        metavar="SHARE",
        help="Run both versions here on a share of the fragments, such as 2%, and show the verdicts that differ.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="With --canary: then make the change; without it none is made.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="With --canary: run the code that the dataset's ledger names.")
]
