"""Perl's POD -> paragraphs: ordinary paragraphs, headings and items; code (indented) left out."""

import re

_ENTITIES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/", "quot": '"', "amp": "&", "nbsp": " "}
_CODE_START = re.compile(r"([A-Z])(<+)")
_PARAGRAPHS = re.compile(r"\n[ \t]*\n+")


def _meaning(code: str, text: str) -> str:
    """What a formatting code stands for: B<bold>, L<label|target>, E<lt>, X<index entry>, ..."""
    if code in "XZ":
        return ""
    if code == "E":
        return chr(int(text)) if text.isdigit() else _ENTITIES.get(text, "")
    if code == "L":
        label, bar, _ = text.partition("|")
        return label if bar else label.strip('/"').replace('/"', ": ")
    return text


def _until(text: str, at: int, closing: str) -> tuple[str, int]:
    """Plain text from `at` up to `closing` (or the end), and the place behind it; codes nest."""
    parts: list[str] = []
    while at < len(text):
        if closing and text.startswith(closing, at):
            return "".join(parts), at + len(closing)
        start = _CODE_START.match(text, at)
        if start is None:
            parts.append(text[at])
            at += 1
            continue
        brackets = len(start.group(2))
        wide = brackets > 1 and text[start.end() : start.end() + 1].isspace()
        inner_closing = " " + ">" * brackets if wide else ">"
        inner_at = start.end() + 1 if wide else start.start() + 2
        inner, at = _until(text, inner_at, inner_closing)
        parts.append(_meaning(start.group(1), inner.strip() if wide else inner))
    return "".join(parts), at


def _plain(paragraph: str) -> str:
    return " ".join(_until(" ".join(paragraph.split()), 0, "")[0].split())


def pod_paragraphs(source: str) -> list[str]:
    paragraphs: list[str] = []
    for_another_formatter = False
    for block in _PARAGRAPHS.split(source.replace("\r\n", "\n")):
        block = block.strip("\n")
        if block.startswith("="):
            command, _, rest = block[1:].partition(" ")
            if command in ("begin", "end"):
                for_another_formatter = command == "begin"
            elif (command.startswith("head") or command == "item") and not for_another_formatter:
                paragraphs.append(_plain(rest.lstrip("* ")))
        elif block and not for_another_formatter and not block[0].isspace():
            paragraphs.append(_plain(block))
    return [paragraph for paragraph in paragraphs if paragraph]
