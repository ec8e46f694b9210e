"""Where the targets and what they share are found."""

import sys
from pathlib import Path

# The tests have no packages: this is how their modules find the kits that all of them share.
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
