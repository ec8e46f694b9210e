"""Who is expelled: durable before it is done, known to who leads next, and back by a new key with a token alone."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.client.new_cluster import make_cluster
from headrace.cluster.certificates import Credentials
from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.cluster.members import EXPELLED_MAX, OLD_KEY, SPENT, all_spent
from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import ExpelRequested, TokenOffered
from headrace.controller.membership.cluster_files import ClusterFiles
from tests.kits.controller.cluster_log import Bench, Store, succeeded
from tests.kits.controller.core import of

ONE = "worker/one"


#: What notes slots needs no key of a true cluster.
CLUSTER = ClusterFiles(Path(), "test", (), b"", Credentials(b"", b"", b""), Credentials(b"", b"", b""))


def leader(store: Store, name: str = "a") -> Bench:
    bench = Bench(store, name)
    while not bench.core.leads:
        bench.later(1.0)
    return bench


def answers(commands: list[m.Command]) -> list[str]:
    """For each answer: empty if it is a yes, else why not."""
    return [answer.reason if not answer.accepted else "" for answer in of(m.AnswerRequest, commands)]


def test_an_expulsion_is_in_the_log_before_anybody_is_cut_off() -> None:
    store = Store()
    bench = leader(store)
    asked = bench.core.handle(ExpelRequested(1, ONE), bench.now)
    assert of(m.SpreadExpulsions, asked) == of(m.AnswerRequest, asked) == []
    done = bench.do(asked)
    assert of(m.SpreadExpulsions, done) == [m.SpreadExpulsions(ONE)]
    assert answers(done) == [""]
    assert store.fold().expelled == {ONE: []}


def test_the_next_leader_and_every_watcher_know_the_expelled() -> None:
    store = Store()
    leader(store).tell(ExpelRequested(1, ONE))
    watcher = Bench(store, "c")
    assert not watcher.core.leads
    assert dict(watcher.core.expelled) == {ONE: []}
    assert dict(succeeded(store).core.expelled) == {ONE: []}


def test_the_worker_of_an_expelled_name_is_cut_by_the_log() -> None:
    store = Store()
    bench = leader(store)
    bench.join("one")
    bench.tell(ExpelRequested(1, ONE))
    assert store.fold().workers == {}


@pytest.mark.parametrize(
    ("expelled", "token", "key", "why"),
    [
        (False, "t", "old", ""),
        (False, "t", "new", SPENT),
        (False, "u", "old", ""),
        (True, "t", "old", OLD_KEY),
        (True, "t", "new", SPENT),
        (True, "u", "old", OLD_KEY),
        (True, "u", "new", ""),
    ],
)
@pytest.mark.parametrize("logged", [True, False], ids=["log", "folder"])
def test_a_token_is_judged_by_key_and_by_later_expulsion(
    tmp_path: Path, *, expelled: bool, token: str, key: str, why: str, logged: bool
) -> None:
    if logged:
        bench = leader(Store())
        bench.tell(TokenOffered(1, "t", "one", "old"), *([ExpelRequested(2, ONE)] if expelled else []))
        assert answers(bench.tell(TokenOffered(3, token, "one", key))) == [why]
        assert (bench.core.expelled.get(ONE) == [key]) == (expelled and not why)
        return
    files = make_cluster(tmp_path / "cluster", "test", ["127.0.0.1:7420"])
    asyncio.run(files.spend("t", "one", "old"))
    if expelled:
        asyncio.run(files.expel(ONE))
    assert asyncio.run(files.spend(token, "one", key)) == why
    assert (ClusterFiles.read(files.folder).expelled().get(ONE) == [key]) == (expelled and not why)


@given(
    nodes=st.integers(1, 4),
    asked=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=16),
    logged=st.booleans(),
)
def test_a_token_lets_in_as_many_keys_as_it_says(nodes: int, asked: list[tuple[str, bool]], *, logged: bool) -> None:
    """Offers that wait for one entry together, and across a change of leaders, spend no slot twice."""
    further = tuple(f"t.{number}" for number in range(1, nodes))
    said: list[tuple[str, str]] = []
    if logged:
        store = Store()
        bench, pending = leader(store), list[m.Command]()
        for number, (key, wait) in enumerate(asked):
            pending += bench.core.handle(TokenOffered(number, "t", f"w-{key}", key, further), bench.now)
            if not wait:
                pending = bench.do(pending)
                said += [(asked[a.request][0], a.reason) for a in of(m.AnswerRequest, pending)]
                pending = []
        said += [(asked[a.request][0], a.reason) for a in of(m.AnswerRequest, bench.do(pending))]
        bench = succeeded(store)
        assert len(store.fold().tokens) == len({item.key for item in store.fold().tokens.values()})
    else:
        with tempfile.TemporaryDirectory() as folder:
            files = replace(CLUSTER, folder=Path(folder))
            said = [(key, asyncio.run(files.spend("t", f"w-{key}", key, further))) for key, _ in asked]
    let_in = {key for key, why in said if not why}
    assert len(said) == len(asked)
    assert len(let_in) == min(nodes, len({key for key, _ in asked}))
    refused = [(key, why) for key, why in said if why]
    assert not let_in & {key for key, _ in refused}
    assert all(why == all_spent(nodes) for _, why in refused)


def test_two_requests_of_one_node_at_once_spend_one_slot(tmp_path: Path) -> None:
    files = make_cluster(tmp_path / "cluster", "test", ["127.0.0.1:7420"])

    async def ask() -> list[str]:
        further = tuple(f"t.{number}" for number in range(1, 4))
        return await asyncio.gather(*(files.spend("t", "w", key, further) for key in "abcd" * 4))

    assert asyncio.run(ask()) == [""] * 16
    assert len(list((files.folder / "spent").iterdir())) == 4


def test_a_key_let_in_again_is_expelled_with_its_name_again() -> None:
    bench = leader(Store())
    bench.tell(ExpelRequested(1, ONE), TokenOffered(2, "t", "one", "new"))
    bench.tell(ExpelRequested(3, ONE))
    assert answers(bench.tell(TokenOffered(4, "t", "one", "new"), TokenOffered(5, "u", "one", "new"))) == [OLD_KEY] * 2
    assert dict(bench.core.expelled) == {ONE: []}


def test_a_token_spent_during_the_expulsion_lets_no_old_key_in() -> None:
    store = Store()
    bench = leader(store)
    bench.tell(TokenOffered(1, "t", "one", "old"))
    both = bench.core.handle(ExpelRequested(2, ONE), bench.now)
    both += bench.core.handle(TokenOffered(3, "u", "one", "old"), bench.now)
    assert answers(bench.do(both)) == ["", OLD_KEY]
    assert store.fold().expelled == {ONE: []}


def test_other_names_are_as_they_were() -> None:
    bench = leader(Store())
    bench.tell(TokenOffered(1, "t", "two", "key"), ExpelRequested(2, ONE))
    assert answers(bench.tell(TokenOffered(3, "t", "two", "key"))) == [""]


@pytest.mark.parametrize("member", ["", "one", "worker/", "controller/controller", "worker/" + "x" * 65])
def test_what_is_no_member_is_expelled_neither(member: str) -> None:
    store = Store()
    (why,) = answers(leader(store).tell(ExpelRequested(1, member)))
    assert "is no member that can be expelled" in why
    assert store.fold().expelled == {}


def test_a_name_that_has_other_roles_is_told_to_keep_them() -> None:
    bench = leader(Store())
    bench.tell(TokenOffered(1, "t", "one", "key"))
    (answer,) = of(m.AnswerRequest, bench.tell(ExpelRequested(2, "operator/one", frozenset({"viewer/one"}))))
    (why,) = answer.warnings
    assert answer.accepted
    assert why == (
        "no operator 'one' was ever seen in this cluster; the worker and the viewer of that name keeps the access: "
        "expel each by its role"
    )


def test_a_role_that_is_gone_or_not_told_is_not_spoken_of() -> None:
    bench = leader(Store())
    noted = frozenset({"viewer/one", "operator"})
    (first,) = of(m.AnswerRequest, bench.tell(ExpelRequested(1, "operator/one", noted)))
    bench.tell(ExpelRequested(2, "viewer/one", noted))
    (last,) = of(m.AnswerRequest, bench.tell(ExpelRequested(3, "user/one", noted)))
    assert (first.warnings, last.warnings) == ((), ("no user 'one' was ever seen in this cluster",))


def test_who_was_never_seen_is_expelled_and_the_answer_says_so() -> None:
    bench = leader(Store())
    bench.tell(TokenOffered(1, "t", "two", "key"))
    for member, unknown in (("worker/one", ("no worker 'one' was ever seen in this cluster",)), ("worker/two", ())):
        (answer,) = of(m.AnswerRequest, bench.tell(ExpelRequested(2, member)))
        assert (answer.accepted, answer.warnings) == (True, unknown)
    # A slip of before bars nobody of another role.
    assert answers(bench.tell(ExpelRequested(3, "operator/one"))) == [""]


def test_names_that_can_be_expelled_are_limited() -> None:
    core = Controller({}, expelled={f"worker/{number}": [] for number in range(EXPELLED_MAX)})
    assert answers(core.handle(ExpelRequested(1, "worker/0"), 0.0)) == [""]
    (why,) = answers(core.handle(ExpelRequested(2, ONE), 0.0))
    assert "which is the limit" in why


def test_notes_of_the_clusters_folder_stand_in_the_leaders_log() -> None:
    store = Store()
    bench = Bench(store, "a", expelled={ONE: ["key"]})
    while not bench.core.leads:
        bench.later(1.0)
    assert store.fold().expelled == {ONE: []}


def test_without_a_log_a_new_key_is_told_and_notes_refused() -> None:
    core = Controller({}, expelled={ONE: []})
    commands = core.handle(TokenOffered(1, "t", "one", "key"), 0.0)
    assert of(m.SpreadExpulsions, commands) == [m.SpreadExpulsions()]
    assert dict(core.expelled) == {ONE: ["key"]}
