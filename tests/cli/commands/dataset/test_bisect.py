"""The search for the first bad version, whatever is skipped."""

from headrace.cli.commands.dataset.history import first_bad


def test_every_first_bad_version_is_found_in_few_steps() -> None:
    versions = list(range(1, 101))
    for first in versions[1:]:
        judged: list[int] = []

        def judge(version: int, first: int = first, judged: list[int] = judged) -> bool:
            judged.append(version)
            return version < first

        assert first_bad(versions, judge) == [first]
        assert len(judged) <= 7
        assert len(set(judged)) == len(judged)


def test_versions_that_are_skipped_leave_several() -> None:
    assert first_bad([1, 2, 5, 7], lambda version: None) == [2, 5, 7]
    assert first_bad([1, 2, 3, 4, 5], lambda version: None if version == 3 else version < 4) == [3, 4]
    assert first_bad([1, 2, 3, 4, 5], lambda version: None if version == 3 else version < 5) == [5]
    assert first_bad([4, 9], lambda version: None) == [9]
