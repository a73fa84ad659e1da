"""Which paragraphs are kept: English sentences, the short lines that belong to them, each once."""

import hashlib
import re

_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_PLAIN = re.compile(r"[A-Za-z0-9\s.,;:'\"()!?/_-]")
_UNDERLINE = re.compile(r"[-=~^+.*_# ]{3,}")
_SENTENCE_END = (".", "!", "?", ":")
# A repeated line below this is structure ("Note", "See also") on the next page, not copied text.
_SHORTEST_DUPLICATE = 40
_SHORTEST_PAGE = 400


def plain_paragraphs(text: str) -> list[str]:
    """Plain text or AsciiDoc: the parts between blank lines, unwrapped, without code."""
    paragraphs = []
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").expandtabs()):
        lines = [line for line in block.split("\n") if not _UNDERLINE.fullmatch(line)]
        if not all(line.startswith("    ") for line in lines if line.strip()):
            paragraphs.append(" ".join(" ".join(lines).split()))
    return [paragraph for paragraph in paragraphs if paragraph]


def is_prose(paragraph: str) -> bool:
    """At least two words, and mostly words: no signatures, paths, tables or lists of symbols."""
    words = _WORD.findall(paragraph)
    if len(words) < 2 or " " not in paragraph:
        return False
    word_share = sum(map(len, words)) / len(paragraph)
    plain_share = len(_PLAIN.findall(paragraph)) / len(paragraph)
    return word_share >= 0.6 and plain_share >= 0.93


def _is_sentence(paragraph: str) -> bool:
    return len(paragraph) >= _SHORTEST_DUPLICATE or paragraph.endswith(_SENTENCE_END)


def _without_lists_of_names(paragraphs: list[str]) -> list[str]:
    """Of three or more short lines in a row only the last stays: the rest are tables and menus.
    Headings at the end go too, since what they introduced is gone."""
    kept: list[str] = []
    short_lines: list[str] = []
    for paragraph in paragraphs:
        if not _is_sentence(paragraph):
            short_lines.append(paragraph)
            continue
        kept.extend(short_lines if len(short_lines) < 3 else short_lines[-1:])
        short_lines = []
        kept.append(paragraph)
    return kept


class UniqueProse:
    """Turns pages into text and keeps each paragraph where it occurs first, over all pages."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def _first_time(self, paragraph: str, seen_on_page: set[str]) -> bool:
        if len(paragraph) < _SHORTEST_DUPLICATE:
            repeated = paragraph in seen_on_page
            seen_on_page.add(paragraph)
            return not repeated
        letters = "".join(_WORD.findall(paragraph)).lower()
        digest = hashlib.blake2b(letters.encode(), digest_size=12).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True

    def page_text(self, paragraphs: list[str]) -> str:
        """The page's kept paragraphs with a blank line between; '' when too little is left."""
        seen_on_page: set[str] = set()
        kept = [
            paragraph
            for paragraph in paragraphs
            if is_prose(paragraph) and self._first_time(paragraph, seen_on_page)
        ]
        text = "\n\n".join(_without_lists_of_names(kept))
        return text + "\n" if len(text) >= _SHORTEST_PAGE else ""
