"""What the process of a worker is started with."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

#: Instead of a port: this worker relays for nobody.
NO_RELAY = -1


def _fact(text: str) -> tuple[str, float]:
    """A name and a number, as NAME=NUMBER."""
    name, _, value = text.partition("=")
    return name, float(value)


def worker_parser() -> argparse.ArgumentParser:
    """The parser of its command line."""
    parser = argparse.ArgumentParser(prog="headrace worker", description="Run the tasks of one node.")
    parser.add_argument(
        "--controller", default="", help="the controllers, by commas; else the cluster's, else this user's on this host"
    )
    parser.add_argument("--name", default=socket.gethostname(), help="this worker's name; each has its own")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores to offer")
    parser.add_argument("--label", action="append", default=[], help="a label of this worker, such as disk=ssd")
    parser.add_argument("--fact", action="append", type=_fact, default=[], help="what was measured of this host")
    parser.add_argument(
        "--join", default="", metavar="FILE", help="become a member of a cluster first, by the token there"
    )
    parser.add_argument("--state", type=Path, help="the folder that holds this member's key and certificate")
    parser.add_argument("--logs", default="", help="a folder in which it keeps its log, and those of its tasks")
    parser.add_argument("--metrics", default="", help="serve metrics for Prometheus there, as HOST:PORT")
    parser.add_argument("--relay-port", type=int, default=0, help=f"UDP port to relay on; 0: any, {NO_RELAY}: do not")
    parser.add_argument("--allow-chaos", action="store_true", help="let operators do faults to it and its tasks")
    parser.add_argument("--drain", type=float, default=0.0, help="seconds to hand on its tasks before it ends")
    parser.add_argument("--notice", default="", help="a file or URL that says that this host will be taken away")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds without a task after which it ends; 0: never")
    parser.add_argument("--controller-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    return parser
