"""The page's pictures against golden ones: places, sizes and colours, light and dark."""

import pytest

from tests.kits.page.browser import CHROMIUM
from tests.kits.page.pictures import FOLDER, PICTURES, PIXELS_SHARE_MAX, opened, share_of_difference, take

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")]

#: Bytes of all golden pictures.
BYTES_MAX = 200_000
#: Changes of the layout and of colours that a person would see.
PLANTED = (
    "section.card { padding-left: 30px !important; }",
    "main { --good: #c00; --blue: #a0a; }",
    "header { display: none; }",
)


@pytest.mark.parametrize(("name", "kind", "screen", "dark"), PICTURES, ids=[item[0] for item in PICTURES])
def test_a_screen_looks_as_its_golden_picture(name: str, kind: str, screen: str, dark: bool) -> None:
    golden = (FOLDER / f"{name}.png").read_bytes()
    with opened(kind, dark=dark) as browser:
        share = share_of_difference(browser, golden, take(browser, screen))
        assert browser.complaints == []
    assert share <= PIXELS_SHARE_MAX, f"{share:.4f} of the pixels: look, then `python -m tests.kits.page.pictures`"


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_change_of_the_layout_is_seen(planted: str) -> None:
    golden = (FOLDER / "overview-light.png").read_bytes()
    with opened("run", dark=False) as browser:
        browser.run(f"document.adoptedStyleSheets[0].insertRule({planted!r})")
        assert share_of_difference(browser, golden, take(browser, "Overview")) > PIXELS_SHARE_MAX


def test_golden_pictures_are_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < BYTES_MAX
    assert {file.stem for file in FOLDER.iterdir()} == {name for name, *_ in PICTURES}
