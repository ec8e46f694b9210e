"""Starts and ends actors of Ray that hold a controller and workers. Runs in a Python that has Ray, and needs no more.

    python ray_driver.py start < ORDER
    python ray_driver.py stop < ORDER

The actors are pickled with this file, so that the nodes need the command `headrace` and not its package in Ray's own
environment. A node joins with a token of its own, made for it by the controller's actor; nothing is written to a log.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

#: A share of what only the head node of a Ray cluster has.
ON_HEAD = {"node:__internal_head__": 0.001}
#: Seconds: a controller or a placement group comes up; a worker looks after itself; a process ends.
START_S, LOOK_S, END_S = 120.0, 2.0, 20.0
#: Characters of what Ray says of a cluster that is not there.
SAID_MAX = 200
#: prctl's PR_SET_PDEATHSIG.
DEATH_SIGNAL = 1
#: A program that gets SIGTERM when the actor's process dies (PR_SET_PDEATHSIG).
WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"


class Process:
    """What both kinds of actors do: a folder of one's own, and a process that ends with the actor."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = tempfile.mkdtemp(prefix="headrace-")
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, *arguments: str, said: bytes = b"") -> None:
        """Start `headrace`; it ends when this process does, whatever ends that."""
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - no shell reads it
                [sys.executable, "-c", WITH_PARENT, self.order["headrace"], *arguments],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(said)

    def alive(self) -> bool:
        """Whether the process lives; a controller's actor is of no use without it."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """The last lines that the process wrote."""
        with open(os.path.join(self.folder, "log"), "rb") as file:
            return file.read()[-2000:].decode(errors="replace")

    def end(self) -> None:
        """End the process, and remove what it kept."""
        if self.process is not None and self.alive():
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class ControllerActor(Process):
    """Holds the controller, and makes a token for each node."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__(order)
        import ray

        port = order["port"] or free_port()
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        cluster = os.path.join(self.folder, "cluster")
        os.mkdir(cluster, 0o700)
        described = json.loads(order["cluster"]["cluster.json"])
        texts = {**order["cluster"], "cluster.json": json.dumps({**described, "controllers": [self.address]})}
        for name, text in texts.items():
            handle = os.open(os.path.join(cluster, os.path.basename(name)), os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("latin-1"))
        root = ("--root", order["root"]) if order["root"] else ()
        listen = ("--listen", f"0.0.0.0:{port}", "--advertise", self.address)
        self.begin("controller", "--cluster", "cluster", *listen, *root)
        waiting = threading.Event()
        for _ in range(int(START_S * 5)):
            if "join on port" in self.log():
                return
            if not self.alive():
                break
            waiting.wait(0.2)
        raise RuntimeError(f"the controller did not start: {self.log()}")

    def where(self) -> str:
        """Its address."""
        return self.address

    def admit(self) -> tuple[str, str]:
        """Its address, and a token for one node."""
        if not self.alive():
            os._exit(1)
        words = [self.order["headrace"], "cluster", "token", "cluster", "--days", str(self.order["days"])]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - no shell reads it
        return self.address, done.stdout.strip()


class WorkerActor(Process):
    """Holds a worker; joins again where the worker or the controller is another one."""

    def __init__(self, order: dict[str, Any], controller: Any) -> None:
        super().__init__(order)
        self.controller = controller
        self.known = ""
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()

    def keep(self) -> None:
        """Look, now and again, whether the worker lives and its controller is where it was."""
        import ray

        number = 0
        while not self.ending.is_set():
            with contextlib.suppress(Exception):
                if ray.get(self.controller.where.remote(), timeout=30) != self.known or not self.alive():
                    if self.process is not None and self.alive():
                        self.process.kill()
                    number += 1
                    self.known, token = ray.get(self.controller.admit.remote(), timeout=90)
                    cores = ("--cores", str(self.order["cores"])) if self.order["cores"] else ()
                    self.begin("worker", "--join", "-", "--state", f"member{number}", *cores, said=token.encode())
            self.ending.wait(LOOK_S)

    def end(self) -> None:
        """End the worker for good."""
        self.ending.set()
        super().end()


def free_port() -> int:
    """A port whose next one is free too, as far as can be known."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            with contextlib.suppress(OSError):
                second.bind(("", first.getsockname()[1] + 1))
                return int(first.getsockname()[1])


def start(order: dict[str, Any]) -> None:
    """A placement group of a bundle for the controller and one for each worker, on as many nodes as there are.

    The controller is on the head node, without which there is no Ray cluster: so its address stays.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    cores = order["cores"] or 1
    bundles: list[dict[str, float]] = [ON_HEAD, *({"CPU": cores} for _ in range(order["nodes"]))]
    group = placement_group(bundles, strategy="SPREAD", name="headrace", lifetime="detached")
    if not group.wait(START_S):
        ray.util.remove_placement_group(group)
        sys.exit(f"the Ray cluster has no room for {order['nodes']} workers of {cores} CPU within {START_S:.0f} s")

    def made(kind: type[Any], name: str, bundle: int, *arguments: Any, **needs: Any) -> Any:
        placed = PlacementGroupSchedulingStrategy(group, bundle, placement_group_capture_child_tasks=False)
        options = {"name": name, "lifetime": "detached", "max_restarts": -1, "max_task_retries": -1, **needs}
        return ray.remote(kind).options(scheduling_strategy=placed, **options).remote(order, *arguments)

    controller = made(ControllerActor, "controller", 0, num_cpus=0, resources=ON_HEAD)
    address = ray.get(controller.where.remote(), timeout=START_S)
    order = {name: value for name, value in order.items() if name != "cluster"}
    for number in range(order["nodes"]):
        made(WorkerActor, f"worker-{number}", 1 + number, controller, num_cpus=cores)
    print(address)


def stop() -> None:
    """End the actors of this namespace, workers first, and their placement group."""
    import ray

    named = sorted(
        (item["name"] for item in ray.util.list_named_actors(all_namespaces=True) if item["namespace"] == here()),
        reverse=True,
    )
    for name in named:
        with contextlib.suppress(Exception):
            actor = ray.get_actor(name)
            with contextlib.suppress(Exception):
                ray.get(actor.end.remote(), timeout=2 * END_S)
            ray.kill(actor)
    waiting = threading.Event()
    for _ in range(int(END_S * 5)):
        left = [name for name in named if is_there(name)]
        if not left:
            break
        waiting.wait(0.2)
    else:
        sys.exit(f"these actors do not end: {', '.join(left)}")
    with contextlib.suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group("headrace"))


def is_there(name: str) -> bool:
    """Whether an actor of this name lives in this namespace."""
    import ray

    with contextlib.suppress(ValueError):
        ray.get_actor(name)
        return True
    return False


def here() -> str:
    """The namespace of this driver."""
    import ray

    return str(ray.get_runtime_context().namespace)


def main() -> int:
    """Connect to Ray, and do what is said."""
    # A launch that is killed makes nothing more: what it has made is ended by its folder.
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
    order = json.load(sys.stdin)
    import ray

    try:
        ray.init(
            address=order["address"], namespace=f"headrace-{order['name']}", log_to_driver=False, logging_level="error"
        )
    except Exception as error:  # whatever a cluster is not there for
        said = " ".join(str(error).split())[:SAID_MAX].rstrip(".")
        raise SystemExit(
            f"no Ray cluster at {order['address']!r}: {said}; start one (`ray start --head`) or give --address"
        ) from error
    if sys.argv[1:] == ["start"]:
        start(order)
    else:
        stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
