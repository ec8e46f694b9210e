"""`make mutants`: change one operator, condition or statement of a core at a time, and see whether anything notices.

For each mutant the tests of its folder that import its module are run on a copy of the tree, then some seeds of the
simulator, then the other tests of the folder. What nothing notices is printed: a test is missing, or the mutant does
the same as the code. The seed draws the mutants: the same ones, but for those of lines that have changed since.

`equivalent_mutants.toml`, beside this tool, holds those of which somebody has shown that they do the same as the code,
with the reason. They are not judged again, so whatever is printed is new. An entry whose code is gone fails a test.

A mutant is a change in the body of a function: constants of modules, annotations and the words of errors are left as
they are. Known weakness: a mutant that makes a loop endless counts as noticed, by the time limit.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The cores: folders, and pure modules beside them.
FOLDERS = (
    "client/launch/core",
    "controller/core",
    "loader/blame/core",
    "loader/order",
    "page/core",
    "stages/dedup/core",
    "store/ledger/core",
    "store/shards/core",
    "transport/core",
    "worker/core",
    "worker/task/core",
)
MODULES = (
    "controller/effects/outcomes.py",
    "stages/runtime/arrow_check.py",
    "store/datasets/manifest.py",
    "store/named.py",
    "store/open.py",
    "store/datasets/recipes.py",
    "store/s3/connection/xml.py",
    "store/ledger/snapshot.py",
    "store/datasets/dataset.py",
    "daemon/control_address.py",
    "pipeline/masking.py",
    "daemon/private_folder.py",
)
#: Modules that their tests reach through others.
REACHED = {
    "store/datasets/dataset.py": ["tests/store/datasets/test_completeness.py"],
    "client/launch/core/kubernetes.py": ["tests/client/launch/test_plan.py", "tests/client/launch/test_launching.py"],
    "client/launch/core/ray.py": ["tests/client/launch/test_plan.py", "tests/client/launch/test_launching.py"],
    "client/launch/core/slurm.py": ["tests/client/launch/test_plan.py", "tests/client/launch/test_launching.py"],
    "loader/blame/core/losses.py": ["tests/loader/blame/test_causes.py"],
    "loader/blame/core/causes.py": ["tests/loader/blame/test_causes.py"],
    "controller/core/plan/locality.py": ["tests/transport/ring/test_weak_memory.py"],
    "store/shards/core/parts.py": ["tests/stages/functions/test_split.py"],
    "store/ledger/core/totals.py": ["tests/store/ledger/test_fold.py", "tests/store/ledger/test_balance.py"],
}
MUTANTS, SEED = 200, 1
#: Seeds of the simulator that a mutant is given, if it is of a module that the simulator imports.
SEEDS = 20
#: Cores that only pipelines in queues come to: their mutants are given seeds of those.
QUEUED = ("controller/core/cluster/scheduler.py", "controller/core/cluster/queues.py")
#: The mutants that do the same as the code.
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
#: Seconds that one step may take; what takes longer runs in a circle.
LIMIT_S = 180.0

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
#: Keywords that only say what is known to be so.
GUARDS = ("strict",)
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


#: A mutant: its module, function and line of code, what stands there, and what would stand there.
Name = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One change of a module: what stands in a line, and what would stand there."""

    line: int
    before: str
    after: str
    make: Callable[[], None]
    #: The function that it is in, with the names of the classes and functions around it.
    function: str = ""


@dataclass(frozen=True)
class Mutant:
    """The change of that number in a module."""

    module: str
    number: int
    line: int
    before: str
    after: str
    #: The function that it is in, and the text of its line.
    function: str
    code: str

    @property
    def name(self) -> Name:
        """What it is called where lines move."""
        return self.module, self.function, self.code, self.before, self.after


@dataclass(frozen=True)
class Verdict:
    """What noticed a mutant: "tests", "simulator" or "time"; empty where nothing did."""

    mutant: Mutant
    noticed_by: str
    seconds: float


# ---- the changes of a module ----


def changes(tree: ast.Module) -> list[Change]:
    """Every change of a module, in the order of its text."""
    found: list[Change] = []
    for name, node in _functions(tree):
        for index, statement in enumerate(node.body):
            inside = [*_removed(node.body, index), *_in_statement(statement)]
            found += [replace(item, function=name) for item in inside]
    unique = {(item.line, item.before, item.after): item for item in found}
    return sorted(unique.values(), key=lambda item: (item.line, item.before, item.after))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef):
            yield inner.removesuffix("."), child
        yield from _functions(child, inner)


