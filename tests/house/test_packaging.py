"""What is shipped is what stands in the tree: the wheel, the stubs of the protocol, the links of the checkers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = {"setup.py", "pyproject.toml", "README.md", "LICENSE"}
SHIPPED = {".py", ".pyi", ".proto", ".typed"}
#: Limit on one run of a build tool, in seconds.
BUILD_S_MAX = 120
STUBS = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py")


def folders() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/py.typed"))


def shipped_files() -> set[str]:
    """Every file below the folders that a wheel should hold, under its name there."""
    files = (file for folder in folders() for file in folder.rglob("*") if "__pycache__" not in file.parts)
    names = (file.relative_to(ROOT).as_posix() for file in files if file.suffix in SHIPPED or file.name == "py.typed")
    return {f"headrace/{name.removeprefix('api/')}" for name in names}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the tree, built without a network and without traces in the tree itself."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SETUP:
        shutil.copy(ROOT / name, tree / name)
    for folder in folders():
        shutil.copytree(folder, tree / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".typing", tree / ".typing", symlinks=True)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, str(tree / "dist"), cwd=tree)
    (path,) = (tree / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_files_of_the_tree_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == shipped_files()


def test_nothing_in_the_folders_stays_behind() -> None:
    files = (file for folder in folders() for file in folder.rglob("*") if file.is_file())
    strays = {str(file.relative_to(ROOT)) for file in files if file.suffix not in {*SHIPPED, ".pyc"}}
    assert strays == set(), "a kind of file that the wheel would leave out: name it in setup.py"


def test_the_wheel_carries_licence_and_command(wheel: zipfile.ZipFile) -> None:
    facts = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "licenses/LICENSE" in facts
    assert b"headrace = headrace.cli.__main__:main" in wheel.read(facts["entry_points.txt"])


def test_each_subfolder_with_code_is_a_package() -> None:
    missing = {
        str(file.parent.relative_to(ROOT))
        for folder in folders()
        for file in folder.rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    }
    assert missing == set()


def test_each_folder_has_its_link_for_the_checkers() -> None:
    # Python keeps compiled modules of `api/` beside the links.
    beside = [link for link in (ROOT / ".typing" / "headrace").iterdir() if link.name != "__pycache__"]
    links = {link.name: link.resolve() for link in beside}
    face = {file.name: file for file in (ROOT / "api").glob("*.*")}
    assert links == {folder.name: folder for folder in folders() if folder.name != "api"} | face


def test_the_stubs_are_those_of_the_protocol(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    (tmp_path / "headrace" / "protos").mkdir(parents=True)
    run(
        sys.executable,
        *("-m", "grpc_tools.protoc", "-Iheadrace/protos=protos", *outputs, "headrace/protos/control.proto"),
        cwd=ROOT,
    )
    stale = [
        name
        for name in STUBS
        if (tmp_path / "headrace" / "protos" / name).read_bytes() != (ROOT / "protos" / name).read_bytes()
    ]
    assert stale == [], "protos/control.proto has changed: run `make protos`"
