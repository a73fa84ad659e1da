"""Puts scripts/ on the path, so that tests import the packages of the scripts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
