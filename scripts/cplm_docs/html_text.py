"""HTML pages of documentation -> paragraphs: the main part only, no navigation, code or tables."""

from html.parser import HTMLParser

# Elements whose text is a paragraph of its own.
_BLOCKS = frozenset(
    ["p", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "div", "section", "article"]
    + ["blockquote", "ul", "ol", "dl", "body", "main", "figcaption", "pre", "table"]
)
# Elements that are never closed.
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"]
)
_DROPPED_ELEMENTS = frozenset(
    ["script", "style", "head", "nav", "footer", "header", "form", "svg", "math", "pre", "table"]
    + ["button", "select", "template"]
)
# Classes and ids of what Sphinx and AsciiDoc put around the text.
_DROPPED_NAMES = frozenset(
    ["headerlink", "related", "sphinxsidebar", "toctree-wrapper", "contents", "toc", "footer"]
    + ["highlight", "literal-block", "listingblock"]
)


class _Paragraphs(HTMLParser):
    """Collects the text of each block; `_dropping` holds the open elements of a dropped one."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._words: list[str] = []
        self._dropping: list[str] = []

    def _end_paragraph(self) -> None:
        text = " ".join("".join(self._words).split())
        self._words.clear()
        if text:
            self.paragraphs.append(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self._words.append(" ")
            return
        if self._dropping:
            self._dropping.append(tag)
            return
        names = {
            name for key, value in attrs if key in ("class", "id") for name in (value or "").split()
        }
        if tag in _DROPPED_ELEMENTS or names & _DROPPED_NAMES:
            if tag in _BLOCKS:
                self._end_paragraph()
            self._dropping.append(tag)
        elif tag in _BLOCKS:
            self._end_paragraph()

    def handle_endtag(self, tag: str) -> None:
        if self._dropping:
            # An unclosed inner element (<li>, <p>) ends with the element that encloses it.
            if tag in self._dropping:
                while self._dropping.pop() != tag:
                    pass
        elif tag in _BLOCKS:
            self._end_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._dropping:
            self._words.append(data)

    def close(self) -> None:
        super().close()
        self._end_paragraph()


def _main_part(page: str) -> str:
    """What follows the marker of the main part, where the page has one."""
    for marker in ('<div class="body" role="main">', '<div id="content">', "<body"):
        at = page.find(marker)
        if at >= 0:
            return page[at:]
    return page


def html_paragraphs(page: str) -> list[str]:
    parser = _Paragraphs()
    parser.feed(_main_part(page))
    parser.close()
    return parser.paragraphs
