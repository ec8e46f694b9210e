"""Two pipelines of one cluster: the one of higher priority has the cores, and both datasets are exact."""

from pathlib import Path

import pytest

from tests.kits.run.dataset import fates
from tests.kits.run.operators import a_house, begin


@pytest.mark.slow
def test_a_run_that_gives_way_seals_and_both_datasets_are_exact(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    with a_house(home) as house:
        house.good("queue", "set", "nights")
        house.good("queue", "set", "urgent", "--priority", "5")
        begin(house, tmp_path / "slow", "--queue", "nights")
        paced = (house.home / "paced.py").read_text()
        (house.home / "pace2").touch()
        second = paced.replace('"small"', '"second"').replace(f"{house.home}/pace'", f"{house.home}/pace2'")
        (house.home / "second.py").write_text(second)
        given = ("-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={tmp_path}/fast")
        told = house.good("apply", "second.py", *given, "--queue", "urgent")
        assert told["waits"] == "queue urgent: place 1 of 1: asks for 2 cores, and 0 are free"
        house.until("one is held", lambda: house.pipeline()["state"] == "paused")
        assert house.pipeline()["waits"][0].startswith("queue nights: place 1 of 1: asks for 2 cores")
        (house.home / "pace2").unlink()
        house.until("its end", lambda: house.good("status", "second")["pipelines"][0]["state"] == "completed")
        house.until("the other goes on", lambda: house.pipeline()["state"] == "running")
        house.hurry()
        house.until("its end", lambda: house.pipeline()["state"] == "completed")
        queues = house.good("queue", "list")["queues"]
        assert [item["queue"] for item in queues] == ["nights", "urgent"]
        assert house.good("status")["pipelines"][0]["applied_by"], "who applied is known"
    assert fates(tmp_path / "slow") == fates(undisturbed) == fates(tmp_path / "fast")
