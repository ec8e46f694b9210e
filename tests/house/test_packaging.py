"""What is shipped is what stands in the tree: the wheel, the stubs of the protocol, the links of the checkers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from headrace.cli.help import EXAMPLES
from headrace.stages.text.machine.sources import digest

ROOT = Path(__file__).resolve().parents[2]
SETUP = {"setup.py", "pyproject.toml", "README.md", "LICENSE"}
#: Folders without a package that the wheel carries.
DATA = ("examples", "systemd")
#: What a training host installs, and the first of each that `headrace.loader` may import.
LIGHT = {"msgpack", "numpy", "orjson", "xxhash"}
SHIPPED = {".py", ".pyi", ".proto", ".typed", ".html", ".css", ".js"}
#: Limit on one run of a build tool, in seconds.
BUILD_S_MAX = 400.0
#: A loader that is opened with nothing but what the light wheel needs, where others would be refused.
LOADS_LIGHT = """
import sys
sys.path.insert(0, {site!r})
sys.path.append({packages!r})
ours = set(sys.stdlib_module_names) | {light} | {{"headrace"}}


class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ours and not name.startswith("_"):
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, Only())
import headrace
from headrace.loader import Loader
from headrace.loader.dataset import open_dataset
assert headrace.__file__.startswith({site!r})
print(headrace.__version__, Loader, open_dataset)
missing = {{"pip install headrace": lambda: headrace.run, "headrace-loader[s3]": lambda: open_dataset("s3://b/d")}}
for said, use in missing.items():
    try:
        use()
    except ImportError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
"""
STUBS = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py")


def folders() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/py.typed"))


def shipped_files() -> set[str]:
    """Every file below the folders that a wheel should hold, under its name there."""
    files = (file for folder in folders() for file in folder.rglob("*") if "__pycache__" not in file.parts)
    names = (file.relative_to(ROOT).as_posix() for file in files if file.suffix in SHIPPED or file.name == "py.typed")
    return {f"headrace/{name.removeprefix('api/')}" for name in names} | {f"headrace/{name}" for name in data_files()}


def data_files() -> set[str]:
    """Every file of the examples and the units, of which docs, README and help name many."""
    files = (file for folder in DATA for file in (ROOT / folder).rglob("*"))
    return {file.relative_to(ROOT).as_posix() for file in files if file.is_file() and "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that no build leaves traces in the tree itself."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SETUP:
        shutil.copy(ROOT / name, tree / name)
    for folder in [*folders(), *(ROOT / name for name in (*DATA, "wheels"))]:
        shutil.copytree(folder, tree / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".typing", tree / ".typing", symlinks=True)
    return tree


def built(folder: Path) -> Path:
    """The wheel of a folder, built without a network."""
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    said = run(sys.executable, "-c", build, str(folder / "dist"), cwd=folder)
    assert "is absent from the `packages` configuration" not in said.stdout + said.stderr, "a screen of warnings"
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tree: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built(tree))


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel in a folder, with a folder beside it that holds nothing."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder / "site")
    (folder / "empty").mkdir()
    return folder


def command(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command of the wheel in an empty folder; its dependencies are those of the tests."""
    code = (
        f"import sys; sys.path.insert(0, {str(installed / 'site')!r}); from headrace.cli.__main__ import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=installed / "empty",
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_wheel_holds_the_files_of_the_tree_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == shipped_files()


@pytest.mark.parametrize(
    "page", ["README.md", *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
)
def test_each_example_that_a_page_names_is_in_the_wheel(page: str, wheel: zipfile.ZipFile) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"\b(?:examples|systemd)/[\w./-]*\w\.(?:py|toml|ipynb|service|env|conf)\b", text))
    assert named <= {name.removeprefix("headrace/") for name in wheel.namelist()}


