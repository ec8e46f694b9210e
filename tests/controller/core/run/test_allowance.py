"""How much a run may lose to quarantine, and that one that loses more is ended with the reason."""

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import Allowance
from headrace.controller.core.run.publishing import excess, kept_nothing
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Range
from tests.kits.controller.core import Stand, fragment, make_pipeline, of, proposal


@pytest.mark.parametrize(
    ("allowance", "kept", "quarantined", "at_end", "ended"),
    [
        (Allowance(), 0, 500, True, False),
        (Allowance(records=3), 10, 3, True, False),
        (Allowance(records=3), 10, 4, False, True),
        (Allowance(records=0), 5000, 1, False, True),
        (Allowance(share=0.01), 990, 10, True, False),
        (Allowance(share=0.01), 989, 11, True, True),
        (Allowance(share=0.01), 989, 11, False, True),
        (Allowance(share=0.01), 5, 5, False, False),
        (Allowance(share=0.01), 5, 5, True, True),
        (Allowance(share=0.0), 0, 0, True, False),
        (Allowance(share=1.0), 0, 5000, True, False),
    ],
)
def test_a_loss_is_judged_by_count_at_once_and_share_later(
    allowance: Allowance, kept: int, quarantined: int, at_end: bool, ended: bool
) -> None:
    ledger = LedgerState(counts={"write": Counts(kept=kept, quarantined=quarantined)})
    assert bool(excess(allowance, ledger, "file:///out", at_end=at_end)) is ended


def test_what_ended_a_run_says_losses_culprits_and_remedies() -> None:
    counts = Counts(kept=1, quarantined=3, quarantined_by={"read/malformed JSON": 2, "map/KeyError": 1})
    said = excess(Allowance(records=2), LedgerState(counts={"write": counts}), "file:///out", at_end=False)
    assert said == (
        "3 of 4 records closed by sink write are quarantined, more than the 2 allowed; most of them by "
        "read/malformed JSON; see `headrace dataset show file:///out --quarantine`, then mend the input or raise "
        "--max-quarantined and run it again"
    )


def test_a_run_without_text_names_the_field_that_was_looked_for() -> None:
    source = {"name": "read", "parameters": {"text_key": "content"}}
    ledger = LedgerState(
        counts={"write": Counts(quarantined=3, quarantined_by={"read/no text": 3})}, pipeline={"stages": [source]}
    )
    expected = 'most of them by read/no text, looked for in the field "content": text_key= names another'
    assert expected in excess(Allowance(records=2), ledger, "file:///out", at_end=False)
    assert expected in kept_nothing(ledger, "file:///out")


def test_a_run_that_loses_too_much_fails_and_keeps_what_is_closed() -> None:
    stand, item = Stand(), fragment(0)
    stand.join("w1")
    plain = make_pipeline().to_dict()
    commands = stand.tell(m.PipelineRequested(1, plain, allowance=Allowance(records=0)))
    commands = stand.read(item, 10) if stand.listed(stand.ready(commands), item) else []
    stand.swept(commands, Range(item.id, 0, 10))
    task, attempt = stand.task()
    shard = proposal(
        [Range(item.id, 0, 10)],
        kept=[b"\xff\x01".ljust(8, b"\0")],
        other=[b"\0\x02".ljust(8, b"\0")],
        version=stand.run.version,
        epoch=stand.run.ledger.epoch,
        task=task,
        attempt=attempt,
    )
    counts = Counts(kept=9, quarantined=1, quarantined_by={"read/malformed JSON": 1})
    said = stand.tell(
        m.ShardProposed(
            task, attempt, 0, "write", shard.version, shard.epoch, shard.ranges, shard.coverage, shard.objects, counts
        )
    )
    assert stand.run.state is RunState.FAILED
    assert of(m.ReportRun, said)[0].reason.startswith("1 of 10 records closed by sink write is quarantined")
    assert len(stand.run.ledger.shards) == 1
