import sys
from pathlib import Path

# So that spawned ranks, which get this path too, can import the cases by name.
sys.path.insert(0, str(Path(__file__).parent))