def test_each_example_of_the_help_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    lines = " ".join(line for lines in EXAMPLES.values() for line in lines)
    named = set(re.findall(r"\bexamples/[\w./-]+", lines))
    assert named
    assert named <= {name.removeprefix("headrace/") for name in wheel.namelist()}


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_wheel_shows_its_help(installed: Path, flag: str) -> None:
    done = command(installed, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert "headrace quickstart" in done.stdout


def test_the_wheel_lists_and_writes_its_examples(installed: Path) -> None:
    names = {line.split()[0] for line in command(installed, "examples").stdout.splitlines()}
    assert {"plain", "fineweb", "chaos/tasks", "systemd/headrace-worker.service"} <= names
    assert command(installed, "examples", "plain", "--to", "mine.py").returncode == 0
    assert (installed / "empty" / "mine.py").read_text() == (ROOT / "examples" / "plain.py").read_text()
    again = command(installed, "examples", "plain", "--to", "mine.py")
    assert (again.returncode, again.stdout) == (1, "")
    assert "is there already" in again.stderr


@pytest.mark.parametrize("more", [("-p", "input=x"), ("--limit", "5")])
def test_an_example_that_is_not_there_is_offered(installed: Path, more: tuple[str, str]) -> None:
    done = command(installed, "run", "examples/fineweb.py", *more)
    assert done.returncode == 2
    assert "`headrace examples fineweb --to examples/fineweb.py` writes it" in done.stderr


def test_a_wheel_without_compiled_loops_asks_for_the_compiler(wheel: zipfile.ZipFile) -> None:
    assert str(wheel.filename).endswith("-py3-none-any.whl")
    assert asks_for(wheel, "numba")


def test_a_wheel_with_compiled_loops_is_for_this_platform(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tree, tmp_path / "tree", symlinks=True, ignore=shutil.ignore_patterns("build", "dist"))
    loops = tmp_path / "tree" / "build" / "loops"
    loops.mkdir(parents=True)
    for name in (f"{digest()}-x86-64-v3.so", "0123456789abcdef-x86-64-v3.so"):
        (loops / name).write_bytes(b"as if compiled")
    assert asks_for(zipfile.ZipFile(built(tmp_path / "tree")), "numba"), "also an editable install finds them there"
    shutil.rmtree(tmp_path / "tree" / "dist")
    monkeypatch.setenv("HEADRACE_LOOPS", "1")
    wheel = zipfile.ZipFile(built(tmp_path / "tree"))
    version = "".join(map(str, sys.version_info[:2]))
    assert re.search(rf"-cp{version}-none-manylinux_2_17_\w+\.whl$", str(wheel.filename))
    assert [name for name in wheel.namelist() if name.endswith(".so")] == [f"headrace/loops/{digest()}-x86-64-v3.so"]
    assert not asks_for(wheel, "numba")


def asks_for(wheel: zipfile.ZipFile, name: str) -> bool:
    """Whether an installation of the wheel without extras brings a distribution."""
    facts = next(each for each in wheel.namelist() if each.endswith("METADATA"))
    return re.search(rf"^Requires-Dist: {name}\b[^;\n]*$", wheel.read(facts).decode(), re.MULTILINE) is not None


def test_the_wheel_of_training_hosts_needs_no_compiler_and_no_arrow(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built(tree / "wheels" / "loader")) as light:
        light.extractall(tmp_path)
        facts = next(name for name in light.namelist() if name.endswith("METADATA"))
        needed = re.findall(r"^Requires-Dist: (\w+)[^;\n]*$", light.read(facts).decode(), re.MULTILINE)
    assert set(needed) == LIGHT
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] in facts
    code = LOADS_LIGHT.format(site=str(tmp_path), light=LIGHT, packages=sysconfig.get_path("purelib"))
    # Without `site`: an editable install of this checkout would give what the wheel leaves out.
    run(sys.executable, "-S", "-P", "-c", code, cwd=tmp_path)


@pytest.mark.slow
def test_a_fresh_environment_runs_the_quickstart(tree: Path, tmp_path: Path) -> None:
    """Needs the network, or wheels that pip finds: whatever the metadata forgets is not there."""
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), cwd=tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    run(python, "-m", "pip", "install", "-q", *constraints, str(built(tree)), cwd=tmp_path)
    run(str(tmp_path / "venv" / "bin" / "headrace"), "quickstart", "--steps", "5", cwd=tmp_path)


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
