"""scripts/setup: what counts as installed, which package is chosen, and what failures say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "third_party").glob("python-*.txt"))


def shell(script: str) -> subprocess.CompletedProcess[str]:
    sources = "".join(f"source scripts/lib/{name}.sh\n" for name in ("steps", "install", "system_packages"))
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{sources}{script}", "setup"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )


class Environment:
    """A virtual environment without pip that holds made-up packages."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        self.site_packages = next(folder.glob("lib/python3*/site-packages"))
        self.pins = folder / "pins.txt"

    def install(self, name: str, version: str) -> Path:
        module = self.site_packages / f"{name}.py"
        module.write_text("x = 1\n")
        metadata = self.site_packages / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "RECORD").write_text(f"{name}.py,,6\n{metadata.name}/RECORD,,\n")
        return metadata

    def missing(self, pins: str) -> subprocess.CompletedProcess[str]:
        self.pins.write_text(pins)
        command = [str(self.python), str(ROOT / "scripts/lib/pinned_packages.py"), str(self.pins)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


def test_a_whole_package_is_not_missing(environment: Environment) -> None:
    environment.install("some_pack", "1.2")
    result = environment.missing("# comment\nSome-Pack==1.2  # why\n\n")
    assert (result.returncode, result.stdout) == (0, "")


def test_absent_other_version_and_damaged_are_missing(environment: Environment) -> None:
    environment.install("older", "1.1")
    environment.install("cut", "1.0")
    environment.install("gone", "1.0")
    (environment.site_packages / "cut.py").write_text("x")
    (environment.site_packages / "gone.py").unlink()
    result = environment.missing("older==1.2\ncut==1.0\ngone==1.0\nabsent==3\n")
    assert result.stdout.split() == ["older==1.2", "cut==1.0", "gone==1.0", "absent==3"]


def test_what_a_killed_pip_leaves_is_cleared(environment: Environment) -> None:
    metadata = environment.install("half", "1.0")
    (metadata / "RECORD").unlink()
    (environment.site_packages / "~umpy").mkdir()
    assert environment.missing("half==1.0\n").stdout.split() == ["half==1.0"]
    assert not metadata.exists()
    assert not (environment.site_packages / "~umpy").exists()


def test_a_pin_without_exact_version_is_refused(environment: Environment) -> None:
    result = environment.missing("a==1\nb>=2\n")
    assert result.returncode == 1
    assert "pins.txt:2: expected NAME==VERSION, found 'b>=2'" in result.stderr


def test_the_lists_do_not_contradict_each_other(environment: Environment) -> None:
    command = [str(environment.python), str(ROOT / "scripts/lib/pinned_packages.py"), *map(str, LISTS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert "torch==2.11.0" in result.stdout.split()


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="compares versions with dpkg")
@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ("g++) echo 4:12.2.0-3 ;;", "g++"),
        ("g++) echo 4:11.2.0-1ubuntu1 ;; g++-12) echo 12.3.0-1ubuntu1 ;;", "g++-12"),
        ("g++) echo 4:11.2.0-1ubuntu1 ;;", "none"),
        ("", "none"),
    ],
)
def test_the_first_alternative_that_is_new_enough_is_taken(versions: str, expected: str) -> None:
    result = shell(
        f'fake() {{ case $1 in {versions} esac; }}\n'
        "first_alternative fake 'g++ 4:12 | g++-12 12' || echo none\n"
    )
    assert result.stdout.strip() == expected, result.stderr


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: Retrying: NewConnectionError\nERROR: No matching distribution", "no network"),
        ("W: Failed to fetch x  Temporary failure resolving 'x'", "no network"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend", "another package manager holds the lock"),
        ("OSError: [Errno 13] Permission denied: '/x'", "no rights to write"),
        ("noise\nERROR: a wheel is broken\nnoise", "ERROR: a wheel is broken"),
        ("noise\nlast words", "last words"),
    ],
)
def test_a_failure_ends_in_one_line_with_its_reason(tmp_path: Path, output: str, reason: str) -> None:
    text = tmp_path / "text"
    text.write_text(output)
    result = shell(f"log_folder='{tmp_path}'\nrun_logged x 'the step' bash -c 'cat {text}; exit 3'")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"scripts/setup: the step failed: {reason}")
    assert f"Its output: {tmp_path}/x.log" in result.stderr


def test_too_little_disk_is_named(tmp_path: Path) -> None:
    result = shell(f"require_disk '{tmp_path}' 900000000")
    assert result.returncode == 1
    assert f"scripts/setup: not enough disk: {tmp_path} has" in result.stderr


@pytest.mark.parametrize("name", ["setup", "test", "quickstart"])
def test_unknown_arguments_are_refused_before_anything_is_done(name: str) -> None:
    result = subprocess.run([ROOT / "scripts" / name, "--gpu"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"scripts/{name}: unknown argument '--gpu'; see scripts/{name} --help\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("installed", "offered", "said"),
    [
        ("150", "", "browser: there"),
        ("", "", "browser: apt offers no 'chromium-headless-shell 123 | chromium 123'; tests"),
        ("100", "100", "browser: apt offers no"),
        ("", "150", "installing chromium-headless-shell 123 | chromium 123"),
    ],
)
@pytest.mark.skipif(shutil.which("dpkg") is None, reason="compares versions with dpkg")
def test_a_browser_is_installed_where_there_is_one(
    installed: str, offered: str, said: str, tmp_path: Path
) -> None:
    result = shell(
        f"log_folder='{tmp_path}'\n"
        f"installed_version() {{ [ $1 = chromium ] && echo {installed} || true; }}\n"
        f"offered_version() {{ [ $1 = chromium ] && echo {offered} || true; }}\n"
        "apt() { :; }; can_be_root() { :; }\n"
        "install_packages() { say \"installing $*\"; }\n"
        "set_up_browser"
    )
    assert result.returncode == 0, result.stderr
    assert said in result.stdout
