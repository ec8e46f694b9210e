"""Maps the folders at the root onto the `headrace` namespace; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = (
    "pipeline",
    "protos",
    "cluster",
    "daemon",
    "store",
    "transport",
    "stages",
    "controller",
    "worker",
    "loader",
    "client",
    "cli",
    "chaos",
)


def packages() -> list[str]:
    """Every package below the folders, under its import name."""
    found: list[str] = []
    for folder in FOLDERS:
        found.append(f"headrace.{folder}")
        found.extend(f"headrace.{folder}.{inner}" for inner in find_packages(folder))
    return found


setup(
    packages=packages(),
    package_dir={name: name.removeprefix("headrace.").replace(".", "/") for name in packages()},
    package_data={f"headrace.{folder}": ["py.typed", "*.proto", "*.pyi"] for folder in FOLDERS},
)
