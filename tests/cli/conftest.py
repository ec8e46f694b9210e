"""What the tests of commands share with those of other folders."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