def _in_statement(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    yield from _of(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "pattern") or getattr(node, "arg", "") in GUARDS:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.stmt):
                    yield from _removed(value, index)
                if isinstance(item, ast.AST):
                    yield from _in_statement(item)
        elif isinstance(value, ast.AST):
            yield from _in_statement(value)


def _swap(node: ast.AST, name: str, other: object) -> Change:
    """A change that gives a field of a node another value."""
    before, kept = ast.unparse(node), getattr(node, name)
    setattr(node, name, other)
    after = ast.unparse(node)
    setattr(node, name, kept)
    line = getattr(node, "lineno", 0) or getattr(getattr(node, "target", node), "lineno", 0)
    return Change(line, before, after, lambda: setattr(node, name, other))


def _of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for index, op in enumerate(node.ops):
                if type(op) in COMPARED:
                    yield _swap(node, "ops", [*node.ops[:index], COMPARED[type(op)](), *node.ops[index + 1 :]])
        case ast.BoolOp():
            yield from _of_conditions(node)
        case ast.UnaryOp(op=ast.Not()):
            yield _swap(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.BinOp():
            if type(node.op) in COMPUTED and not _is_text(node.left) and not _is_text(node.right):
                yield _swap(node, "op", COMPUTED[type(node.op)]())
        case ast.Constant(value=bool(value)):
            yield _swap(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield _swap(node, "value", value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield _swap(node, "func", ast.Name(CALLED[name], ast.Load()))
        case ast.comprehension(ifs=[_, *_]):
            yield _swap(node, "ifs", [])
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()) | ast.IfExp(test=ast.Name() | ast.Attribute()):
            yield _swap_test(node)
        case _:
            pass


def _of_conditions(node: ast.BoolOp) -> Iterator[Change]:
    yield _swap(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for index, value in enumerate(node.values):
        # That something is there is often said to the type checker alone.
        if not isinstance(value, ast.Compare) or not isinstance(value.ops[0], (ast.Is, ast.IsNot)):
            yield _swap(node, "values", [*node.values[:index], *node.values[index + 1 :]])


def _swap_test(node: ast.If | ast.IfExp) -> Change:
    other = ast.UnaryOp(ast.Not(), node.test)
    before, after = f"if {ast.unparse(node.test)}", f"if {ast.unparse(other)}"
    return Change(node.lineno, before, after, lambda: setattr(node, "test", other))


def _removed(body: list[ast.stmt], index: int) -> Iterator[Change]:
    """A statement that nothing behind it needs in order to run is left out."""
    node = body[index]
    leaves_out = (
        isinstance(node, (ast.AugAssign, ast.Delete, ast.Continue))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _says_only(node.value))
        or (
            isinstance(node, ast.Assign)
            and all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        )
    )
    if leaves_out:
        yield Change(node.lineno, ast.unparse(node), "pass", lambda: body.__setitem__(index, ast.Pass()))


def _says_only(call: ast.Call) -> bool:
    """Whether a call only says what is known to be so."""
    return isinstance(call.func, ast.Name) and call.func.id == "assert_never"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutated(text: str, number: int) -> str:
    """The text of a module with that one of its changes."""
    tree = ast.parse(text)
    changes(tree)[number].make()
    return ast.unparse(ast.fix_missing_locations(tree))


# ---- which mutants, and what is asked of each ----


def cores() -> list[str]:
    """The modules that are mutated."""
    inside = [
        path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "__init__.py"
    ]
    return [*(str(path.relative_to(ROOT)) for path in inside), *MODULES]


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    text = (ROOT / module).read_text(encoding="utf-8")
    lines = text.splitlines()
    return [
        Mutant(module, number, item.line, item.before, item.after, item.function, lines[item.line - 1].strip())
        for number, item in enumerate(changes(ast.parse(text)))
    ]


def drawn(count: int, seed: int, only: str = "") -> list[Mutant]:
    """So many mutants of all cores, or of those whose path holds `only`.

    The seed and its name alone decide on each: where a line changes, all others are drawn as before.
    """
    everything = [mutant for module in cores() if only in module for mutant in mutants_of(module)]
    lots = {item: hashlib.sha256(repr((seed, item.name)).encode()).digest() for item in everything}
    chosen = sorted(everything, key=lots.__getitem__)[:count]
    return sorted(chosen, key=lambda item: (item.module, item.number))


def equivalent() -> dict[Name, str]:
    """The names of the mutants that do the same as the code, with the reason."""
    table = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {
        (module, item["function"], item["code"], item["before"], item["after"]): item["reason"]
        for module, items in table.items()
        for item in items
    }


def is_simulated(module: str) -> bool:
    """Whether the simulator imports a module, and so may notice what is changed in it."""
    return "headrace." + module.removesuffix(".py").replace("/", ".") in _simulated()


def simulated_by(module: str) -> list[str]:
    """What the simulator is told besides, where it is to come to a module."""
    return ["--queues"] if module.startswith(QUEUED) else []


@functools.cache
def _simulated() -> frozenset[str]:
    """The modules that the simulator imports, in a process that imports nothing else."""
    code = "import sys, headrace.chaos.simulate; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return frozenset(said.stdout.split())


def tests_of(module: str) -> tuple[list[str], list[str]]:
    """The test files of a module's folder: those that import it, and for a core of the controller the others."""
    folder, name = module.removesuffix(".py").rsplit("/", 1)
    package = "headrace." + folder.replace("/", ".")
    imports = re.compile(rf"from {re.escape(package)}\.{name} import|from {re.escape(package)} import .*\b{name}\b")
    inside = ROOT / "tests" / folder.split("/", maxsplit=1)[0]
    files = [str(path.relative_to(ROOT)) for path in sorted(inside.rglob("test_*.py"))]
    direct = [path for path in files if imports.search((ROOT / path).read_text(encoding="utf-8"))]
    direct += REACHED.get(module, [])
    return direct, [path for path in files if path not in direct and module.startswith("controller/core/")]


class Copy:
    """A copy of the tree, in which one mutant at a time stands."""

    def __init__(self, place: Path) -> None:
        self.tree = place
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.tree / name, follow_symlinks=False)
        packages = str(place / ".typing")
        self.environment = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}

    def judge(self, mutant: Mutant) -> Verdict:
        """What notices a mutant."""
        path = self.tree / mutant.module
        text = path.read_text(encoding="utf-8")
        path.write_text(mutated(text, mutant.number), encoding="utf-8")
        started = time.monotonic()
        try:
            noticed = self.run(mutant.module)
        finally:
            path.write_text(text, encoding="utf-8")
        return Verdict(mutant, noticed, round(time.monotonic() - started, 1))

    def run(self, module: str) -> str:
        """What of the tests and the simulator fails on the tree as it stands."""
        pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not kill"]
        direct, others = tests_of(module)
        simulated = ["-m", "headrace.chaos.simulate", "--seeds", str(SEEDS), "--jobs", "1", *simulated_by(module)]
        steps = [
            ("tests", [*pytest, *direct] if direct else []),
            ("simulator", simulated if is_simulated(module) else []),
            ("tests", [*pytest, *others] if others else []),
        ]
        for name, arguments in steps:
            outcome = self._outcome(arguments) if arguments else True
            if outcome is not True:
                return name if outcome is False else "time"
        return ""

    def _outcome(self, arguments: Sequence[str]) -> bool | None:
        """Whether a program ends well; None if it does not end in time."""
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.tree,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(LIMIT_S) == 0
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(process.pid)


