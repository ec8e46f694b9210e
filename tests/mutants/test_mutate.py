"""The tool that changes the cores: what `make mutants` plants."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import mutate
from tests.mutants.mutate import ROOT, Name, changes, cores, drawn, equivalent, is_simulated, mutants_of, mutated

TEXT = '''
LIMIT = 3

def first(items: list[int] | None, limit: int = 2) -> int:
    """A function."""
    if not items or len(items) > limit:
        raise ValueError(f"more than {limit + 1}")
    items.append(1)
    return max(items) - 1
'''


def told() -> set[tuple[str, str]]:
    return {(item.before, item.after) for item in changes(ast.parse(TEXT))}


def test_conditions_operators_numbers_calls_and_statements_are_changed() -> None:
    assert told() == {
        ("not items or len(items) > limit", "not items and len(items) > limit"),
        ("not items or len(items) > limit", "len(items) > limit"),
        ("not items or len(items) > limit", "not items"),
        ("not items", "not not items"),
        ("len(items) > limit", "len(items) >= limit"),
        ("items.append(1)", "pass"),
        ("1", "2"),
        ("max(items) - 1", "max(items) + 1"),
        ("max(items)", "min(items)"),
    }


def test_each_change_gives_another_program_and_no_two_the_same() -> None:
    texts = [mutated(TEXT, number) for number in range(len(changes(ast.parse(TEXT))))]
    for text in texts:
        compile(text, "mutant", "exec")
    assert len({*texts, ast.unparse(ast.parse(TEXT))}) == len(texts) + 1


@pytest.mark.slow
def test_the_same_seed_draws_the_same_mutants() -> None:
    assert drawn(30, 5) == drawn(30, 5) != drawn(30, 6)
    assert len(drawn(30, 5)) == 30


def test_a_changed_line_changes_the_draw_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "loader/order/plan.py"
    known = mutants_of(module)
    before = drawn(20, 5, module)
    gone = before[3]
    monkeypatch.setattr(mutate, "mutants_of", lambda _: [item for item in known if item.name != gone.name])
    after = drawn(20, 5, module)
    assert {item for item in before if item.name != gone.name} < set(after)
    assert len(after) == 20


@pytest.mark.parametrize("module", cores())
def test_every_core_is_there(module: str) -> None:
    assert (ROOT / module).is_file()


def test_a_module_is_asked_of_the_tests_that_import_it() -> None:
    direct, others = mutate.tests_of("controller/core/log/leader.py")
    assert "tests/controller/core/cluster/test_leadership.py" in direct
    assert "tests/controller/core/cluster/test_leadership.py" not in others


@pytest.mark.parametrize("name", equivalent(), ids=lambda name: f"{name[0]} {name[1]}: {name[3]}")
def test_a_known_equivalent_mutant_is_one_of_the_present_code(name: Name) -> None:
    assert name in {mutant.name for mutant in mutants_of(name[0])}
    assert equivalent()[name], "it has a reason"


def test_a_mutant_is_named_by_its_function_and_line_of_code() -> None:
    tree = ast.parse("class Some:\n    def first(self):\n        def inner():\n            return 1\n")
    assert [item.function for item in changes(tree)] == ["Some.first.inner"]


def test_what_the_simulator_imports_is_simulated() -> None:
    assert is_simulated("controller/core/log/leader.py")
    assert not is_simulated("store/s3/connection/xml.py")


def test_what_is_known_to_do_the_same_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    known = next(iter(equivalent()))
    numbers = [item.name for item in drawn(10**6, 1, known[0])]
    assert (
        mutate.main(["--mutants", "1000000", "--only", known[0], "--skip", str(numbers.index(known)), "--take", "1"])
        == 0
    )
    assert "0 mutants, 0 noticed, 0 not; 1 more are known to do the same" in capsys.readouterr().out


def test_a_copy_of_the_tree_imports_what_it_holds(tmp_path: Path) -> None:
    copy = mutate.Copy(tmp_path)
    code = "import headrace, headrace.store.ledger.log as log; print(headrace.__file__, log.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=copy.tree, env=copy.environment, capture_output=True, text=True, timeout=60)
    assert [Path(name).resolve().is_relative_to(tmp_path.resolve()) for name in done.stdout.split()] == [True, True]
