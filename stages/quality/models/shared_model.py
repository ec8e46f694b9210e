"""The stage that scores texts by a model, and its end of the connection to the process that holds the model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.daemon import NotPrivateError, check_socket, runtime_folder, short_path
from headrace.pipeline import PipelineError
from headrace.stages.quality.models.model_host import is_ours, receive, send
from headrace.stages.quality.models.models import PACKAGES
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import Rule, drop, tag

#: Seconds that a model may take to load, and a batch to be scored.
LOAD_S_MAX = 600.0
SCORE_S_MAX = 300.0


class ModelScore(Transform):
    """Filters texts by a model's score, or writes it into a column."""

    judges = True

    def __init__(
        self,
        name: str,
        kind: str,
        score: str,
        model: str,
        files: list[str],
        digests: list[str],
        options: dict[str, Any],
        least: float | None,
        most: float | None,
        tag: bool = False,
    ) -> None:
        missing = [package for package in PACKAGES[kind] if importlib.util.find_spec(package) is None]
        if missing:
            raise PipelineError(f'stage "{name}" needs {missing[0]}: pip install "headrace[scores]"')
        self.name = name
        self.score = score
        self.least, self.most = least, most
        self.tag = tag
        self._model = SharedModel(name, kind, model, dict(zip(files, digests, strict=True)), options)

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts beyond a limit; or all of it, tagged."""
        texts: Any = text_of(batch, self.name).to_pylist()
        scores = {self.score: self._model.scores(texts)}
        return tag(batch, self.name, scores) if self.tag else drop(batch, self.name, self.rules(scores))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for; what is no number is below every limit."""
        found = np.asarray(scores[self.score], np.float64)
        low = np.zeros(len(found), np.bool_) if self.least is None else ~(found >= self.least)
        high = np.zeros(len(found), np.bool_) if self.most is None else ~(found <= self.most)
        return [(f"{self.score} too low", low), (f"{self.score} too high", high)]


class SharedModel:
    """A model in a process that all tasks of this host share; connected at the first text."""

    def __init__(self, stage: str, kind: str, path: str, digests: dict[str, str], options: dict[str, Any]) -> None:
        self._stage = stage
        self._path = path
        self._order = json.dumps({"kind": kind, "path": path, "digests": digests, "options": options})
        same = json.dumps([kind, sorted(digests.values()), options, sys.executable], sort_keys=True)
        #: Where the process that has the model is found.
        self.socket = runtime_folder() / f"model-{hashlib.sha256(same.encode()).hexdigest()[:32]}.sock"
        self._connection: socket.socket | None = None

    def scores(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """`[texts]`. RuntimeError where the model's process dies on them twice, or the library raises."""
        if not texts:
            return np.zeros(0)
        for last in (False, True):
            try:
                return self._ask(texts)
            except OSError as error:
                self.close()
                if last:
                    raise RuntimeError(f"the process of {self._path} ended while it scored: {error}") from error
        raise AssertionError

    def close(self) -> None:
        """Let the connection go; the next text makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, texts: list[str]) -> npt.NDArray[np.float64]:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.settimeout(SCORE_S_MAX)
        send(self._connection, {"texts": texts})
        answer = receive(self._connection)
        if answer is None:
            raise ConnectionError("it closed the connection")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return np.frombuffer(answer["scores"], np.float64)

    def _connect(self) -> socket.socket:
        """A connection to the process that has the model, started if there is none. Raises PipelineError."""
        deadline = time.monotonic() + LOAD_S_MAX
        while time.monotonic() < deadline:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(max(1.0, deadline - time.monotonic()))
            try:
                check_socket(self.socket)
                connection.connect(short_path(self.socket))
                if not is_ours(connection):
                    raise PipelineError(f'stage "{self._stage}": another user holds the socket {self.socket}')
                hello = receive(connection)
            except NotPrivateError as error:
                connection.close()
                raise PipelineError(f'stage "{self._stage}": {error}') from error
            except (ConnectionError, TimeoutError, FileNotFoundError):
                hello = None
            if hello is not None:
                if hello["problem"]:
                    connection.close()
                    raise PipelineError(f'stage "{self._stage}": {hello["problem"]}')
                return connection
            connection.close()
            self._start(deadline - time.monotonic())
        raise PipelineError(f'stage "{self._stage}": {self._path} was not loaded within {LOAD_S_MAX:.0f} s')

    def _start(self, timeout_s: float) -> None:
        """Start the process that has the model, or find that another task was faster; it listens when this returns."""
        # A session of its own: it outlives the task that started it, for the others.
        started = subprocess.run(  # noqa: S603 (our own module and interpreter)
            [sys.executable, "-P", "-m", "headrace.stages.quality.models.model_host", str(self.socket), self._order],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=max(1.0, timeout_s),
            check=False,
        )
        if started.returncode:
            raise PipelineError(
                f'stage "{self._stage}": the process for {self._path} does not start (exit code {started.returncode}); '
                "try: python -m headrace.stages.quality.models.model_host"
            )
