"""Runs that lose tasks, workers and controllers come to what they come to without faults: some seeds of the 200."""

from pathlib import Path

import pytest

from headrace.chaos.live.clusters.standing_cluster import VICTIMS, burn
from tests.kits.run.small_tokenizer import small_tokenizer

#: Seconds from a kill until records are closed again, whoever dies, on a machine that may be busy with other things
#: (`make recovery` says how many there are on a quiet one).
CLOSED_S_MAX = 60.0


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.slow)])
def test_runs_lose_nothing_whatever_dies(tmp_path: Path, seeds: range) -> None:
    burnt = list(burn(tmp_path, seeds, small_tokenizer()))

    assert [item for item in burnt if not item.passed] == []
    for victim in VICTIMS:
        hit = [item for item in burnt if item.victim == victim]
        assert len(hit) == len(seeds) // len(VICTIMS)
        assert sum(item.kills for item in hit) >= len(hit), f"kills of {victim} met nobody"
    assert len(seeds) < 16 or sum(item.read_again for item in burnt) > 0, "no kill met a record on its way"
    assert max(item.closed_s or 0.0 for item in burnt) < CLOSED_S_MAX
