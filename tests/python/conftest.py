"""Puts scripts/ on the path, so that tests import the packages of the scripts; and lets interrupts
reach the programs that tests start, also when the tests run in the background of a shell, where
SIGINT is ignored from the start."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
signal.signal(signal.SIGINT, signal.default_int_handler)
