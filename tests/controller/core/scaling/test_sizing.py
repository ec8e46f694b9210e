"""Sizing a cluster before there is one: each number by its formula."""

import math

import pytest

from headrace.controller.core.scaling import Sized, SizingError, size_cluster, too_small
from headrace.controller.core.scaling.sizing import CHECKS, FORMULAS, INPUTS, names_in


def values(given: dict[str, float], facts: dict[str, float] | None = None) -> dict[str, float]:
    return {one.name: one.value for one in size_cluster(given, facts or {})}


def test_each_formula_takes_what_stands_above_it() -> None:
    known = set(INPUTS)
    for name, formula in FORMULAS.items():
        assert names_in(formula.text) <= known, name
        known.add(name)
    assert {name for check in CHECKS for name in (check.need, check.have)} <= known


def test_each_input_is_taken_by_a_formula_or_check() -> None:
    taken = set().union(*(names_in(formula.text) for formula in FORMULAS.values()))
    assert set(INPUTS) <= taken | {check.have for check in CHECKS}


def test_training_and_data_follow_from_gpus_and_parameters() -> None:
    found = values({"gpus": 64, "params": 7e9, "mfu": 0.5, "gpu_flops": 1e15, "token_bytes": 4})
    assert found["hosts"] == 8
    assert found["gpu_tokens_s"] == pytest.approx(1e15 * 0.5 / 42e9)
    assert found["budget_tokens"] == 140e9
    assert found["dataset_tokens"] == 35e9
    assert found["train_days"] == pytest.approx(140e9 / (64 * 1e15 * 0.5 / 42e9) / 86400)
    assert found["stored_bytes"] == 140e9
    assert found["shards"] == math.ceil(140e9 / 128e6)


def test_erasure_coding_takes_its_parity_and_its_hosts() -> None:
    found = values({"stored_bytes": 100e12, "parts": 10, "parity": 4, "host_disk_bytes": 20e12, "disk_full": 0.7})
    assert found["raw_bytes"] == pytest.approx(140e12)
    assert found["store_hosts"] == 14
    assert found["repair_bytes"] == pytest.approx(100e12)
    assert values({"stored_bytes": 1e12, "parts": 2, "parity": 1})["store_hosts"] == 3


def test_a_cache_that_holds_its_share_reads_nothing_again() -> None:
    assert values({"cache_bytes": 1e15})["again_bytes_s"] == 0
    half = values({"gpus": 8, "stored_bytes": 1e12, "cache_bytes": 0.5e12})
    assert half["again_bytes_s"] == pytest.approx(half["read_bytes_s"] / 2)


def test_what_is_given_comes_before_facts_and_defaults() -> None:
    def of(sized: list[Sized]) -> tuple[float, str]:
        return next((one.value, one.by) for one in sized if one.name == "tokenizer_bytes_s")

    facts = {"tokenizer_bytes_s": 3e6}
    assert of(size_cluster({}, {})) == (INPUTS["tokenizer_bytes_s"].default, "default")
    assert of(size_cluster({}, facts)) == (3e6, "fact")
    assert of(size_cluster({"tokenizer_bytes_s": 4e6}, facts)) == (4e6, "given")


def test_a_result_that_is_given_stands_for_its_formula() -> None:
    sized = {one.name: one for one in size_cluster({"train_tokens_s": 1e6}, {})}
    assert (sized["train_tokens_s"].by, sized["host_tokens_s"].value) == ("given", 1e6)
    assert sized["hosts"].by == FORMULAS["hosts"].text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": 8}, "no number"),
        ({"gpus": 0}, "above 0"),
        ({"gpus": -1}, "above 0"),
        ({"gpus": math.nan}, "above 0"),
        ({"gpus": math.inf}, "above 0"),
        ({"mfu": 40}, "at most 1"),
        ({"gpus": 1e30, "gpu_flops": 1e30}, "check these numbers"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(SizingError, match=said):
        size_cluster(given, {})


def test_a_fact_that_makes_no_sense_is_left_alone() -> None:
    assert values({}, {"tokenizer_bytes_s": math.nan}) == values({})


def test_what_is_too_small_is_said_with_how_much() -> None:
    sized = size_cluster({"host_bytes_s": 10e9, "net_bytes_s": 1e9, "store_bytes_s": 5e9}, {})
    first, second = too_small(sized)[:2]
    assert [(one[0].have, one[1]) for one in (first, second)] == [("net_bytes_s", 10), ("store_bytes_s", 2)]
