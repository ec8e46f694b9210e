"""A loader stays within the descriptors that its process may have, however many shards its datasets have."""

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.loader.dataset import sources
from headrace.loader.dataset.dataset import SHARDS_OPEN_MAX, open_dataset

SHARDS = 200
#: what a process has open beside shards, and some
LIMIT = 100

READS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from headrace.loader import Loader
from headrace.loader.dataset import Source
loader = Loader([Source(uri, 1.0) for uri in sys.argv[2:]], batch_size=4, seed=1)
print(sum(len(batch["positions"]) for batch in loader))
"""


def test_more_shards_than_descriptors_are_read(make_dataset: Callable[..., str]) -> None:
    uris = [make_dataset(sequences=(2,) * SHARDS, seq_len=8, seed=seed) for seed in range(2)]
    command = [sys.executable, "-P", "-c", READS, str(LIMIT), *uris]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == f"{2 * 2 * SHARDS}\n", done.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "left", "each"),
    [
        (1024, 4096, 1200, SHARDS_OPEN_MAX),
        (100, 1200, 1200, SHARDS_OPEN_MAX),
        (100, resource.RLIM_INFINITY, 1200, SHARDS_OPEN_MAX),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, SHARDS_OPEN_MAX),
        (100, 600, 600, 100),
        (3, 3, 3, 1),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_is_wanted(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, left: int, each: int
) -> None:
    datasets = [open_dataset(make_dataset(sequences=(1,) * SHARDS, seq_len=8, seed=seed)) for seed in range(2)]
    now = [soft, hard]
    monkeypatch.setattr(sources.resource, "getrlimit", lambda what: tuple(now))
    monkeypatch.setattr(sources.resource, "setrlimit", lambda what, to: now.__setitem__(slice(None), to))
    assert sources.open_max(datasets) == each
    assert now == [left, hard]
