"""A decider goes to another worker while records flow: one of each text is kept, and none is lost."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.entries import EpochRaised, decode_entry
from tests.kits.run.dataset import fates
from tests.kits.run.kill import count_entries
from tests.kits.run.operators import House, a_house, write_paced


@pytest.fixture
def house(home: Path) -> Iterator[House]:
    with a_house(home) as made:
        yield made


def begun(house: House, folder: Path, dedup: str) -> Path:
    """A run whose input has each text twice, with a dedup stage; it has closed something."""
    write_paced(house.home)
    paced = house.home / "paced.py"
    text = paced.read_text().replace("library import ", "library import dedup, ")
    paced.write_text(text.replace("        tokens,\n", f"        *{dedup},\n        tokens,\n"))
    (folder / "in").mkdir()
    for path in (house.home / "corpus").glob("*.jsonl"):
        for copy in ("first", "second"):
            shutil.copy(path, folder / "in" / f"{copy}-{path.name}")
    house.good("apply", "paced.py", "-p", f"input={folder}/in/*.jsonl", "-p", f"output={folder}/out")
    house.until("the first shard", lambda: count_entries(folder / "out" / "ledger") > 4)
    return folder / "out"


def decider(house: House) -> tuple[str, str]:
    """The task that decides, and its worker."""
    (found,) = [task for task in house.pipeline()["tasks"] if task["stages"] == ["dedup"]][:1]
    return found["task"], found["worker"]


def moved(house: House) -> str:
    """The decider goes to the other worker; its task there."""
    task, worker = decider(house)
    other = {"one": "two", "two": "one"}[worker]
    house.good("move", "small", "dedup", other, "--wait")
    now = decider(house)
    assert now[1] == other
    assert now[0] != task, "it was started beside the other"
    return now[0]


def raised(output: Path) -> list[int]:
    """What each epoch of the log says of its number; 0: it is that of its entry."""
    entries = [decode_entry(path.read_bytes()) for path in sorted((output / "ledger").iterdir()) if path.stem.isdigit()]
    return [change.number for entry in entries for change in entry.changes if isinstance(change, EpochRaised)]


@pytest.mark.slow
@pytest.mark.parametrize("dedup", ["dedup(near=False)", "dedup(partitions=2)"])
def test_a_decider_is_moved_to_and_fro_while_records_flow(
    house: House, undisturbed: Path, tmp_path: Path, dedup: str
) -> None:
    output = begun(house, tmp_path, dedup)
    first = decider(house)[0]
    moved(house)
    closed = count_entries(output / "ledger")
    house.until("more is closed", lambda: count_entries(output / "ledger") > closed + 2)
    assert moved(house) == first, "its name is free again"
    house.hurry()
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "publishing"))
    assert house.pipeline()["state"] == "completed"
    assert [number > 0 for number in raised(output)].count(True) == 2, "each move has begun an epoch under flow"
    assert [number > 0 for number in raised(output)].count(False) == 1, "and none did at a rest"
    found = fates(output)
    kept = Counter(fate[3] for fate in found.values() if fate[0] == "kept")
    wanted = {fate[1]: fate for fate in fates(undisturbed).values()}
    assert max(kept.values()) == 1, "no text is kept twice"
    assert kept.keys() <= {fate[3] for fate in wanted.values() if fate[0] == "kept"}
    for name, fate in wanted.items():
        mine = [item for item in found.values() if item[1] == name]
        assert {item[0] for item in mine} <= ({"kept", "duplicate"} if fate[0] == "kept" else {fate[0]})
    assert len(found) == 2 * len(fates(undisturbed)), "nothing is lost"
    assert Dataset.open(str(output)).balance().balanced
