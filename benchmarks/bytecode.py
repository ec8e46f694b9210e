"""Byte code and machine code as an installation has them.

`pip install` compiles what it installs, Ray too. A clone that is installed editable has byte code behind its first run,
but none where PYTHONDONTWRITEBYTECODE is set: each process of Headrace then compiles a hundred modules, 0.08 s of one
core, before it begins. A wheel brings its loops as machine code; a clone asks numba for them, whose import takes 0.2 s
of each run.
"""

import compileall
import os
import pathlib
import subprocess
import sys

from headrace.stages.text.machine import native
from headrace.stages.text.machine.sources import digest

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGES = ("cli", "controller", "pipeline", "protos", "stages", "store", "transport", "worker")


def as_installed() -> None:
    """Compile Headrace's modules and loops, and let what this process starts keep what it compiles."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in _PACKAGES:
        compileall.compile_dir(_ROOT / name, quiet=2)
    loops = _ROOT / "build" / "loops"
    if native.library() is None and not any(loops.glob(f"{digest()}-*.so")):
        print("making the loops' machine code, once: a minute or two", file=sys.stderr)
        made = [sys.executable, "-m", "headrace.stages.text.machine.build", str(loops)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