def _end(group: int) -> None:
    """End what a program has left behind."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def judged(mutants: Sequence[Mutant], jobs: int, tell: Callable[[Verdict], None]) -> None:
    """Judge mutants, several at a time."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    lock = threading.Lock()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutants-") as place:
            copy = Copy(Path(place))
            while True:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                verdict = copy.judge(mutant)
                with lock:
                    tell(verdict)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(argv: Sequence[str] | None = None) -> int:
    """Judge mutants and print those that nothing noticed; 0 if there are none, else 1."""
    parser = argparse.ArgumentParser(description="Plant mutants into the cores, and print those that nothing notices.")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help=f"how many (default {MUTANTS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"which (default {SEED})")
    parser.add_argument("--only", default="", help="only of modules whose path holds this")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of them, from the first on")
    parser.add_argument("--take", type=int, help="and judge so many of the others (default all)")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree at work (default 2)")
    parser.add_argument("--json", type=Path, help="a file for the verdicts, one a line")
    args = parser.parse_args(argv)
    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        mutant = verdict.mutant
        what = verdict.noticed_by or "NOTHING"
        print(f"{mutant.module}:{mutant.line}: {mutant.before!r} -> {mutant.after!r}: {what}", flush=True)
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")

    mutants = drawn(args.mutants, args.seed, args.only)[args.skip :][: args.take]
    known = equivalent()
    unknown = [item for item in mutants if item.name not in known]
    judged(unknown, args.jobs, tell)
    survivors = [item for item in verdicts if not item.noticed_by]
    print(f"{len(verdicts)} mutants, {len(verdicts) - len(survivors)} noticed, {len(survivors)} not", end="; ")
    print(f"{len(mutants) - len(unknown)} more are known to do the same as the code ({EQUIVALENT.name})")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
