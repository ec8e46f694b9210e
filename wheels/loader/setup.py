"""`headrace-loader`: the rooms that a training host needs, of the same release.

See docs/decisions/0031-training-hosts-install-another-wheel. To build it: pip wheel --no-deps wheels/loader
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALL = tomllib.loads((ROOT / "pyproject.toml").read_text())
FACTS, NEEDED = ALL["project"], ALL["tool"]["headrace"]["dependencies"]
SOURCES = os.path.relpath(ROOT / ".typing", HERE)
PACKAGES = find_packages(
    SOURCES, include=["headrace", *(f"headrace.{room}*" for room in ("pipeline", "store", "loader"))]
)
EXTRAS = {
    "s3": ("certifi", "minio", "urllib3"),
    "trace": ("pyarrow",),
}


def pinned(*names: str) -> list[str]:
    return [each for each in NEEDED if re.split(r"[<>=]", each)[0] in names]


setup(
    name="headrace-loader",
    version=FACTS["version"],
    description="The loader of Headrace datasets, for training hosts: numpy and no compiler",
    license="Apache-2.0",
    python_requires=FACTS["requires-python"],
    install_requires=pinned("msgpack", "numpy", "orjson", "xxhash"),
    extras_require={name: pinned(*needed) for name, needed in EXTRAS.items()}
    | {"numba": FACTS["optional-dependencies"]["numba"], "torch": FACTS["optional-dependencies"]["loader"]},
    packages=PACKAGES,
    package_dir={"": SOURCES},
    package_data={name: ["py.typed"] for name in PACKAGES if name.count(".") < 2},
)
