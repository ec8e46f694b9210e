from pathlib import Path

import pytest

from headrace.loader.batches import Loader
from headrace.loader.statistics import LoaderCollector


def test_prometheus_sees_what_statistics_say(tiny_dataset: str):
    client = pytest.importorskip("prometheus_client")
    loader = Loader(tiny_dataset, batch_size=4)
    list(loader)
    registry = client.CollectorRegistry()
    registry.register(LoaderCollector(loader, rank="3"))
    assert registry.get_sample_value("headrace_loader_tokens_total", {"rank": "3"}) == 4 * 4 * 16
    assert registry.get_sample_value("headrace_loader_data_wait_seconds_total", {"rank": "3"}) > 0
    assert registry.get_sample_value("headrace_loader_share", {"rank": "3", "source": "tiny"}) == 1.0


def test_a_large_local_shard_is_checked_behind_the_reader_and_a_checkpoint_can_wait_for_it(
    make_dataset, monkeypatch: pytest.MonkeyPatch
):
    from headrace.loader import verify
    from headrace.store.errors import ChecksumMismatch

    monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
    uri = make_dataset()
    loader = Loader(uri, batch_size=1, order="sequential", prefetch=0)
    next(iter(loader))
    loader.wait_verified()
    assert loader.statistics().verified_shards == 1
    path = Path(uri) / loader.dataset.manifest.shards[2].tokens
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    fresh = Loader(uri, batch_size=1, order="sequential", prefetch=0)
    with pytest.raises(ChecksumMismatch):
        list(fresh)
    with pytest.raises(ChecksumMismatch):
        fresh.wait_verified()
