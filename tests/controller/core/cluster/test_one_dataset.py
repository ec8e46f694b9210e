"""One dataset has one run in a cluster: by its one name, at any moment, and where that name was not known."""

from dataclasses import replace

from headrace.controller.core.log.leader import Leadership, LeaderState
from headrace.controller.core.messages import messages as m
from headrace.store.ledger.core.entries import Entry, Led
from headrace.store.ledger.core.fold import LedgerState
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store
from tests.kits.controller.core import LOG, make_pipeline, of

ALIAS = "file:///link/data"


def request(number: int, name: str, dataset: str = LOG, place: str = "") -> m.PipelineRequested:
    pipeline = replace(make_pipeline(name=name), dataset=dataset)
    return m.PipelineRequested(number, pipeline.to_dict(), replicas=1, token=name, place=place)


def leading(store: Store) -> Bench:
    bench = Bench(store, "a")
    bench.join("w1")
    assert bench.core.leads
    return bench


def at_one_instant(bench: Bench, *requests: m.PipelineRequested) -> list[m.AnswerRequest]:
    """All are asked before the log has answered to the first."""
    said = [command for item in requests for command in bench.core.handle(item, bench.now)]
    return of(m.AnswerRequest, bench.do(said))


def test_of_two_applied_at_once_the_second_is_refused() -> None:
    store = Store()
    answers = at_one_instant(leading(store), request(1, "one"), request(2, "two"))
    assert {answer.request: answer.accepted for answer in answers} == {1: True, 2: False}
    (refused,) = [answer for answer in answers if not answer.accepted]
    assert refused.reason == f"pipeline 'one' writes to {LOG}: stop it first, or choose another dataset"
    assert list(store.fold().runs) == ["one"]


def test_two_names_of_one_place_are_one_dataset_at_any_time() -> None:
    for instant in (True, False):
        store = Store()
        store.logs[ALIAS] = []
        bench = leading(store)
        both = request(1, "one", place="folder /data"), request(2, "two", ALIAS, "folder /data")
        answers = at_one_instant(bench, *both) if instant else of(m.AnswerRequest, bench.tell(*both))
        (refused,) = [answer for answer in answers if not answer.accepted]
        assert refused.request == 2
        assert f"writes to {ALIAS} (it says {LOG}, which is the same place)" in refused.reason
        assert store.logs[ALIAS] == []


def test_the_next_leader_of_the_cluster_knows_the_place_too() -> None:
    store = Store()
    leading(store).tell(request(1, "one", place="folder /data"))
    store.leader_alive = False
    second = Bench(store, "b")
    second.join("w1")
    (answer,) = of(m.AnswerRequest, second.tell(request(2, "two", ALIAS, "folder /data")))
    assert (answer.accepted, "which is the same place" in answer.reason) == (False, True)


def test_the_log_of_another_run_of_the_cluster_is_not_taken() -> None:
    """Two mounts of one disk: the second run finds at the log that the first one of its own cluster leads it."""
    store = Store()
    store.logs[ALIAS] = store.logs[LOG]
    store.leader_alive = True
    bench = leading(store)
    bench.tell(request(1, "one"))
    (answer,) = of(m.AnswerRequest, bench.tell(request(2, "two", ALIAS)))
    assert not answer.accepted
    assert f"dataset {ALIAS} is being written by pipeline 'one', by process" in answer.reason
    leaders = [change.leader["run"] for entry in store.logs[LOG] for change in entry.changes if isinstance(change, Led)]
    assert leaders == ["one"]


def led_by(run: str, *, standby: bool = True) -> Leadership[LedgerState]:
    """The leadership of run "two" of a cluster, over a log that a living process leads for this run of the cluster."""
    found = Leadership(LOG, {"cluster": CLUSTER, "run": "two"}, LedgerState(), standby=standby, cluster=CLUSTER)
    entry = m.LogRead(LOG, ((0, _led(run)),), leader_alive=True, after=-1)
    found.handle(entry, 0.0)
    return found


def _led(run: str) -> Entry:
    identity = {"host": "a", "pid": 1, "cluster": CLUSTER, **({"run": run} if run else {})}
    return Entry(1, (Led(1, identity),))


def test_a_run_after_a_takeover_does_not_wait_behind_another_forever() -> None:
    assert led_by("one").state is LeaderState.DENIED


def test_a_run_takes_up_what_its_clusters_earlier_leader_led() -> None:
    assert led_by("two").state is LeaderState.CAMPAIGNING
    assert led_by("").state is LeaderState.CAMPAIGNING, "from before runs were named in it"
