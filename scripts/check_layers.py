#!/usr/bin/env python3
"""Fails when the sources break the project's structure.

Checks the #include lines of include/, src/ and kernels/ against the arrows between modules below,
that LibTorch is included only where it may be, that no unfinished mark lacks an issue number, and
that no file has over 400 lines. Prints one line a finding, exit code 1 when there are any.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from project_version import add_version_argument

# Module -> what it may include: a module, or one private header of it.
ARROWS: dict[str, set[str]] = {
    "kernels": set(),
    "base": set(),
    "text": {"base"},
    "config": {"base"},
    "data": {"base", "config"},
    "runs": {"base", "config", "data/hdf5_file.h"},
    "checkpoint": {"base"},
    "comm": {"base"},
    "ops": {"base", "config", "kernels"},
    "model": {"base", "config", "ops"},
    "saved": {"base", "config", "model", "checkpoint", "data/hdf5_file.h"},
    "hf": {"base", "config", "model", "checkpoint", "saved"},
    "generate": {"base", "config", "ops", "model"},
    "eval": {"base", "config", "model", "data", "runs", "comm"},
    "tasks": {"base", "text", "config", "ops", "model", "data", "runs", "saved", "generate", "eval"},
    "train": {"base", "config", "ops", "model", "data", "runs", "checkpoint", "saved", "eval",
              "tasks", "comm"},
    "cli": {"base", "text", "config", "model", "data", "runs", "checkpoint", "saved", "hf", "generate",
            "eval", "tasks", "train", "ops", "comm"},
}
# Public headers are include/cplm/MODULE.h; these belong to another module than their name says.
OWNER_OF_PUBLIC_HEADER = {"plan": "train", "profile": "base", "shard_tools": "data", "device": "ops",
                          "config_changes": "config", "saved_model": "saved", "tokenizer": "text", "decode": "model",
                          "copy_cache": "model", "copy_cache_file": "saved", "hugging_face": "hf",
                          "retrieval_text": "tasks", "copy_modes": "ops", "ops_recurrent": "ops",
                          "model_view": "model"}
# Stands for CUDA itself where tests compile kernels for the host.
EMULATOR = "emulator/emulator.h"
TORCH_FREE = {"kernels", "base", "text", "config", "data", "runs"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH_INCLUDE = re.compile(r"(torch|ATen|c10|caffe2)/")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b(?!\(#\d+\))")
MAX_LINES = 400
FOLDERS = ("include", "src", "kernels", "tests", "scripts", "cmake", ".ci")
CODE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".html", ".css", ".js", ""}


def module_of_source(path: Path) -> str | None:
    """path is relative to the root; None for files that no arrow governs."""
    if path.parts[0] == "kernels":
        return "kernels"
    if path.parts[:2] == ("include", "cplm"):
        return OWNER_OF_PUBLIC_HEADER.get(path.stem, path.stem)
    if path.parts[0] == "src" and len(path.parts) > 2:
        return path.parts[1]
    return None


def resolve_include(root: Path, included: str, includer: str) -> tuple[str, str] | None:
    """(module, path as arrows name it) of an include of ours, None when no such file exists."""
    if (root / "include" / included).is_file():
        return module_of_source(Path("include", included)) or "", included
    if (root / "src" / included).is_file():
        return module_of_source(Path("src", included)) or "", included
    if (root / included).is_file() and included.startswith("kernels/"):
        return "kernels", included
    if includer == "kernels" and (root / "kernels" / included).is_file():
        return "kernels", included
    if includer == "kernels" and included == EMULATOR:
        return "kernels", included
    return None


def check_include(root: Path, module: str, bracket: str, included: str) -> str | None:
    if TORCH_INCLUDE.match(included):
        if module in TORCH_FREE:
            return f"includes {included}, and {module} is free of LibTorch"
        return None
    found = resolve_include(root, included, module)
    if found is None:
        if bracket == '"':
            return f'includes "{included}", which is not below include/ or src/: name it from there'
        return None
    target, name = found
    if target == module or target in ARROWS[module] or name in ARROWS[module]:
        return None
    allowed = ", ".join(sorted(ARROWS[module])) or "nothing of ours"
    return f"includes {name} of {target}, and {module} may use only: {allowed}"


def check_includes(root: Path, path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    module = module_of_source(path)
    if module is not None and module not in ARROWS:
        yield 1, f"module {module} is not in the arrows of scripts/check_layers.py: add it there"
        return
    for number, line in enumerate(lines, start=1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        bracket, included = match.groups()
        if included == "torch/torch.h":
            yield number, "includes torch/torch.h, which costs half a minute a file: include ATen/ops/NAME.h"
        elif module is not None:
            finding = check_include(root, module, bracket, included)
            if finding is not None:
                yield number, finding


def check_file(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_LINES:
        yield len(lines), f"has {len(lines)} lines, at most {MAX_LINES} are allowed: split it"
    for number, line in enumerate(lines, start=1):
        if UNFINISHED.search(line):
            yield number, (
                "has an unfinished mark without an issue number: finish it, or write (#N) after it"
            )
    if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
        yield from check_includes(root, path, lines)


def code_files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in CODE_SUFFIXES and "golden" not in path.parts:
                yield path.relative_to(root)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_version_argument(parser)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    files = list(code_files(root))
    if not files:
        print(f"check_layers: no source files below {root}", file=sys.stderr)
        return 2
    findings = [f"{path}:{number}: {text}" for path in files for number, text in check_file(root, path)]
    print("\n".join(findings) if findings else f"check_layers: {len(files)} files keep to the layers")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
