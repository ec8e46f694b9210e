"""Where the packages are: `.typing/headrace` links to the folders at the root; all else stands in pyproject.toml.

`api/` is the package `headrace` itself, and `store/` is `headrace.store`. The examples and the units of systemd are
data: `headrace examples` shows them. `wheels/loader` builds what a training host needs, as a distribution of its own.
A wheel has man pages where `make man` has written them before, as `make wheels` does.
"""

import sys
from glob import glob

from setuptools import find_packages, setup

PACKAGES = find_packages(".typing")
#: Folders at the root that hold no package, by what they are called in a wheel.
DATA = {"headrace.examples": "examples", "headrace.examples.chaos": "examples/chaos", "headrace.systemd": "systemd"}
#: And a folder of a package; setuptools warns at length of one that is not named.
BUNDLE = "headrace.page.bundle"
# An editable install reads them where they are. With them setuptools would install a finder in place of a path, which
# checkers cannot follow and a folder named `headrace` would hide.
if "editable_wheel" in sys.argv:
    DATA = {}
KINDS = ["*.py", "*.toml", "*.ipynb", "*.service", "*.env", "*/*.conf"]

setup(
    packages=[*PACKAGES, BUNDLE, *DATA],
    data_files=[("share/man/man1", sorted(glob("man/man1/*.1")))],
    package_dir={"": ".typing", **DATA},
    package_data={name: ["py.typed", "*.proto", "*.pyi"] for name in PACKAGES if name.count(".") < 2}
    | dict.fromkeys(DATA, KINDS)
    | {BUNDLE: ["*"]},
)
