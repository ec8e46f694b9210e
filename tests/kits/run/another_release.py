"""Headrace as another release: this code under another name and other protocols, for processes beside this one's.

Rooms are links to this tree, but for the protocol: two releases differ by what a test names, and by nothing else.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import headrace
from headrace.protos.protocol import PROTOCOL, PROTOCOL_OLDEST


def make_release(
    folder: Path, release: str, *, newest: int = PROTOCOL, oldest: int = PROTOCOL_OLDEST
) -> dict[str, str]:
    """Lay it out; the environment in which `python -m headrace.cli` is it."""
    package, here = folder / "headrace", Path(headrace.__path__[0])
    package.mkdir(parents=True)
    # As it is installed: the files of `api/` are the package itself.
    for item in (here / "api").iterdir():
        if item.is_file():
            shutil.copy(item, package / item.name)
    for room in (here / ".typing" / "headrace").iterdir():
        if room.is_dir() and room.name != "protos":
            (package / room.name).symlink_to(room.resolve())
    shutil.copytree(here / "protos", package / "protos")
    file = package / "protos" / "protocol.py"
    line = re.compile(r"^PROTOCOL, PROTOCOL_OLDEST = .*$", re.MULTILINE)
    text, changed = line.subn(f"PROTOCOL, PROTOCOL_OLDEST = {newest}, {oldest}", file.read_text(encoding="utf-8"))
    assert changed == 1, file
    file.write_text(text, encoding="utf-8")
    facts = folder / f"headrace-{release}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headrace\nVersion: {release}\n", encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
