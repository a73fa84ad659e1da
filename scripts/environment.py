"""The Python of scripts/: the repository's own, which scripts/setup fills. Imports next to nothing,
so that a script can catch an interruption while it starts."""

import importlib
import os
import signal
import sys

_ENVIRONMENT = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), ".venv")


def _missing_package(packages: tuple[str, ...]) -> str | None:
    """Imports them. An interruption comes afterwards: within it, compiled packages make it an
    ImportError, as if they were missing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for package in packages:
            importlib.import_module(package)
    except ImportError as error:
        return error.name or str(error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None


def enter_environment(name: str, packages: tuple[str, ...]) -> None:
    """Imports the packages; where one is missing, runs the script again by the repository's own
    Python, or ends it. `name`: the script's, for that message."""
    missing = _missing_package(packages)
    if missing is None:
        return
    python = os.path.join(_ENVIRONMENT, "bin", "python")
    if os.path.exists(python) and os.path.realpath(sys.prefix) != _ENVIRONMENT:
        os.execv(python, [python, *sys.argv])
    sys.exit(f"{name}: {sys.executable} lacks the package {missing}; run scripts/setup")
