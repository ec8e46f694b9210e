"""Which releases understand each other, and in what words others are refused."""

import pytest

from headrace.protos.protocol import PROTOCOL, PROTOCOL_OLDEST, Spoken, spoken_here, why_foreign

OURS = Spoken("1.4", 5, 4)


@pytest.mark.parametrize(("newest", "oldest"), [(5, 4), (4, 1), (9, 5), (5, 5), (4, 4), (9, 1)])
def test_ranges_that_meet_understand_each_other(newest: int, oldest: int) -> None:
    assert why_foreign("worker w", Spoken("1.5", newest, oldest), OURS) == ""


@pytest.mark.parametrize(
    ("newest", "oldest", "words"),
    [
        (3, 2, "protocol 2 to 3 and 4 to 5; upgrade worker w"),
        (7, 6, "protocol 6 to 7 and 4 to 5; upgrade the controller"),
        (0, 0, "protocol 0 and 4 to 5; upgrade worker w"),
        (4, 5, "protocol 5 to 4 and 4 to 5; upgrade worker w"),
    ],
)
def test_ranges_that_do_not_meet_are_refused_by_name(newest: int, oldest: int, words: str) -> None:
    said = why_foreign("worker w", Spoken("1.2", newest, oldest), OURS)
    assert said == f"worker w is Headrace 1.2, the controller 1.4: they speak {words}"


def test_this_release_understands_itself() -> None:
    assert 0 < PROTOCOL_OLDEST <= PROTOCOL
    assert why_foreign("worker w", spoken_here("1.0"), spoken_here("1.1")) == ""
