"""Prints the pins of requirement files that this Python's site-packages does not hold whole.

A package counts as whole when it has the pinned version and every file that its RECORD lists, in
the size listed. One without a RECORD (pip was interrupted) loses its metadata here, so that pip
installs over it instead of refusing to uninstall it.
"""

import csv
import re
import shutil
import sys
import sysconfig
from pathlib import Path

PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """Normalised name -> the pin as written."""
    pins: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = PIN.fullmatch(text)
        if match is None:
            raise SystemExit(f"{path}:{number}: expected NAME==VERSION, found '{text}'")
        pins[normalise(match["name"])] = text
    return pins


def is_whole(metadata: Path, version: str) -> bool:
    if metadata.name.removesuffix(".dist-info").partition("-")[2] != version:
        return False
    with open(metadata / "RECORD", encoding="utf-8", newline="") as record:
        for path, _, size in csv.reader(record):
            file = metadata.parent / path
            if not size or file.suffix == ".pyc":  # Python rewrites its caches
                continue
            if not file.is_file() or file.stat().st_size != int(size):
                return False
    return True


def drop_interrupted(site_packages: Path) -> None:
    """What a killed pip leaves: packages renamed to ~ack-age, metadata without RECORD."""
    for leftover in site_packages.glob("~*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    for metadata in site_packages.glob("*.dist-info"):
        if not (metadata / "RECORD").is_file():
            shutil.rmtree(metadata)


def main(files: list[str]) -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    drop_interrupted(site_packages)
    installed: dict[str, Path] = {}
    for metadata in site_packages.glob("*.dist-info"):
        installed[normalise(metadata.name.partition("-")[0])] = metadata
    pins: dict[str, str] = {}
    for file in files:
        for name, pin in read_pins(Path(file)).items():
            if pins.setdefault(name, pin) != pin:
                raise SystemExit(f"{file}: '{pin}' contradicts '{pins[name]}' of another file")
    for name, pin in pins.items():
        if name not in installed or not is_whole(installed[name], pin.partition("==")[2]):
            print(pin)


if __name__ == "__main__":
    main(sys.argv[1:])
