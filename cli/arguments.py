"""Arguments that many commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else.")]
ControllerAddress = Annotated[
    str,
    typer.Option(
        "--controller", metavar="ADDRESS", help="The controller; else HEADRACE_CONTROLLER, else this user's here."
    ),
]
ClusterFolder = Annotated[
    str, typer.Option("--cluster", metavar="DIR", help="The cluster's folder, for mutual TLS; else HEADRACE_CLUSTER.")
]
