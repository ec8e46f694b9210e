"""Where the packages are: `.typing/headrace` links to the folders at the root; all else stands in pyproject.toml.

`api/` is the package `headrace` itself, and `store/` is `headrace.store`. The examples and the units of systemd are
data: `headrace examples` shows them. `wheels/loader` builds what a training host needs, as a distribution of its own.
A wheel has what was made before in this tree, as `make wheels` does: man pages (`make man`) and, with HEADRACE_LOOPS in
the environment, the loops as machine code (`headrace.stages.text.machine.build build/loops`). With these it is for this
Python and this kind of processor, and needs no compiler. No command of setuptools tells the metadata of such a wheel
from those of an editable install, which needs one.
"""

import os
import runpy
import sys
import sysconfig
import tomllib
from glob import glob
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel

FACTS = tomllib.loads(Path("pyproject.toml").read_text())
PACKAGES = find_packages(".typing")
#: Folders at the root that hold no package, by what they are called in a wheel.
DATA = {"headrace.examples": "examples", "headrace.examples.chaos": "examples/chaos", "headrace.systemd": "systemd"}
#: And a folder of a package; setuptools warns at length of one that is not named.
BUNDLE = "headrace.page.bundle"
DIGEST = runpy.run_path(".typing/headrace/stages/text/machine/sources.py")["digest"]()
LOOPS = {"headrace.loops": "build/loops"} if "HEADRACE_LOOPS" in os.environ else {}
if LOOPS and not glob(f"build/loops/{DIGEST}-*.so"):
    sys.exit("HEADRACE_LOOPS asks for loops of these sources, and build/loops has none: `make wheels` compiles them")
#: What the libraries of loops call is older than this.
GLIBC = "manylinux_2_17"
# An editable install reads them where they are. With them setuptools would install a finder in place of a path, which
# checkers cannot follow and a folder named `headrace` would hide.
if "editable_wheel" in sys.argv:
    DATA = {}
KINDS = ["*.py", "*.toml", "*.ipynb", "*.service", "*.env", "*/*.conf", f"{DIGEST}-*.so"]


class Wheel(bdist_wheel):
    """A wheel of this Python, whose tables of Unicode are in the loops, where it has these; else one for all."""

    def get_tag(self):
        machine = sysconfig.get_platform().removeprefix("linux-").replace("-", "_")
        return (
            (f"cp{sysconfig.get_config_var('py_version_nodot')}", "none", f"{GLIBC}_{machine}")
            if LOOPS
            else super().get_tag()
        )


setup(
    packages=[*PACKAGES, BUNDLE, *DATA, *LOOPS],
    install_requires=FACTS["tool"]["headrace"]["dependencies"]
    + ([] if LOOPS else FACTS["project"]["optional-dependencies"]["numba"]),
    cmdclass={"bdist_wheel": Wheel},
    data_files=[("share/man/man1", sorted(glob("man/man1/*.1")))],
    package_dir={"": ".typing", **DATA, **LOOPS},
    package_data={name: ["py.typed", "*.proto", "*.pyi"] for name in PACKAGES if name.count(".") < 2}
    | dict.fromkeys([*DATA, *LOOPS], KINDS)
    | {BUNDLE: ["*"]},
)
