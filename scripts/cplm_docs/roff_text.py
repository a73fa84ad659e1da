"""Manual pages (roff, man macros) -> paragraphs; verbatim parts (.Vb, .nf, .EX) left out."""

import re

_ESCAPES = [
    (re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)"), ""),  # fonts
    (re.compile(r"\\s(?:\[?[-+]?\d+\]?)"), ""),  # sizes
    (re.compile(r"\\\*\((?:--|em)"), "-"),
    (re.compile(r"\\\*\((?:L\"|lq)|\\\(lq|\\\*\(R\"|\\\*\(rq|\\\(rq|\\\(dq"), '"'),
    (re.compile(r"\\\*\(C[`']|\\\(aq|\\\(cq|\\\(oq|\\\*\(Aq"), "'"),
    (re.compile(r"\\\*\(C\+"), "C++"),
    (re.compile(r"\\\*\(PI"), "pi"),
    (re.compile(r"\\\(em|\\\(en|\\\(hy|\\-"), "-"),
    (
        re.compile(
            r"\\\(bu|\\\(co|\\\(rg|\\\*\([A-Za-z]{2}|\\\([a-z]{2}|\\\*\[[^\]]*\]|\\\[[^\]]*\]"
        ),
        "",
    ),
    (re.compile(r"\\[~0 ]"), " "),
    (re.compile(r"\\[&|^:%,/]"), ""),
    (re.compile(r"\\e|\\\\"), r"\\"),
]
_SKIPPED_FROM_TO = {"Vb": "Ve", "nf": "fi", "EX": "EE", "TS": "TE", "ig": "."}
_BREAKS = frozenset(["PP", "P", "LP", "IP", "TP", "Sp", "sp", "HP", "RS", "RE", "br"])
_HEADINGS = frozenset(["SH", "SS"])
_INLINE_FONTS = frozenset(["B", "I", "R", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB"])


def _plain(text: str) -> str:
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def roff_paragraphs(source: str) -> list[str]:
    paragraphs: list[str] = []
    words: list[str] = []
    skip_until = None
    in_body = False  # Pod::Man puts a page of macro definitions before .TH

    def end_paragraph() -> None:
        text = _plain(" ".join(words))
        words.clear()
        if text:
            paragraphs.append(text)

    for line in source.split("\n"):
        macro, _, rest = (
            line[1:].strip().partition(" ") if line[:1] in (".", "'") else ("", "", line)
        )
        if skip_until is not None:
            if macro == skip_until:
                skip_until = None
        elif macro == "TH":
            in_body = True
        elif not in_body or macro.startswith(('\\"', '"')):
            continue
        elif macro in _SKIPPED_FROM_TO:
            end_paragraph()
            skip_until = _SKIPPED_FROM_TO[macro]
        elif macro in _HEADINGS or macro == "IP":
            end_paragraph()
            words.append(rest.split('"')[1] if '"' in rest else rest)
            end_paragraph()
        elif macro in _BREAKS or (not macro and not line.strip()):
            end_paragraph()
        elif macro in _INLINE_FONTS:
            words.append(rest.replace('"', ""))
        elif not macro:
            words.append(line)
    end_paragraph()
    return paragraphs
