"""What may be asked of a canary, before anything runs."""

import pytest

from headrace.cli.commands.canary import check_canary, share_of
from headrace.cli.ui.options import CanaryOptions
from headrace.client import UsageError


def test_a_share_is_a_percentage() -> None:
    assert (share_of("2%"), share_of("0.5%"), share_of("100%")) == (0.02, 0.005, 1.0)


@pytest.mark.parametrize("text", ["", "2", "0.02", "0%", "101%", "-1%", "nan%", "1e3%", "2 %", "%"])
def test_another_text_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="such as 2%"):
        share_of(text)


@pytest.mark.parametrize(
    ("options", "dry_run", "words"),
    [
        (CanaryOptions("2%"), True, "give one of them"),
        (CanaryOptions(yes=True), False, "go with --canary"),
        (CanaryOptions(trust_code=True), False, "go with --canary"),
        (CanaryOptions("many"), False, "such as 2%"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: CanaryOptions, dry_run: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_canary(options, dry_run=dry_run)
