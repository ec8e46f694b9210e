"""docs/guide/cluster.md brings up three nodes from nothing: its commands are run as they stand, each on its node."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.cluster.certificates import write_secret
from tests.kits.run.kill import headrace
from tests.kits.run.netns import Cluster, Host, Net, wait_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "cluster.md"
DAEMONS = {"controller": "serves on", "worker": ""}


@dataclass(frozen=True)
class Step:
    node: str
    command: str


def steps() -> Iterator[Step]:
    """The lines of the page's blocks that name a node."""
    for node, block in re.findall(r"^```sh (\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            yield Step(node, line)


class Reader:
    """Someone who follows the page, in a folder of their own on each node; tokens are carried from one to the next."""

    def __init__(self, folder: Path, net: Net) -> None:
        self.folder, self.net = folder, net
        self.cluster = Cluster(net, folder)
        self.said: list[tuple[str, str]] = []
        for name in ("ctl", "one", "two"):
            host = net.host(name)
            (folder / host.name).mkdir()

    def follow(self, step: Step) -> None:
        host = self.net.hosts[step.node]
        words = step.command.split()
        assert words[0] == "headrace", step.command
        if words[1] in DAEMONS:
            self._start(host, words[1:])
            return
        shell = step.command.replace("headrace", " ".join(headrace()), 1)
        done = subprocess.run(
            host.command("bash", "-ec", shell), cwd=self.folder / host.name, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{step}: {done.stderr}"
        self.said.append((step.command, done.stdout))
        if words[1:3] == ["cluster", "token"]:
            for node in ("one", "two"):
                write_secret(self.folder / self.net.hosts[node].name / "token", done.stdout.encode())

    def output(self, words: str) -> str:
        """What the one command with these words showed."""
        (said,) = [said for command, said in self.said if words in command]
        return said

    def _start(self, host: Host, words: list[str]) -> None:
        log = self.folder / f"{host.name}.log"
        daemon = self.cluster.start(host, host.name, *words, cwd=self.folder / host.name)
        assert daemon.log == log
        if host.name == "ctl":
            daemon.wait_for("serves on")
        else:
            count = sum(name != "ctl" for name in self.cluster.daemons)
            files = str(self.folder / "ctl" / "cluster")
            status = headrace("status", "--cluster", files, "--json")
            ctl = self.net.hosts["ctl"]

            def registered() -> bool:
                answer = subprocess.run(ctl.command(*status), capture_output=True, text=True, timeout=300)
                return len(json.loads(answer.stdout)["workers"]) == count

            wait_for(registered, f"{count} workers registered")


@pytest.mark.slow
def test_the_page_brings_up_three_nodes_and_runs_a_pipeline(texts: Path, tmp_path: Path) -> None:
    net = Net()
    reader = Reader(tmp_path, net)
    try:
        for node in ("ctl", "one", "two"):
            (tmp_path / node / "examples").symlink_to(ROOT / "examples")
            (tmp_path / node / "corpus").symlink_to(texts)
        commands = list(steps())
        nodes = ["ctl", "ctl", "ctl", "one", "ctl", "two"]
        assert [step.node for step in commands] == nodes + ["ctl"] * (len(commands) - len(nodes))
        for step in commands:
            reader.follow(step)
        assert "nothing was started" in reader.output("--dry-run")
        ran = reader.output("status plain")
        assert re.search(r"read\.0->write\.0\s+one\s+quic\s+two", ran), ran
        assert "completed" in ran
        assert "the pipeline is completed" in reader.output("headrace logs")
        assert "worker one is drained" in reader.output("drain one --wait")
        assert "worker one accepts tasks again" in reader.output("drain one --back")
    finally:
        reader.cluster.close()
        net.close()
