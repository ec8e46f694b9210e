"""How hypothesis searches: the same examples in each run of the suite, new ones where a search is asked for.

The suite must say the same of the same tree each time. `--hypothesis-profile=search`, which `make search` gives,
draws fresh examples, ten times as many; what it finds becomes an `@example` of the test.

And what runs beside what, where pytest-xdist runs the suite in three processes, as `make suite` has it: one begins with
the tests that start whole runs and clusters, the others with those that are one process, until they meet. So for much
of the time there is one whole run at a time, and no process is idle at the end.

And that byte code is kept, as an installation has it, also where PYTHONDONTWRITEBYTECODE is set: else each program that
a test starts compiles a hundred modules. And that this tree is what is installed. And which signals are heard. A shell
without job control has what it starts in the background ignore Ctrl-C, and what that starts in turn. The programs that
tests start are to meet signals as a user's do, however the suite was started.
"""

import gc
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

#: Folders whose tests start whole runs and clusters, those that take longest first.
WHOLE_RUNS = ("tests/live/", "tests/run/", "tests/hosts/", "tests/cli/")

#: Signals that tests send to programs which they have started.
SENT = (signal.SIGINT, signal.SIGTERM)


def be_heard() -> None:
    """Have programs that are started from now on meet these signals as usual.

    A signal with a handler has its usual effect again on a program that is started; an ignored one stays ignored. The
    handler does nothing, so that the suite itself goes on ignoring what it was started to ignore.
    """
    for number in SENT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def check_installation() -> None:
    """Refuse an editable installation that is older than `setup.py`, by which `import headrace` finds nothing."""
    if importlib.util.find_spec("headrace.version") is None:
        pytest.exit("install the package again: .venv/bin/python -m pip install --no-deps -e .", returncode=4)


def keep_byte_code() -> None:
    """Have this process, and the programs that it starts, keep what they compile."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


check_installation()
be_heard()
keep_byte_code()
# What is collected stays: looking for garbage in it is a third of the time that collecting takes, in each process.
gc.disable()
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1_000, deadline=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((at for at, folder in enumerate(WHOLE_RUNS) if item.nodeid.startswith(folder)), len(WHOLE_RUNS))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling":
    """A file's tests stay in one process, for what they share; the first process takes files from the front."""
    from xdist.scheduler import LoadScopeScheduling

    class FromBothEnds(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

        def _assign_work_unit(self, node: "WorkerController") -> None:
            if node is not self.nodes[0]:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return FromBothEnds(config, log)
