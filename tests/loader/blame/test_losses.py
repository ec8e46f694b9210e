"""Losses as people export them, and the spikes in them."""

import math
import time
import tracemalloc

import numpy as np
import pytest

from headrace.loader.blame import LossesError, find_spikes, parse_losses
from headrace.loader.blame.core import losses as module
from headrace.loader.blame.core.losses import Losses


def table(*rows: str, head: str = "step,loss") -> str:
    return "\n".join([head, *rows, ""])


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n0,2.5\n1,2.25\n",
        "loss;global_step\n2.5;0\n2.25;1\n",
        "\ufeff_step\ttrain/loss\n0\t2.5\n1\t2.25\n",
        "Step,lr,Loss\r\n0.0,1e-3,2.5\r\n1,1e-3,2.25\r\n",
    ],
)
def test_tables_of_common_trainers_are_read(text: str) -> None:
    found = parse_losses(text)
    assert (found.step.tolist(), found.loss.tolist(), found.notes) == ([0, 1], [2.5, 2.25], ())


def test_columns_of_other_names_are_named() -> None:
    found = parse_losses("it,nll\n3,1.5\n", ("it", "nll"))
    assert (found.step.tolist(), found.loss.tolist()) == ([3], [1.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing"),
        ("epoch,accuracy\n1,2\n", "'epoch', 'accuracy'"),
        ("step,lr\n1,2\n", "no column of losses"),
        ("step,loss\n", "no loss"),
        ("step,loss\n1,high\n", "line 2.*no numbers"),
        ("step,loss\n-1,2\n", "no number of a step"),
        ("step,loss\n1.5,2\n", "no number of a step"),
        ("step,loss\nnan,2\n", "no number of a step"),
        ("step,loss\n1e300,2\n", "no number of a step"),
        ("step,loss\n1\n", "line 2 has 1 of 2 columns"),
        ('step,loss\n1,"' + "x" * 200_000 + '"\n', "line"),
    ],
)
def test_a_table_without_losses_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(LossesError, match=said) as error:
        parse_losses(text)
    assert "\n" not in str(error.value)


def test_a_column_that_is_not_there_is_said() -> None:
    with pytest.raises(LossesError, match="'it' is not one"):
        parse_losses("step,loss\n1,2\n", ("it", "loss"))


def test_a_table_of_tiny_lines_takes_little_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "step,loss\n" + "1,1\n" * 200_000
    tracemalloc.start()
    try:
        parse_losses(text)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(module, "LOSSES_ROWS_MAX", 199_999)
    with pytest.raises(LossesError, match="it has more than 199,999 steps"):
        parse_losses(text)


def test_what_is_odd_is_put_right_and_said() -> None:
    found = parse_losses(table("3,1", "1,3", "2,", "9,5", "2,2", "3,4", "10,nan"))
    assert found.step.tolist() == [1, 2, 3, 9, 10]
    assert found.loss[:4].tolist() == [3, 2, 4, 5]
    said = " ".join(found.notes)
    assert all(word in said for word in ("without a loss", "not in order", "restart", "gaps", "no finite"))


def losses(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Losses:
    return Losses(np.arange(values.size, dtype=np.int64), values, ())


def falling(size: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    random = np.random.default_rng(5)
    at = np.arange(size)
    return 2.0 + 6.0 * np.exp(-at / 80) + random.normal(0, 0.03, size)


def test_spikes_stand_out_of_a_falling_loss() -> None:
    values = falling(1000)
    values[300:303] += [0.9, 1.5, 0.8]
    values[700] += 1.0
    found = find_spikes(losses(values))
    assert [(one.first, one.last, one.peak) for one in found] == [(300, 302, 301), (700, 700, 700)]
    assert found[0].usual == pytest.approx(2.15, abs=0.2)


@pytest.mark.parametrize("values", [falling(1000), np.full(500, 2.0), np.linspace(9, 1, 500), falling(10)])
def test_a_loss_without_spikes_has_none(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    assert find_spikes(losses(values)) == []


def test_a_loss_that_is_no_number_is_a_spike_once() -> None:
    values = falling(200)
    values[150:] = math.nan
    values[20] = math.inf
    found = find_spikes(losses(values))
    assert [(one.first, one.height) for one in found] == [(20, math.inf), (150, math.inf)]


def test_losses_of_all_nothing_are_one_spike() -> None:
    assert len(find_spikes(losses(np.full(30, math.nan)))) == 1


@pytest.mark.slow
def test_losses_that_break_again_and_again_take_time_by_their_number_alone() -> None:
    values = np.where(np.arange(400_000) % 2, math.nan, 2.5)
    began = time.thread_time()
    found = find_spikes(losses(values))
    # each looked at all before it: some minutes
    assert time.thread_time() - began < 60.0
    assert len(found) == 200_000
    assert {spike.usual for spike in found} == {2.5}


@pytest.mark.filterwarnings("error")
def test_losses_at_the_end_of_what_a_number_holds_are_no_warning() -> None:
    found = find_spikes(losses(np.where(np.arange(300) % 7, 1e308, -1e308)))
    assert all(spike.first % 7 for spike in found), "what is low stands out of nothing"
