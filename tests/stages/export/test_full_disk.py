"""An export that finds no room is told by its folder, of which nothing is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.stages.export.source import new_folder


def test_a_write_that_fails_is_of_the_folder_and_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with new_folder(str(tmp_path / "out")) as part:
            (part / "shard").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        write()
    assert caught.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
