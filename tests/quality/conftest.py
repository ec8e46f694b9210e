import sys
from pathlib import Path

# The tests have no packages: this is how their modules find the kits beside them.
sys.path.insert(0, str(Path(__file__).parent))
