"""Byte code as an installation has it.

`pip install` compiles what it installs, Ray too. A clone that is installed editable has byte code behind its first run,
but none where PYTHONDONTWRITEBYTECODE is set: each process of Headrace then compiles a hundred modules, 0.08 s of one
core, before it begins.
"""

import compileall
import os
import pathlib

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGES = ("cli", "controller", "pipeline", "protos", "stages", "store", "transport", "worker")


def as_installed() -> None:
    """Compile Headrace's modules, and let what this process starts keep what it compiles."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in _PACKAGES:
        compileall.compile_dir(_ROOT / name, quiet=2)
