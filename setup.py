"""Where the packages are: `.typing/headrace` links to the folders at the root; all else stands in pyproject.toml.

`api/` is the package `headrace` itself, and `store/` is `headrace.store`.
"""

from setuptools import find_packages, setup

PACKAGES = find_packages(".typing")

setup(
    packages=PACKAGES,
    package_dir={"": ".typing"},
    package_data={name: ["py.typed", "*.proto", "*.pyi"] for name in PACKAGES if name.count(".") < 2},
)
