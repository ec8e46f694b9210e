from pathlib import Path

import pytest

from headrace.loader.loader import Loader, Source
from headrace.loader.statistics import LoaderCollector, LoaderStatistics, ReceivedCounts


def test_prometheus_sees_what_statistics_say(tiny_dataset: str):
    client = pytest.importorskip("prometheus_client")
    loader = Loader(tiny_dataset, batch_size=4)
    list(loader)
    registry = client.CollectorRegistry()
    registry.register(LoaderCollector(loader, rank="3"))
    assert registry.get_sample_value("headrace_loader_tokens_total", {"rank": "3"}) == 4 * 4 * 16
    assert registry.get_sample_value("headrace_loader_data_wait_seconds_total", {"rank": "3"}) > 0
    assert registry.get_sample_value("headrace_loader_share", {"rank": "3", "source": "tiny"}) == 1.0


def test_several_loaders_of_a_process_are_told_apart_by_their_labels(tiny_dataset: str):
    client = pytest.importorskip("prometheus_client")
    train, validation = Loader(tiny_dataset, batch_size=4), Loader(tiny_dataset, batch_size=2, restarts=True)
    next(iter(train))
    list(validation)
    collector = LoaderCollector(train, loader="train").add(validation, loader="validation")
    registry = client.CollectorRegistry()
    registry.register(collector)
    values = [
        registry.get_sample_value("headrace_loader_batches_total", {"loader": one}) for one in ("train", "validation")
    ]
    assert values == [1, 8]
    assert client.generate_latest(registry).count(b"# TYPE headrace_loader_batches_total") == 1
    for labels in ({"loader": "train"}, {}, {"loader": "x", "rank": "0"}):
        with pytest.raises(ValueError, match="a value of its own"):
            collector.add(validation, **labels)
    train.close()


def test_the_pace_of_a_loop_is_tokens_over_its_time():
    counts = ReceivedCounts()
    counts.count(4, 10.0, 11.5)
    counts.count(2, 14.0, 14.5, 0.25)
    assert (counts.batches, counts.samples, counts.wait_s, counts.assemble_s) == (2, 6, 2.0, 0.25)
    assert counts.elapsed_s == 4.5
    none = LoaderStatistics(0, 0, 0, 0.0, 0.0, 0, 0)
    assert (none.tokens_s, none.data_wait_s_a_step) == (0.0, 0.0)
    some = LoaderStatistics(2, 6, 90, counts.wait_s, counts.assemble_s, 0, 0, elapsed_s=counts.elapsed_s)
    assert (some.tokens_s, some.data_wait_s_a_step) == (20.0, 1.0)


def test_a_rank_says_which_it_is_and_where_all_stand(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=1, rank=1, world_size=2)
    next(iter(loader))
    now = loader.statistics()
    assert (now.rank, now.position, now.samples) == (1, 2, 1)
    loader.close()


def test_sources_of_one_name_are_told_apart_by_their_numbers(make_dataset, tiny_dataset: str):
    client = pytest.importorskip("prometheus_client")
    same = [Source(tiny_dataset, 0.5), Source(make_dataset(seed=1), 0.3), Source(make_dataset(seed=2), 0.2, "other")]
    loader = Loader(same, batch_size=10)
    next(iter(loader))
    registry = client.CollectorRegistry()
    registry.register(LoaderCollector(loader))
    names = loader.sources.names
    shares = {name: registry.get_sample_value("headrace_loader_share", {"source": name}) for name in names}
    assert shares == {"tiny[0]": 0.5, "tiny[1]": 0.3, "other": 0.2}
    again = Loader(same, batch_size=10)
    state = loader.state_dict()
    # as states were before there were numbers
    again.load_state_dict({**state, "sources": [{**one, "name": "tiny"} for one in state["sources"]]})
    assert again.replica().sources.names == names
    loader.close()


def test_a_large_local_shard_is_checked_behind_the_reader(make_dataset, monkeypatch: pytest.MonkeyPatch):
    from headrace.loader.dataset import verify
    from headrace.store.contract.errors import ChecksumMismatch

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
