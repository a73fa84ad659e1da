"""The project's version, read from CMakeLists.txt, where alone it stands."""

import argparse
import re
from pathlib import Path


def project_version() -> str:
    lists = Path(__file__).resolve().parent.parent / "CMakeLists.txt"
    found = re.search(r"^project\(cplm VERSION (\S+)", lists.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{lists}: expected a line 'project(cplm VERSION ...', found none")
    return found[1]


def add_version_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"%(prog)s (cplm) {project_version()}")
